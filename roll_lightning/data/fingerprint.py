"""Fingerprints of data sets: they go into checkpoints, so that a run resumes with the data that it began with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from roll_lightning.data.types import Prompt

if TYPE_CHECKING:
    from roll_lightning.data.tokenise import TokenisedRow

_DIGEST_BYTES = 16


def fingerprint_rows(rows: Iterable[TokenisedRow]) -> str:
    """Of supervised rows: token ids, loss masks and their order. 32 hexadecimal digits, the same on every machine."""
    digest = blake2b(digest_size=_DIGEST_BYTES, person=b"rows")
    for row in rows:
        digest.update(_length_and_ids(row.input_ids))
        digest.update(bytes(row.loss_mask))
    return digest.hexdigest()


def fingerprint_prompts(prompts: Iterable[Prompt]) -> str:
    """Of prompts: ids, tokens and their order, and what rewards read: answer, domain and further columns."""
    digest = blake2b(digest_size=_DIGEST_BYTES, person=b"prompts")
    for prompt in prompts:
        digest.update(_length_and_ids(prompt.token_ids))
        fields = [prompt.id, prompt.domain, prompt.answer, prompt.columns]
        encoded = json.dumps(fields, sort_keys=True, default=repr).encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _length_and_ids(ids: Sequence[int]) -> bytes:
    # The length in front keeps [1, 2], [3] apart from [1], [2, 3].
    return len(ids).to_bytes(8, "little") + np.asarray(ids, dtype="<i8").tobytes()
