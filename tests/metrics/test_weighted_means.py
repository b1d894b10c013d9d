from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from spine.forked import run_forked

from roll_lightning.metrics.weighted import WeightedMeans


def test_sums_and_weights_by_hand():
    metrics = WeightedMeans(["a", "b"], ["top"], ["bottom"])
    metrics.update("a", 3.0, 2)
    metrics.update("a", torch.tensor(9.0), torch.tensor(4))
    values, mask = torch.tensor([[1.0, float("nan"), 5.0]]), torch.tensor([[True, False, True]])
    for name in ("b", "top", "bottom"):
        metrics.update_masked(name, values, mask)
    found = {name: float(value) for name, value in metrics.pop().items()}
    assert found == {"a": 2.0, "b": 3.0, "top": 5.0, "bottom": 1.0}
    assert metrics.pop() == {}


def test_nothing_masked_adds_nothing():
    metrics = WeightedMeans(["a"], ["top"])
    for name in ("a", "top"):
        metrics.update_masked(name, torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool))
    assert metrics.pop() == {}


def test_an_unknown_name_is_a_fault():
    with pytest.raises(KeyError):
        WeightedMeans(["a"]).update("b", 1.0)


def two_ranks(out: Path) -> None:
    import os

    torch.distributed.init_process_group("gloo", init_method="env://")
    rank = int(os.environ["RANK"])
    metrics = WeightedMeans(["mean", "only rank 1"], ["top"], ["bottom"])
    metrics.update("mean", [10.0, 2.0][rank], [1.0, 5.0][rank])
    if rank == 1:
        metrics.update("only rank 1", 4.0, 2.0)
    mask = torch.tensor([[True]])
    metrics.update_masked("top", torch.tensor([[float(rank)]]), mask)
    metrics.update_masked("bottom", torch.tensor([[float(rank)]]), mask)
    found = {name: float(value) for name, value in metrics.pop().items()}
    out.with_suffix(f".{rank}").write_text(json.dumps(found))
    torch.distributed.barrier()


def test_T07_exact_over_ranks(tmp_path):
    out = tmp_path / "found"
    assert run_forked(lambda: two_ranks(out), tmp_path / "log.txt", 2) == [0, 0], (tmp_path / "log.txt").read_text()
    for rank in (0, 1):
        found = json.loads(out.with_suffix(f".{rank}").read_text())
        assert found == {"mean": 2.0, "only rank 1": 2.0, "top": 1.0, "bottom": 0.0}
