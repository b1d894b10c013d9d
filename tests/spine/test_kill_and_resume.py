"""A run killed after any micro-batch and resumed trains the same samples in the same order to the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from spine.toy_runs import assert_same_end, go, log

BATCHES = 3 * 4 * 2  # iterations x windows (2 per pass, 2 passes) x micro-batches
LIMITS = {"max_epochs": {"max_epochs": 3}, "max_steps": {"max_steps": 11}, "both": {"max_epochs": 3, "max_steps": 12}}
TRAINED = {"max_epochs": BATCHES, "max_steps": 22, "both": BATCHES}


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> dict[str, Path]:
    roots = {name: tmp_path_factory.mktemp(name) for name in LIMITS}
    for name, root in roots.items():
        go(root, **LIMITS[name])
        assert len(log(root)) == TRAINED[name]
    return roots


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kill", range(1, BATCHES + 1))
def test_T44_T45_L1_killed_after_any_micro_batch(references, tmp_path, limit, kill):
    if kill > TRAINED[limit]:
        pytest.skip("the run is shorter")
    go(tmp_path, expect=-9, kill_after=kill, **LIMITS[limit])
    go(tmp_path, resume="last", **LIMITS[limit])
    # Lightning calls checkpoint callbacks last, so a window's own checkpoint comes after the kill on its last batch.
    assert_same_end(references[limit], tmp_path, kill, checkpointed=(kill - 1) // 2 * 2)


@pytest.mark.parametrize("kill", [1, 5, 6, 8, 9, 16, 23])
@pytest.mark.parametrize("limit", ["max_epochs", "max_steps"])
def test_T44_checkpoints_at_epoch_ends_only(references, tmp_path, limit, kill):
    if kill > TRAINED[limit]:
        pytest.skip("the run is shorter")
    go(tmp_path, expect=-9, kill_after=kill, every_n_steps=0, **LIMITS[limit])
    go(tmp_path, resume="last", every_n_steps=0, **LIMITS[limit])
    assert_same_end(references[limit], tmp_path, kill, checkpointed=(kill - 1) // 8 * 8)


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_a_run_ended_by_max_steps_goes_on(references, tmp_path, steps):
    go(tmp_path, max_steps=steps)
    go(tmp_path, resume="last", max_steps=11)
    assert_same_end(references["max_steps"], tmp_path, 2 * steps, checkpointed=2 * steps)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_ended_by_max_epochs_goes_on(references, tmp_path, epochs):
    go(tmp_path, max_epochs=epochs)
    go(tmp_path, resume="last", max_epochs=3)
    assert_same_end(references["max_epochs"], tmp_path, 8 * epochs, checkpointed=8 * epochs)


@pytest.mark.parametrize("limit", ["max_epochs", "max_steps"])
def test_T44_a_complete_run_says_so(references, limit):
    root = references[limit]
    trained = len(log(root))
    go(root, expect=1, resume="last", **LIMITS[limit])
    assert f"trainer.{limit}" in (root / "out.txt").read_text()
    assert len(log(root)) == trained
