"""Rollouts on disk: written by one run, trained on by another without an engine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.errors import DataError


def rollout_file(folder: str, iteration: int) -> Path:
    """Where the rollouts of an iteration lie."""
    return Path(folder) / f"iteration={iteration:06d}.jsonl"


def write_rollouts(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write rollouts as JSONL, whole or not at all.

    Raises:
        DataError: the folder cannot be written, or its disk is full.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            for rollout in rollouts:
                file.write(json.dumps(asdict(rollout), ensure_ascii=False) + "\n")
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DataError(
            f"rollout.record_dir {path.parent} cannot be written: {error.strerror}; free space, or choose another "
            f"folder, and resume with --ckpt_path last"
        ) from error


def read_rollouts(folder: str, iteration: int) -> list[Rollout]:
    """Read the rollouts of an iteration.

    Raises:
        DataError: the file is missing or a line is not a rollout.
    """
    path = rollout_file(folder, iteration)
    if not path.is_file():
        have = len(list(Path(folder).glob("iteration=*.jsonl"))) if Path(folder).is_dir() else 0
        raise DataError(
            f"rollout.replay_dir {folder} has no rollouts of iteration {iteration} ({have} iterations are recorded); "
            f"set trainer.max_epochs to {have} or record more with rollout.record_dir"
        )
    rollouts = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                rollouts.append(_rollout(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(f"{path}:{number} is not a recorded rollout: {error}") from error
    return rollouts


def _rollout(row: dict) -> Rollout:
    prompt = row.pop("prompt")
    prompt["token_ids"] = tuple(prompt["token_ids"])
    prompt["messages"] = tuple(prompt["messages"])
    row["weight_version"] = tuple(row["weight_version"])
    return Rollout(prompt=Prompt(**prompt), **row)
