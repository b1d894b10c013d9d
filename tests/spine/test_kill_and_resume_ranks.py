"""Two CPU ranks under DDP, FSDP2 and DeepSpeed: killed inside a window, at its end, on an epoch's last batch."""

from __future__ import annotations

import pytest
from spine.toy_runs import assert_same_end, go

LIMITS = {"max_epochs": {"max_epochs": 2}, "max_steps": {"max_steps": 7}}


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    made = {}

    def reference(strategy: str, limit: str):
        if (strategy, limit) not in made:
            root = tmp_path_factory.mktemp(f"{strategy}-{limit}")
            go(root, 2, strategy=strategy, **LIMITS[limit])
            made[strategy, limit] = root
        return made[strategy, limit]

    return reference


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero1", "zero3"])
@pytest.mark.parametrize(("limit", "kill"), [("max_epochs", 3), ("max_epochs", 4), ("max_steps", 8), ("max_steps", 9)])
def test_T44_T45_L1_two_ranks(references, tmp_path, strategy, limit, kill):
    reference = references(strategy, limit)
    go(tmp_path, 2, expect=-9, strategy=strategy, kill_after=kill, **LIMITS[limit])
    go(tmp_path, 2, strategy=strategy, resume="last", **LIMITS[limit])
    assert_same_end(reference, tmp_path, kill, ranks=2, checkpointed=(kill - 1) // 2 * 2)
