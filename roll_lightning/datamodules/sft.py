"""Rows with prompts and answers to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from roll_lightning.data.batch import TokenBatch, WindowTotals, collate_tokens
from roll_lightning.data.loader import FixedLoader
from roll_lightning.data.planner import Rows, Window, permutation
from roll_lightning.data.tokenise import TokenisedRow, load_rows
from roll_lightning.datamodules.base import PlannedDataModule
from roll_lightning.errors import ConfigError
from roll_lightning.strategies.scale import data_parallel_rank, data_parallel_size


class SFTDataModule(PlannedDataModule):
    """JSONL rows of messages, or of prompt and completion.

    Args:
        train: JSONL with ``messages``, or ``prompt`` and ``completion``, in each row.
        val: the same for validation and testing; ``None`` for none.
        batch_size: rows per optimizer step over all ranks; the last step of an epoch may have fewer.
        max_length: longest row in tokens.
        overlong: what becomes of a longer row: ``"truncate"``, ``"drop"`` or ``"error"``; the first two are counted.
        val_batch_size: rows that are validated together on each rank.
        max_tokens_per_micro_batch: longest micro-batch in padded tokens; ``None`` sets no limit.
        seed: of the order of rows; ``None`` takes the run's.
    """

    def __init__(
        self,
        train: str | None = None,
        val: str | None = None,
        batch_size: int = 64,
        max_length: int = 2048,
        overlong: Literal["truncate", "drop", "error"] = "truncate",
        val_batch_size: int = 16,
        max_tokens_per_micro_batch: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(batch_size, max_tokens_per_micro_batch, seed)
        if val_batch_size < 1:
            raise ConfigError(f"data.val_batch_size is {val_batch_size}; it must be 1 or more")
        self.train, self.val = train, val
        self.max_length = max_length
        self.overlong = overlong
        self.val_batch_size = val_batch_size
        self.train_rows: list[TokenisedRow] = []
        self.val_rows: list[TokenisedRow] = []
        self._fingerprint: str | None = None

    def load_rows(self, file: str) -> list[TokenisedRow]:
        """Read and tokenise a file with the module's tokenizer."""
        tokenizer = self.attached_trainer.lightning_module.tokenizer
        dataset = load_rows(file, tokenizer, max_length=self.max_length, overlong=self.overlong)
        rank_zero_info(f"{file}: {dataset.summary()}")
        return dataset.rows

    def setup(self, stage: str) -> None:
        """Read the rows and check that every window fits the token budget."""
        super().setup(stage)
        if stage == "fit":
            if not self.train:
                raise ConfigError("data.train is not set; give a JSONL file of training rows")
            self.train_rows = self.train_rows or self.load_rows(self.train)
            self.planner.check_fits([len(row.input_ids) for row in self.train_rows])
        if stage in ("validate", "test") and not self.val:
            raise ConfigError(f"data.val is not set, so there is nothing to {TrainerFn(stage).value}")
        if self.val:
            self.val_rows = self.val_rows or self.load_rows(self.val)

    def windows_per_epoch(self) -> int:
        """Optimizer steps of one pass over the rows."""
        return self.planner.windows_per_epoch(len(self.train_rows))

    def plan(self, epoch: int) -> Sequence[Window]:
        """One pass over the rows in this epoch's order."""
        lengths = [len(row.input_ids) for row in self.train_rows]
        loss_tokens = [sum(row.loss_mask) for row in self.train_rows]
        return list(self.planner.plan(lengths, loss_tokens, permutation(len(lengths), self.seed, "rows", epoch)))

    def collate(self, rows: Rows, window: WindowTotals) -> TokenBatch:
        """Training rows as a micro-batch."""
        return collate(self.train_rows, rows, window)

    def val_dataloader(self) -> FixedLoader | list[FixedLoader]:
        """This rank's validation rows, each row on exactly one rank; ranks with fewer rows get fillers."""
        if not self.val_rows:
            return []
        trainer = self.attached_trainer
        rank, ranks = data_parallel_rank(trainer), data_parallel_size(trainer)
        order = sorted(range(len(self.val_rows)), key=lambda row: len(self.val_rows[row].input_ids))
        step = self.val_batch_size * ranks
        starts = range(0, len(order), step)
        return FixedLoader([collate(self.val_rows, tuple(order[s : s + step][rank::ranks])) for s in starts])

    def test_dataloader(self) -> FixedLoader | list[FixedLoader]:
        """The validation rows again."""
        return self.val_dataloader()

    def fingerprint(self) -> str:
        """Of the training rows."""
        from roll_lightning.data.fingerprint import fingerprint_rows

        if self._fingerprint is None:
            self._fingerprint = fingerprint_rows(self.train_rows)
        return self._fingerprint


def collate(dataset: Sequence[TokenisedRow], rows: Rows, window: WindowTotals | None = None) -> TokenBatch:
    """Some rows of a dataset as a right-padded batch."""
    return collate_tokens([dataset[row].input_ids for row in rows], [dataset[row].loss_mask for row in rows], window)
