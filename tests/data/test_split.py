from __future__ import annotations

import subprocess
import sys

import pytest

from roll_lightning.data.jsonl import Row
from roll_lightning.data.split import split_rows
from roll_lightning.errors import ConfigError

ROWS = [Row(line, {"text": str(line)}) for line in range(1, 101)]


def lines(rows):
    return [row.line for row in rows]


def test_parts_are_disjoint_whole_and_in_order():
    train, val = split_rows(ROWS, 0.13, seed=0)
    assert (len(train), len(val)) == (87, 13)
    assert sorted(lines(train) + lines(val)) == list(range(1, 101))
    assert lines(train) == sorted(lines(train))
    assert lines(val) == sorted(lines(val))


def test_the_seed_alone_decides():
    again, other = split_rows(ROWS, 0.1, seed=0), split_rows(ROWS, 0.1, seed=1)
    assert again == split_rows(ROWS, 0.1, seed=0)
    assert lines(again[1]) != lines(other[1])
    # Another process has another hash seed and another global random state.
    call = "from roll_lightning.data.split import split_rows; from roll_lightning.data.jsonl import Row; "
    call += "print([row.line for row in split_rows([Row(n, {}) for n in range(1, 101)], 0.1, seed=0)[1]])"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(lines(again[1]))


def test_every_row_may_be_chosen():
    chosen = {line for seed in range(60) for line in lines(split_rows(ROWS, 0.1, seed)[1])}
    assert len(chosen) > 95


@pytest.mark.parametrize(("fraction", "count"), [(0.05, 1), (0.5, 10), (0.95, 19), (0.074, 1), (0.076, 2)])
def test_whole_rows(fraction, count):
    assert len(split_rows(ROWS[:20], fraction, 0)[1]) == count


@pytest.mark.parametrize(
    ("fraction", "rows", "words"),
    [
        (0.0, 10, "is 0.0; it must be more than 0 and less than 1"),
        (1.0, 10, "less than 1"),
        (-0.1, 10, "more than 0"),
        (float("nan"), 10, "is nan"),
        (0.01, 10, "0.01 of 10 rows leaves none for validation; raise it"),
        (0.99, 10, "leaves none for training; lower it"),
        (0.5, 1, "of 1 rows leaves none"),
    ],
)
def test_refused(fraction, rows, words):
    with pytest.raises(ConfigError, match=words):
        split_rows(ROWS[:rows], fraction, 0)
