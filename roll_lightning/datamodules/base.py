"""The base of every DataModule: checks the trainer, makes the planned loader, and guards a resume."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from roll_lightning.data.batch import TokenBatch, WindowTotals
from roll_lightning.data.loader import PlannedLoader
from roll_lightning.data.planner import BatchPlanner, Rows, Window
from roll_lightning.errors import CheckpointError, ConfigError
from roll_lightning.strategies.scale import data_parallel_rank, data_parallel_size


class PlannedDataModule(LightningDataModule):
    """Gives each rank its planned micro-batches.

    Args:
        batch_size: rows per optimizer step over all ranks.
        max_tokens_per_micro_batch: longest micro-batch in padded tokens; ``None`` sets no limit.
        seed: of every shuffle; ``None`` takes the run's (``seed_everything``), else 0.

    Raises:
        ConfigError: at set-up, for trainer settings under which loss or order could not be exact.
    """

    def __init__(self, batch_size: int, max_tokens_per_micro_batch: int | None = None, seed: int | None = None) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.loader: PlannedLoader | None = None

    @abstractmethod
    def windows_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""

    @abstractmethod
    def plan(self, epoch: int) -> Sequence[Window]:
        """The windows of an epoch; called when its first batch is fetched."""

    @abstractmethod
    def collate(self, rows: Rows, window: WindowTotals) -> TokenBatch:
        """A micro-batch from its rows; no rows make a filler of weight zero."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the data changes; a run goes on only with the data that it began with."""

    @property
    def attached_trainer(self) -> Trainer:
        """The trainer.

        Raises:
            ConfigError: there is none yet.
        """
        if self.trainer is None:
            raise ConfigError(f"{type(self).__name__} has no trainer yet; pass it to trainer.fit(datamodule=...)")
        return self.trainer

    def setup(self, stage: str) -> None:
        """Check what the trainer would do to the batches."""
        if stage == "fit":
            self.check_settings()

    def check_settings(self) -> None:
        """Find settings of training that contradict each other, before any row is read.

        Raises:
            ConfigError: two do; says what to set.
        """
        check_trainer(self.attached_trainer)
        # It checks its numbers when it is made.
        _ = self.planner

    @property
    def planner(self) -> BatchPlanner:
        """The planner for this trainer's ranks and accumulation."""
        trainer = self.attached_trainer
        return BatchPlanner(
            self.batch_size,
            data_parallel_size(trainer),
            trainer.accumulate_grad_batches,
            self.max_tokens_per_micro_batch,
        )

    def train_dataloader(self) -> PlannedLoader:
        """The loader of this rank."""
        trainer = self.attached_trainer
        self.loader = PlannedLoader(
            windows=self.windows_per_epoch(),
            accumulate=trainer.accumulate_grad_batches,
            rank=data_parallel_rank(trainer),
            batch_size=self.batch_size,
            epoch=lambda: trainer.current_epoch,
            plan=self.plan,
            collate=self.collate,
        )
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        """What must not change while a run goes on."""
        return {"fingerprint": self.fingerprint(), **self._fixed_settings()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse to go on with other data.

        Raises:
            CheckpointError: names what differs.
        """
        if self.attached_trainer.state.fn != "fit":
            return
        fixed = {"fingerprint": self.fingerprint(), **self._fixed_settings()}
        for key, now in fixed.items():
            if state_dict[key] != now:
                what = "the training data" if key == "fingerprint" else key
                raise CheckpointError(
                    f"{what} changed since the checkpoint was written: it was {state_dict[key]}, now it is {now}; "
                    f"resume with what the run began with, or start a new run in another trainer.default_root_dir"
                )

    def _fixed_settings(self) -> dict[str, Any]:
        return {
            "data.batch_size": self.batch_size,
            "data.seed": self.seed,
            "trainer.accumulate_grad_batches": self.attached_trainer.accumulate_grad_batches,
        }


def check_trainer(trainer: Trainer) -> None:
    """Refuse trainer settings that would cut or repeat planned batches.

    Raises:
        ConfigError: names the setting and what to set.
    """
    accumulate = trainer.accumulate_grad_batches
    if getattr(trainer._accelerator_connector, "use_distributed_sampler", False):
        raise ConfigError(
            "trainer.use_distributed_sampler is true, but rows are shared out over ranks by the batch planner; "
            "add use_distributed_sampler=False to Trainer(...)"
        )
    if trainer.overfit_batches:
        raise ConfigError(
            f"trainer.overfit_batches is {trainer.overfit_batches}; it would repeat single micro-batches: "
            "use a smaller data file, or trainer.limit_train_batches"
        )
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks):
        raise ConfigError(
            "GradientAccumulationScheduler changes accumulate_grad_batches during the run; the batch planner needs one "
            "number: remove it and set trainer.accumulate_grad_batches"
        )
    limit = trainer.limit_train_batches
    if isinstance(limit, int) and limit % accumulate:
        raise ConfigError(
            f"trainer.limit_train_batches {limit} is no multiple of trainer.accumulate_grad_batches {accumulate}; "
            f"set it to {limit // accumulate * accumulate or accumulate}"
        )
    if isinstance(limit, float) and limit != 1.0:
        raise ConfigError(
            f"trainer.limit_train_batches {limit} is a share; give a whole number of micro-batches, a multiple of "
            f"trainer.accumulate_grad_batches {accumulate}"
        )
