"""Rows of the sums: right, and in one file only."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from sums_task import make_task


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


@pytest.fixture
def rows(tmp_path) -> dict[str, list[dict]]:
    make_task(tmp_path, seed=3)
    return {name: read(tmp_path / f"{name}.jsonl") for name in ("train", "val", "eval")}


def test_every_turn_and_answer_is_right(rows):
    for row in rows["train"] + rows["val"] + rows["eval"]:
        *worked, question = row["messages"]
        assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"] * 2 + ["user"]
        for asked, told in zip(worked[::2], worked[1::2], strict=True):
            a, b, total = numbers(told["content"])
            assert told["content"] == f"{a} + {b} = {total}"
            assert (a, b) == numbers(asked["content"])
            assert a + b == total
        a, b = numbers(question["content"])
        assert question["content"] == f"What is {a} + {b}?"
        assert 10 <= a <= 50
        assert 10 <= b <= 50
        assert row["answer"] == str(a + b)


def test_no_pair_is_in_two_files_in_either_order_nor_worked(rows):
    seen = {name: {frozenset(numbers(row["messages"][-1]["content"])) for row in part} for name, part in rows.items()}
    worked = {frozenset(numbers(turn["content"])) for row in rows["train"] for turn in row["messages"][:-1:2]}
    assert [len(rows[name]) for name in ("val", "eval")] == [32, 64]
    # 41 numbers make 41 * 42 / 2 = 861 pairs without order, two of which are worked turns.
    assert sum(map(len, seen.values())) == 861 - 2
    assert len(set().union(*seen.values(), worked)) == 861


def test_rows_depend_on_the_seed_alone(tmp_path):
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_task(tmp_path / folder, seed)
    assert read(tmp_path / "a/eval.jsonl") == read(tmp_path / "b/eval.jsonl")
    assert read(tmp_path / "a/eval.jsonl") != read(tmp_path / "c/eval.jsonl")
