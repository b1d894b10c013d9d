"""A model's hub name where there is no hub: one line, at the first try."""

from __future__ import annotations

import os
import subprocess
import sys

CALLS = """
from roll_lightning.errors import ConfigError
from roll_lightning.models.loading import PolicyConfig, check_policy
from roll_lightning.models.tokenizer import load_tokenizer
for call in (lambda: check_policy(PolicyConfig("owner/model")), lambda: load_tokenizer("owner/model")):
    try:
        call()
    except ConfigError as error:
        print(error)
"""


def test_no_network_is_noticed_at_the_first_try():
    """Nothing listens on port 9; that a library tries again and again would show in its log."""
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", CALLS], env=environment, capture_output=True, text=True, check=True)
    model, tokenizer = done.stdout.splitlines()
    asked = (
        "owner/model is no file or folder here, so it is looked for on the Hugging Face hub, which cannot be reached: "
    )
    assert model.startswith(f"model.policy.path {asked}")
    assert tokenizer.startswith(f"the tokenizer of {asked}")
    assert "run: hf download owner/model --local-dir FOLDER, and give FOLDER instead" in model
    assert "Retry" not in done.stderr
