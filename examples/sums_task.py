"""Sums of two numbers as chat: "What is 12 + 34?" after two worked turns, to be answered by "12 + 34 = 46"."""

from __future__ import annotations

import json
import random
from itertools import combinations_with_replacement
from pathlib import Path

NUMBERS = range(10, 51)
WORKED = [(14, 39), (27, 16)]
Pair = tuple[int, int]


def make_task(folder: Path, seed: int, held_out: int = 64, validation: int = 32) -> None:
    """Write ``train.jsonl``, ``val.jsonl`` and ``eval.jsonl``: rows of messages and an answer.

    No two numbers meet in two files, in whatever order, nor in the worked turns.

    Args:
        folder: gets the files.
        seed: of the choice of numbers.
        held_out: tasks of the final evaluation.
        validation: tasks that are answered during training.
    """
    choice = random.Random(seed)
    pairs = sorted({*combinations_with_replacement(NUMBERS, 2)} - {(min(pair), max(pair)) for pair in WORKED})
    choice.shuffle(pairs)
    train = pairs[held_out + validation :]
    write_rows(folder / "eval.jsonl", [turned(pair, choice) for pair in pairs[:held_out]])
    write_rows(folder / "val.jsonl", [turned(pair, choice) for pair in pairs[held_out : held_out + validation]])
    write_rows(folder / "train.jsonl", [*train, *((b, a) for a, b in train if a != b)])


def turned(pair: Pair, choice: random.Random) -> Pair:
    """The two numbers in an order by chance."""
    a, b = pair
    return (a, b) if choice.random() < 0.5 else (b, a)


def messages(pair: Pair) -> list[dict[str, str]]:
    """The worked turns, then the question."""
    turns = []
    for a, b in WORKED:
        turns += [question(a, b), {"role": "assistant", "content": f"{a} + {b} = {a + b}"}]
    return [*turns, question(*pair)]


def question(a: int, b: int) -> dict[str, str]:
    """A user's turn."""
    return {"role": "user", "content": f"What is {a} + {b}?"}


def write_rows(file: Path, pairs: list[Pair]) -> None:
    """One JSON object per line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"messages": messages(pair), "answer": str(sum(pair))} for pair in pairs]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
