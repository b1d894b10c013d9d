"""Writes the rollouts of ``predict`` to a file."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch import Callback, LightningModule, Trainer

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError, DataError

# Batch, place of the prompt in its rank's share, rank, sample. A rank's share of a batch is every ranks-th prompt, so
# this is the order of the prompts.
Place = tuple[int, int, int, int]


class PredictionWriter(Callback):
    """Writes one JSON object per rollout, in the order of the prompts; the file appears when it is whole.

    Each has ``prompt_id``, ``prompt``, ``group`` (number of the prompt), ``sample``, ``token_ids`` (of prompt and
    response), ``response``, ``finish_reason``, ``score``, ``reward`` and ``components``. Every rank writes its part to
    the same folder and rank 0 merges the parts; no rank keeps rollouts in memory.

    Args:
        path: the file; ``None`` takes ``<trainer.default_root_dir>/predictions.jsonl``.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self.written = 0
        self._part: TextIO | None = None

    def file(self, trainer: Trainer) -> Path:
        """Where the rollouts go."""
        return Path(self.path or Path(trainer.default_root_dir) / "predictions.jsonl")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Open this rank's part."""
        part = _part_of(self.file(trainer), trainer.global_rank)
        part.parent.mkdir(parents=True, exist_ok=True)
        self._part = part.open("w", encoding="utf-8")

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,
        dataloader_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Write a batch of rollouts.

        Raises:
            ConfigError: the module predicts something else.
            DataError: the disk is full.
        """
        if not isinstance(outputs, list) or not all(isinstance(rollout, Rollout) for rollout in outputs):
            raise ConfigError(
                f"{type(pl_module).__name__}.predict_step gives {type(outputs).__name__}, not list[Rollout]; "
                f"write it with a BasePredictionWriter of your own in trainer.callbacks"
            )
        assert self._part is not None, "opened when predicting starts"
        try:
            for rollout in outputs:
                place: Place = (batch_idx, rollout.group, trainer.global_rank, rollout.sample)
                self._part.write(json.dumps([place, _row(rollout)], ensure_ascii=False) + "\n")
            self._part.flush()
        except OSError as error:
            raise DataError(
                f"{self._part.name} cannot be written: {error.strerror}; free space and run again"
            ) from error

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Merge the parts."""
        assert self._part is not None, "opened when predicting starts"
        self._part.close()
        trainer.strategy.barrier("predictions written")
        if trainer.is_global_zero:
            self.written = _merge(self.file(trainer), trainer.world_size)
        trainer.strategy.barrier("predictions merged")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Leave no part behind."""
        if self._part is not None:
            # Closing may fail on a full disk, which is then what is being reported already.
            with contextlib.suppress(OSError):
                self._part.close()
            Path(self._part.name).unlink(missing_ok=True)


def _part_of(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.name}.rank={rank}.partial")


def _row(rollout: Rollout) -> dict[str, Any]:
    return {
        "prompt_id": rollout.prompt.id,
        "prompt": rollout.prompt.text,
        "sample": rollout.sample,
        "token_ids": rollout.token_ids,
        "response": rollout.text,
        "finish_reason": rollout.finish_reason,
        "score": rollout.score,
        "reward": rollout.reward,
        "components": rollout.components,
    }


def _merge(path: Path, ranks: int) -> int:
    """One file from the parts of all ranks; gives the number of its lines."""
    parts = [_part_of(path, rank) for rank in range(ranks)]
    missing = [str(part) for part in parts if not part.is_file()]
    if missing:
        raise DataError(f"{', '.join(missing)} is not here; all ranks must share the folder {path.parent}")
    partial = path.with_name(path.name + ".partial")
    written, group, last = 0, -1, None
    try:
        with partial.open("w", encoding="utf-8") as target:
            for place, row in heapq.merge(*map(_read, parts), key=lambda item: item[0]):
                if place[:3] != last:
                    group, last = group + 1, place[:3]
                ordered = {"prompt_id": row.pop("prompt_id"), "prompt": row.pop("prompt"), "group": group, **row}
                target.write(json.dumps(ordered, ensure_ascii=False) + "\n")
                written += 1
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(f"{path} cannot be written: {error.strerror}; free space and run again") from error
    for part in path.parent.glob(f"{path.name}.rank=*.partial"):
        part.unlink()
    return written


def _read(part: Path) -> Iterator[tuple[list[int], dict[str, Any]]]:
    with part.open(encoding="utf-8") as lines:
        for line in lines:
            place, row = json.loads(line)
            yield place, row
