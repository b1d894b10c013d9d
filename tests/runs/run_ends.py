"""Compares how runs ended: whole checkpoints, logged values, exports."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch

from roll_lightning.callbacks.checkpoint import complete_checkpoints

TIMES = ("time/", "system/actor_infer/response/tps")
# Lightning counts these from where it resumed; it reads their totals only.
COUNTERS = re.compile(r"/epoch_loop\.(scheduler_progress|automatic_optimization\.optim_progress)/.*current")


def last_state(root: Path) -> dict[str, Any]:
    """The newest complete checkpoint."""
    return torch.load(complete_checkpoints(root / "checkpoints")[-1], weights_only=True)


def weights(root: Path) -> dict[str, torch.Tensor]:
    return last_state(root)["state_dict"]


def assert_same_state(found: Any, expected: Any, place: str = "") -> None:
    """Equal to the bit in all that a checkpoint holds, but for seconds."""
    if any(time in place for time in TIMES) or COUNTERS.search(place):
        return
    assert type(found) is type(expected), place
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            assert_same_state(found[key], value, f"{place}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_same_state(*pair, f"{place}/{number}")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), place
    else:
        assert found == expected, place


def logged(root: Path, attempt: int | None = None) -> dict[tuple[int, str], float]:
    """Logged values by step and name; of all attempts, which must agree, or of one."""
    values: dict[tuple[int, str], float] = {}
    for path in sorted((root / "logs").glob("attempt=*.jsonl" if attempt is None else f"attempt={attempt}.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while writing it
            step, metrics = json.loads(line)
            for name, value in metrics.items():
                if not name.startswith(TIMES):
                    assert not math.isnan(value), name
                    assert values.setdefault((step, name), value) == value, (path.name, step, name)
    return values


def assert_same_end(reference: Path, root: Path, lost_steps: set[int] = frozenset()) -> None:
    """Same last checkpoint, same logged values, same export.

    A kill between a checkpoint at an epoch's end and Lightning's own logging of that epoch loses the epoch's row, and
    nothing else; ``lost_steps`` are the steps for which that may have happened.
    """
    assert_same_state(last_state(root), last_state(reference))
    found, expected = logged(root), logged(reference)
    assert {k: v for k, v in expected.items() if k in found} == found
    missing = {step for step, _ in expected.keys() - found.keys()}
    assert missing <= lost_steps, missing
    assert_same_export(root)


def assert_same_export(root: Path) -> None:
    """``transformers`` loads the exported folder, with the weights of the last checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert sorted(path.name for path in root.glob("hf*")) == ["hf"]
    model = AutoModelForCausalLM.from_pretrained(root / "hf")
    exported = {f"policy.hf.{name}": value for name, value in model.state_dict().items()}
    assert_same_state(exported, dict(weights(root)))
    assert AutoTokenizer.from_pretrained(root / "hf")("12=")["input_ids"]
