"""One optimizer step of SGD is the same for every cut into micro-batches and ranks, under every strategy."""

from __future__ import annotations

import pytest
import torch
from spine.toy_runs import go, weights

SGD = {"optimizer": "sgd", "dropout": 0.0, "max_steps": 4}


@pytest.fixture(scope="module")
def one_batch(tmp_path_factory):
    root = tmp_path_factory.mktemp("reference")
    go(root, accumulate=1, **SGD)
    return weights(root)


def assert_close(found, expected) -> None:
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6, rtol=1e-5), (name, (found[name] - value).abs().max())


@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_T01_T03_T09_accumulation(one_batch, tmp_path, accumulate):
    go(tmp_path, accumulate=accumulate, **SGD)
    assert_close(weights(tmp_path), one_batch)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_T06_T09_strategies(one_batch, tmp_path, strategy, accumulate):
    go(tmp_path, 2, strategy=strategy, accumulate=accumulate, **SGD)
    assert_close(weights(tmp_path), one_batch)
