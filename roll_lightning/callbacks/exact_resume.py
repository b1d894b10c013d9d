"""Makes any checkpoint resume exactly: random states of every rank, and a loop position at a window's edge."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from roll_lightning.data.loader import PlannedLoader
from roll_lightning.errors import CheckpointError

RandomState = dict[str, Any]


class ExactResume(Callback):
    """Saves what Lightning leaves out and puts the loops where they can go on.

    Lightning keeps no random states, resumes an epoch's last batch into an epoch without batches, and knows nothing
    of accumulation windows. So each checkpoint gets the random states of all ranks, and its loop progress is written
    as "``n`` whole windows of epoch ``e`` are done", or "epoch ``e + 1`` has not begun" after the last of them. A
    checkpoint taken inside a window goes on at the window's start. ``BaseModule`` adds this callback by itself.
    """

    def __init__(self) -> None:
        self._restored: RandomState | None = None
        self._window_start: RandomState | None = None
        self._before_validation: RandomState | None = None
        self._resumed = False

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Add the random states and rewrite the loop progress."""
        inside = self._window_start if _inside_window(trainer) else None
        checkpoint["random_states"] = _gather(inside or random_state())
        position = resume_position(trainer)
        if position is not None:
            _write_position(checkpoint["loops"]["fit_loop"], *position, batches=int(trainer.num_training_batches))

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Keep this rank's random state for the start of training.

        Raises:
            CheckpointError: the run has nothing left to train.
        """
        if trainer.state.fn != "fit":
            return
        _refuse_finished(trainer, checkpoint)
        states = checkpoint.get("random_states", [])
        if trainer.global_rank < len(states):
            self._restored = states[trainer.global_rank]
        self._resumed = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Set the random state of the checkpoint."""
        if self._restored is not None:
            set_random_state(self._restored)
            self._restored = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Remember the random state at a window's start, and let loggers count optimizer steps again."""
        if self._resumed:
            trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step
            self._resumed = False
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._window_start = random_state()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Keep validation from changing the random numbers of training."""
        self._before_validation = random_state()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Take up the random numbers of training again."""
        if self._before_validation is not None:
            set_random_state(self._before_validation)
            self._before_validation = None


def random_state() -> RandomState:
    """The random states of Python, NumPy and torch as tensors and numbers (a checkpoint is loaded weights-only)."""
    version, internal, gauss = random.getstate()
    array: Any = np.random.get_state(legacy=False)
    state: RandomState = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "internal": torch.tensor(internal), "gauss": gauss},
        "numpy": {
            "keys": torch.tensor(array["state"]["key"].astype(np.int64)),
            "position": int(array["state"]["pos"]),
            "has_gauss": int(array["has_gauss"]),
            "cached": float(array["gauss"]),
        },
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: RandomState) -> None:
    """The inverse of :func:`random_state`."""
    python, array = state["python"], state["numpy"]
    torch.set_rng_state(state["torch"].cpu().to(torch.uint8))
    random.setstate((python["version"], tuple(python["internal"].tolist()), python["gauss"]))
    keys = array["keys"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, array["position"], array["has_gauss"], array["cached"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu().to(torch.uint8))


def _gather(state: RandomState) -> list[RandomState]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [state]
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, state)
    return states


def resume_position(trainer: Trainer) -> tuple[int, int] | None:
    """Where a checkpoint that is taken now goes on: an epoch and its finished micro-batches, whole windows of them.

    ``None`` with a loader that is not ours, or one that has not begun an epoch in this process.
    """
    loader = trainer.train_dataloader
    if not isinstance(loader, PlannedLoader) or loader.current_epoch is None:
        return None
    done = trainer.fit_loop.epoch_loop.batch_progress.current.processed // loader.accumulate * loader.accumulate
    # trainer.limit_train_batches may end an epoch before the loader does.
    return (loader.current_epoch, done) if done < trainer.num_training_batches else (loader.current_epoch + 1, 0)


def _inside_window(trainer: Trainer) -> bool:
    return trainer.fit_loop.epoch_loop.batch_progress.current.processed % trainer.accumulate_grad_batches != 0


def _write_position(fit_loop: dict[str, Any], epoch: int, done: int, batches: int) -> None:
    """Write a position into the progress of the loops and the state of the loader.

    Args:
        fit_loop: the state of Lightning's fit loop.
        epoch: which the run goes on with.
        done: its finished micro-batches.
        batches: micro-batches of every epoch.
    """
    started = epoch + 1 if done else epoch
    counts = ("ready", "started", "processed", "completed")
    epochs = dict(zip(counts, (started, started, epoch, epoch), strict=True))
    fit_loop["epoch_progress"] = {"total": dict(epochs), "current": dict(epochs)}
    progress = fit_loop["epoch_loop.batch_progress"]
    progress["total"] = dict.fromkeys(counts, epoch * batches + done)
    progress["current"] = dict.fromkeys(counts, done)
    progress["is_last_batch"] = False
    fit_loop["combined_loader"] = [{"delivered": done}]
    for val_progress in fit_loop["epoch_loop.val_loop.batch_progress"].values():
        if isinstance(val_progress, dict):
            val_progress.update(dict.fromkeys(val_progress, 0))


def _refuse_finished(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    steps = checkpoint["global_step"]
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= epochs:
        raise CheckpointError(
            f"the run is complete: {epochs} epochs are trained and trainer.max_epochs is {trainer.max_epochs}; "
            f"raise trainer.max_epochs to go on, or start a new run in another trainer.default_root_dir"
        )
    if 0 <= trainer.max_steps <= steps:
        raise CheckpointError(
            f"the run is complete: {steps} optimizer steps are done and trainer.max_steps is {trainer.max_steps}; "
            f"raise trainer.max_steps to go on, or start a new run in another trainer.default_root_dir"
        )
