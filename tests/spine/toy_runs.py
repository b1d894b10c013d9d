"""Starts toy runs in forked processes and compares how they ended."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from spine.forked import run_forked
from spine.toy import run


def go(root: Path, ranks: int = 1, expect: int = 0, **arguments) -> None:
    codes = run_forked(lambda: run(root, devices=ranks, **arguments), root / "out.txt", ranks)
    assert codes == [expect] * ranks, (root / "out.txt").read_text()[-4000:]


def log(root: Path, rank: int = 0) -> list:
    path = root / f"log.{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(root: Path) -> dict[str, torch.Tensor]:
    return torch.load(root / "weights.pt")


def assert_same_end(reference: Path, resumed: Path, killed_at: int, *, checkpointed: int, ranks: int = 1) -> None:
    """The resumed run did the rest of the reference from its last checkpoint on, and has the same weights."""
    for rank in range(ranks):
        whole, parts = log(reference, rank), log(resumed, rank)
        first, second = parts[:killed_at], parts[killed_at:]
        assert first == whole[:killed_at]
        assert second, "the resumed run trained no batch"
        assert second == whole[len(whole) - len(second) :]
        assert len(whole) - len(second) == checkpointed
    expected, found = weights(reference), weights(resumed)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
