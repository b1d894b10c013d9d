from __future__ import annotations

from dataclasses import replace

import pytest

from roll_lightning.data.fingerprint import fingerprint_prompts, fingerprint_rows
from roll_lightning.data.tokenise import TokenisedRow
from roll_lightning.data.types import Prompt

ROWS = [TokenisedRow([1, 2], [0, 1], 1), TokenisedRow([3], [1], 2)]
PROMPT = Prompt("a", (1, 2), "x", "13", "sort", (), {"level": 2, "hint": "é\ud800"})


def test_equal_data_equal_fingerprint():
    # The line number may move: a blank line more changes nothing that is trained on.
    moved = [replace(row, line=row.line + 1) for row in ROWS]
    assert fingerprint_rows(ROWS) == fingerprint_rows(moved)
    reordered = replace(PROMPT, columns=dict(reversed(PROMPT.columns.items())))
    assert fingerprint_prompts([PROMPT]) == fingerprint_prompts([reordered])
    assert len(fingerprint_rows(ROWS)) == len(fingerprint_prompts([PROMPT])) == 32


def test_fingerprint_is_the_same_on_every_machine():
    assert fingerprint_rows(ROWS) == "e0b1eb3f3f303d0bae998c3a086f2605"
    assert fingerprint_prompts([PROMPT]) == "2d0c32388b055ffd4fb6d5cde5efb88f"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        ROWS[:1],
        ROWS[::-1],
        [TokenisedRow([1], [0], 1), TokenisedRow([2, 3], [1, 1], 2)],
        [TokenisedRow([1, 2], [1, 1], 1), ROWS[1]],
        [TokenisedRow([1, 70_000], [0, 1], 1), ROWS[1]],
    ],
)
def test_other_rows_other_fingerprint(rows):
    assert fingerprint_rows(rows) != fingerprint_rows(ROWS)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "b"},
        {"token_ids": (2, 1)},
        {"token_ids": (1, 2, 3)},
        {"answer": 13},
        {"answer": None},
        {"domain": "x"},
        {"columns": {"level": 3, "hint": "é\ud800"}},
    ],
)
def test_other_prompt_other_fingerprint(change):
    assert fingerprint_prompts([replace(PROMPT, **change)]) != fingerprint_prompts([PROMPT])
