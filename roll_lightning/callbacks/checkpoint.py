"""Checkpoints of a run: written whole or not at all, the last few kept, found again by ``ckpt_path="last"``."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from roll_lightning.callbacks.disk import room_on_disk
from roll_lightning.errors import CheckpointError, ConfigError
from roll_lightning.strategies.together import together

MARKER = ".complete"
PARTIAL = ".partial"
NAME = re.compile(r"^step=(\d+)\.ckpt$")


class RunCheckpoint(ModelCheckpoint):
    """Saves ``step=<n>.ckpt`` in one fixed folder.

    A checkpoint is written beside its place, flushed to disk, renamed, and marked complete last; a kill or a full disk
    at any moment leaves the earlier ones untouched. ``ckpt_path="last"`` takes the newest complete one: an empty folder
    starts fresh, a folder with nothing but incomplete ones is an error. A step is saved when its metrics are logged and
    its validation is over: at the start of the next batch, or at the epoch's end.

    Args:
        dirpath: folder of the checkpoints; ``None`` takes ``<trainer.default_root_dir>/checkpoints``.
        every_n_steps: optimizer steps between checkpoints; 0 saves at the end of epochs only.
        every_n_epochs: epochs (in RL: rollout iterations) between checkpoints; 0 saves by steps only.
        keep_last: how many of the newest are kept; 0 keeps all.
    """

    def __init__(
        self, dirpath: str | None = None, every_n_steps: int = 0, every_n_epochs: int = 1, keep_last: int = 2
    ) -> None:
        for name, value in (
            ("every_n_steps", every_n_steps),
            ("every_n_epochs", every_n_epochs),
            ("keep_last", keep_last),
        ):
            if value < 0:
                raise ConfigError(f"checkpoint.{name} is {value}; it must be 0 or more")
        super().__init__(dirpath=dirpath, save_top_k=-1, save_on_train_epoch_end=True)
        self.every_n_steps = every_n_steps
        self.every_epochs = every_n_epochs
        self.keep_last = keep_last
        self._saved_step: int | None = None
        self._step_due = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Fix the folder."""
        self.dirpath = str(self._folder(trainer))

    def _folder(self, trainer: Trainer) -> Path:
        return Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints").absolute()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Refuse a folder with checkpoints of later steps: ``last`` would find those, whatever this run does.

        Raises:
            CheckpointError: names the newest of them.
        """
        folder = self._folder(trainer)
        later = [path for path in complete_checkpoints(folder) if step_of(path) > trainer.global_step]
        if later:
            raise CheckpointError(
                f"{folder} has checkpoints beyond step {trainer.global_step}, where this run starts (the newest is "
                f"{later[-1].name}); go on from there with --ckpt_path last, choose another trainer.default_root_dir, "
                f"or remove them"
            )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:  # noqa: ARG002
        """Note every ``every_n_steps``-th optimizer step."""
        stepped = (trainer.fit_loop.epoch_loop.batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stepped and self.every_n_steps and trainer.global_step % self.every_n_steps == 0:
            self._step_due = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:  # noqa: ARG002
        """Save the step that was due: a resumed run repeats neither its logging nor its validation."""
        if self._step_due:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Save after every ``every_n_epochs``-th epoch, and the step that was due on its last batch."""
        epoch_due = self.every_epochs and (trainer.current_epoch + 1) % self.every_epochs == 0
        if epoch_due or self._step_due:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Save the end of the run."""
        if trainer.global_step > 0:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing: validation does not decide when to save."""

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Nothing: the newest complete checkpoint is where to go on."""

    def _save(self, trainer: Trainer) -> None:
        self._step_due = False
        if trainer.fast_dev_run or trainer.sanity_checking or self._saved_step == trainer.global_step:
            return
        path = self._folder(trainer) / f"step={trainer.global_step}.ckpt"
        self._save_checkpoint(trainer, str(path))
        self._saved_step = trainer.global_step

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        target = Path(filepath)
        partial = target.with_name(target.name + PARTIAL)
        if trainer.is_global_zero:
            target.parent.mkdir(parents=True, exist_ok=True)
            for old in (partial, target, marker(target)):
                _remove(old)
        trainer.strategy.barrier("checkpoint folder")
        contents = trainer._checkpoint_connector.dump_checkpoint(False)
        try:
            with room_on_disk(target.parent, target.name):
                together(lambda: trainer.strategy.save_checkpoint(contents, partial))
                facts = {"step": trainer.global_step, "epoch": trainer.current_epoch}
                together(lambda: _publish(partial, target, facts) if trainer.is_global_zero else None)
        except CheckpointError:
            if trainer.is_global_zero:
                _remove(partial)
            raise
        if trainer.is_global_zero:
            self._prune(target.parent)
        self.last_model_path = self.best_model_path = filepath
        self._last_global_step_saved = trainer.global_step
        trainer.strategy.barrier("checkpoint written")

    def _prune(self, folder: Path) -> None:
        for leftover in folder.glob(f"step=*{PARTIAL}"):
            _remove(leftover)
        if self.keep_last:
            for old in complete_checkpoints(folder)[: -self.keep_last]:
                _remove(marker(old))
                _remove(old)

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        newest = newest_checkpoint(self._folder(trainer))
        return {str(newest)} if newest else set()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the folder itself says what is there."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""


def marker(checkpoint: Path) -> Path:
    """The file that says that a checkpoint is whole."""
    return checkpoint.with_name(checkpoint.name + MARKER)


def step_of(checkpoint: Path) -> int:
    """The optimizer step in a checkpoint's name, -1 for another name."""
    match = NAME.match(checkpoint.name)
    return int(match[1]) if match else -1


def complete_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints of a folder, the newest last."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if step_of(path) >= 0 and marker(path).is_file()]
    return sorted(found, key=step_of)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint; ``None`` for a folder without any.

    Raises:
        CheckpointError: the folder has incomplete ones only.
    """
    complete = complete_checkpoints(folder)
    if complete:
        return complete[-1]
    leftovers = sorted(path.name for path in folder.glob("*.ckpt*")) if folder.is_dir() else []
    if leftovers:
        raise CheckpointError(
            f"{folder} has only incomplete checkpoints ({', '.join(leftovers)}); remove them to start from the "
            f"beginning, or choose another trainer.default_root_dir"
        )
    rank_zero_info(f"No checkpoint in {folder}: starting from the beginning.")
    return None


def _publish(partial: Path, target: Path, facts: dict[str, Any]) -> None:
    """Flush, rename, mark; in this order, so that a marker always means a whole checkpoint."""
    for path in [partial, *partial.rglob("*")]:
        _fsync(path)
    os.replace(partial, target)
    _fsync(target.parent)
    marking = marker(target).with_name(marker(target).name + PARTIAL)
    marking.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    _fsync(marking)
    os.replace(marking, marker(target))
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
