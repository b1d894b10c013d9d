"""Rows with prompts and answers to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from roll_lightning.data.batch import TokenBatch, WindowTotals, collate_tokens
from roll_lightning.data.columns import Form
from roll_lightning.data.jsonl import Row
from roll_lightning.data.loader import FixedLoader
from roll_lightning.data.planner import Rows, Window, permutation
from roll_lightning.data.sources import RowSource, read_rows, source_name
from roll_lightning.data.split import check_fraction, split_rows
from roll_lightning.data.supervised import Turns
from roll_lightning.data.tokenise import TokenisedRow, tokenise_rows
from roll_lightning.datamodules.base import PlannedDataModule
from roll_lightning.errors import ConfigError
from roll_lightning.strategies.scale import data_parallel_rank, data_parallel_size


class SFTDataModule(PlannedDataModule):
    """Rows to learn from: conversations, prompts with completions, instructions with outputs, or texts.

    A source of rows is a file (JSONL, JSON, CSV, Parquet), a folder, the name of a dataset on the hub, or a
    :class:`~roll_lightning.data.sources.RowSource`; see :func:`~roll_lightning.data.sources.read_rows`.

    Args:
        train: source of the training rows; of one with splits, ``train`` is read.
        val: the same for validation and testing; of one with splits, ``validation`` is read. ``None`` for none.
        batch_size: rows per optimizer step over all ranks; the last step of an epoch may have fewer.
        max_length: longest row in tokens.
        overlong: what becomes of a longer row: ``"truncate"``, ``"drop"`` or ``"error"``; the first two are counted.
        form: which columns to read, for rows that have those of several forms; ``None`` finds out.
        turns: loss on ``"all"`` assistant turns of a row, or on the ``"last"`` one.
        val_fraction: share of the rows of ``train`` to validate on instead of ``val``; they are not trained on.
        val_seed: of the choice of these rows. It is not the run's seed, so that runs with different seeds are
            validated on the same rows, and a later ``validate`` finds them again.
        val_batch_size: rows that are validated together on each rank.
        max_tokens_per_micro_batch: longest micro-batch in padded tokens; ``None`` sets no limit.
        seed: of the order of rows; ``None`` takes the run's.

    Raises:
        ConfigError: ``val_batch_size`` or ``val_fraction`` is out of range, or ``val_fraction`` stands beside ``val``.
    """

    def __init__(
        self,
        train: RowSource | str | None = None,
        val: RowSource | str | None = None,
        batch_size: int = 64,
        max_length: int = 2048,
        overlong: Literal["truncate", "drop", "error"] = "truncate",
        form: Form | None = None,
        turns: Turns = "all",
        val_fraction: float | None = None,
        val_seed: int = 0,
        val_batch_size: int = 16,
        max_tokens_per_micro_batch: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(batch_size, max_tokens_per_micro_batch, seed)
        if val_batch_size < 1:
            raise ConfigError(f"data.val_batch_size is {val_batch_size}; it must be 1 or more")
        if val_fraction is not None:
            check_fraction(val_fraction)
            if val:
                raise ConfigError(
                    f"data.val and data.val_fraction {val_fraction} are both set; keep one (the other: null)"
                )
        self.train, self.val = train or None, val or None
        self.max_length = max_length
        self.overlong = overlong
        self.form: Form | None = form
        self.turns: Turns = turns
        self.val_fraction, self.val_seed = val_fraction, val_seed
        self.val_batch_size = val_batch_size
        self.train_rows: list[TokenisedRow] = []
        self.val_rows: list[TokenisedRow] = []
        self._fingerprint: str | None = None

    def tokenise(self, rows: Sequence[Row], name: str) -> list[TokenisedRow]:
        """Tokenise rows with the module's tokenizer; ``name`` stands for them in the log."""
        tokenizer = self.attached_trainer.lightning_module.tokenizer
        dataset = tokenise_rows(
            rows, tokenizer, max_length=self.max_length, overlong=self.overlong, form=self.form, turns=self.turns
        )
        rank_zero_info(f"{name}: {dataset.summary()}")
        return dataset.rows

    def setup(self, stage: str) -> None:
        """Read the rows and check that every window fits the token budget."""
        super().setup(stage)
        if stage in ("validate", "test") and self.val is None and self.val_fraction is None:
            raise ConfigError(f"data.val is not set, so there is nothing to {TrainerFn(stage).value}")
        if self.val_fraction is not None and self.train is None:
            raise ConfigError("data.val_fraction is set, but data.train, of which it takes rows, is not")
        train, val = self._read(stage)
        if train:
            self.train_rows = self.tokenise(train, f"{source_name(self.train or '')} (train)")
            self.planner.check_fits([len(row.input_ids) for row in self.train_rows])
        if val:
            self.val_rows = self.tokenise(val, f"{source_name(self.val or self.train or '')} (validation)")

    def check_settings(self) -> None:
        """Find that there is nothing to train on; see the base."""
        super().check_settings()
        if self.train is None:
            raise ConfigError("data.train is not set; give a file, a folder or a hub name of training rows")

    def _read(self, stage: str) -> tuple[Sequence[Row], Sequence[Row]]:
        """Training and validation rows that this stage needs and that are not there yet."""
        train: Sequence[Row] = []
        val: Sequence[Row] = []
        needs_train = stage == "fit" and not self.train_rows
        needs_val = not self.val_rows
        if self.train is not None and (needs_train or (needs_val and self.val_fraction is not None)):
            train = read_rows(self.train)
            if self.val_fraction is not None:
                train, val = split_rows(train, self.val_fraction, self.val_seed)
        if self.val is not None and needs_val:
            val = read_rows(self.val, "validation")
        return train if needs_train else [], val if needs_val else []

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
