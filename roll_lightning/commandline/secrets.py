"""What must not be written to disk."""

from __future__ import annotations

import re
from typing import Any

# Whole words of a key. "token" alone and "<who>_token" are credentials; max_new_tokens and stop_token_ids are not.
SECRET = re.compile(
    r"(?:^|_)(?:api_?keys?|access_?keys?|private_?keys?|secret(?:_?keys?)?s?|passwords?|passwd|passphrase|credentials?|authorization|bearer)(?:_|$)"
    r"|(?:^|_)(?:auth|access|api|bearer|bot|hf|hub|refresh|secret|session|wandb|github|use_auth)_tokens?$"
    r"|^tokens?$|^auth$",
    re.IGNORECASE,
)


def is_secret(key: str) -> bool:
    """Whether the name of a key says that its value is a credential."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_")
    return SECRET.search(words) is not None


def without_secrets(value: Any) -> Any:
    """A config tree without the keys that hold credentials; they come from the environment."""
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items() if not is_secret(str(key))}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return value
