"""Real runs killed at random moments and resumed end as if nothing had happened, to the bit."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runs.run_ends import assert_same_end, last_state
from runs.tiny_run import make_task, run_rlvr, run_sft
from spine.forked import run_forked

from roll_lightning.callbacks.checkpoint import complete_checkpoints

RUNS: dict[str, Callable[..., None]] = {"sft": run_sft, "rlvr": run_rlvr}
LIMITS = {"max_epochs": {"max_epochs": 3}, "max_steps": {"max_epochs": -1, "max_steps": 10}}
FINISHED = "the run is complete"
ONLY_INCOMPLETE = "has only incomplete checkpoints (step=1.ckpt"


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def reference(task, tmp_path_factory) -> Callable[..., tuple[Path, float]]:
    """An uninterrupted run and its seconds."""
    made: dict[tuple, tuple[Path, float]] = {}

    def get(kind: str, limit: str, ranks: int = 1) -> tuple[Path, float]:
        if (kind, limit, ranks) not in made:
            root = tmp_path_factory.mktemp(f"{kind}-{limit}-{ranks}")
            started = time.monotonic()
            codes = run_forked(lambda: start(task, root, kind, limit, ranks), root / "out.txt", ranks)
            assert codes == [0] * ranks, (root / "out.txt").read_text()[-3000:]
            made[kind, limit, ranks] = root, time.monotonic() - started
        return made[kind, limit, ranks]

    return get


def start(task: Path, root: Path, kind: str, limit: str, ranks: int = 1, attempt: int = 0) -> None:
    settings = {"devices": ranks, "strategy": "ddp" if ranks > 1 else "auto"}
    RUNS[kind](task, root, attempt=attempt, **settings, **LIMITS[limit])


def kill_and_resume(task: Path, root: Path, kind: str, limit: str, delays: list[float], ranks: int = 1) -> set[int]:
    """Attempts that are killed after the delays, then one that may finish; the steps at which a row may be lost."""
    boundaries = set()
    for attempt, delay in enumerate([*delays, None]):
        out = root / f"out{attempt}.txt"
        codes = run_forked(
            lambda attempt=attempt: start(task, root, kind, limit, ranks, attempt), out, ranks, kill_after=delay
        )
        text = out.read_text()
        if FINISHED in text:
            assert delays, "an attempt before had everything done, and was killed on its way out"
            break
        if ONLY_INCOMPLETE in text:
            # Killed while writing the very first: the message says to remove it.
            shutil.rmtree(root / "checkpoints")
            codes = run_forked(lambda attempt=attempt: start(task, root, kind, limit, ranks, attempt), out, ranks)
        assert codes in ([0] * ranks, [-9] * ranks), text[-3000:]
        if codes == [0] * ranks:
            break
        if complete_checkpoints(root / "checkpoints"):
            state = last_state(root)
            boundaries.add(state["global_step"] - 1)
    return boundaries


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kind", RUNS)
def test_T44_T45_killed_at_random_moments(task, reference, tmp_path, kind, limit, seed):
    whole, seconds = reference(kind, limit)
    rng = random.Random(f"{kind} {limit} {seed}")
    delays = [rng.uniform(0.1, 0.9) * seconds for _ in range(3)]
    lost = kill_and_resume(task, tmp_path, kind, limit, delays)
    assert_same_end(whole, tmp_path, lost)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("kind", RUNS)
def test_T44_T45_two_ranks_killed(task, reference, tmp_path, kind, share):
    whole, seconds = reference(kind, "max_epochs", 2)
    lost = kill_and_resume(task, tmp_path, kind, "max_epochs", [share * seconds], ranks=2)
    assert_same_end(whole, tmp_path, lost)
