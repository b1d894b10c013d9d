"""Rollouts for the reward tests, and rewards that misbehave on a response that says so."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.rewards import RewardPool

HANG = "a" * 40 + "b"  # takes the pattern (a+)+$ longer than anyone waits


def rollout(text: str, answer: object = "42", tokens: int = 3, prompt: str = "p0", sample: int = 0) -> Rollout:
    return Rollout(
        prompt=Prompt(id=prompt, token_ids=(1, 2), text="6*7=", answer=answer),
        group=0,
        sample=sample,
        token_ids=[1, 2] + [5] * tokens,
        loss_mask=[0, 0] + [1] * tokens,
        logprobs=[0.0, 0.0] + [-0.5] * tokens,
        text=text,
        finish_reason="stop",
        weight_version=(0, 0),
    )


def rollouts(*texts: str) -> list[Rollout]:
    return [rollout(text, prompt=f"p{number}", sample=number) for number, text in enumerate(texts)]


def values(pool: RewardPool, batch: Sequence[Rollout]) -> dict[str, list[float | None]]:
    """What each reward gives the rollouts that it serves, in their order."""
    columns: dict[str, list[float | None]] = {}
    for verdicts in pool.score(batch):
        for name, verdict in verdicts.items():
            columns.setdefault(name, []).append(verdict.value)
    return columns


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie of another parent still has a number.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if not alive(pid):
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def text_length(rollouts: Sequence[Rollout]) -> list[float]:
    return [float(len(r.text)) for r in rollouts]


def on_command(rollouts: Sequence[Rollout]) -> object:
    """Does what the one response says; else gives its length."""
    (text,) = [r.text for r in rollouts]
    if text == "raise":
        raise ValueError("boom\nsecond line")
    if text == "exit":
        sys.exit(3)
    if text == "die":
        os._exit(3)
    if text == "segfault":
        ctypes.string_at(0)
    if text == "sleep":
        time.sleep(3600)
    if text == "stop":
        os.kill(os.getpid(), 19)
    answers = {
        "two": [1.0, 2.0],
        "none": [],
        "nan": [float("nan")],
        "inf": [float("inf")],
        "huge": [10**400],
        "string": ["0.5"],
        "bare": 0.5,
        "word": "x",
        "dict": {"score": 1.0},
        "unscored": [None],
        "true": [True],
    }
    return answers.get(text, [float(len(text))])


def writes_pid_then_hangs(rollouts: Sequence[Rollout], folder: str) -> list[float]:
    """Starts a child, notes its process id and its own, and sleeps."""
    child = subprocess.Popen(["sleep", "3600"])
    Path(folder, "child").write_text(str(child.pid))
    Path(folder, "worker.tmp").write_text(str(os.getpid()))
    os.rename(Path(folder, "worker.tmp"), Path(folder, "worker"))
    time.sleep(3600)
    return [0.0]


def torch_is_loaded(rollouts: Sequence[Rollout]) -> list[float]:
    return [float("torch" in sys.modules)]


def math_verify_is_loaded(rollouts: Sequence[Rollout]) -> list[float]:
    return [float("math_verify" in sys.modules)]


def ignores_interrupt(rollouts: Sequence[Rollout]) -> list[float]:
    os.kill(os.getpid(), 2)
    return [1.0]


def worker_pid(rollouts: Sequence[Rollout]) -> list[float]:
    time.sleep(0.05)
    return [float(os.getpid())]


def starts_processes(rollouts: Sequence[Rollout]) -> list[float]:
    import multiprocessing

    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    process.start()
    process.join(30)
    return [float(process.exitcode == 0)]


class Stateful:
    """A callable object without a name."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [self.factor * len(r.text) for r in rollouts]


class BadInProcess:
    """Trusted, wrongly: raises for the whole call when one response is bad."""

    in_process = True

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        if any(r.text == "bad" for r in rollouts):
            raise KeyError("bad")
        return [1.0 for _ in rollouts]


constant = 3.0
