"""The batch planner: which rows make an optimizer window, and how a window is cut into micro-batches for each rank.

Every window has exactly ``accumulate_grad_batches`` micro-batches on every rank; where rows are missing, a micro-batch
is empty and the loader fills it with a row of weight zero, so that collectives stay aligned. Each window carries the
denominators of its loss over all ranks, so that loss and gradient do not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from roll_lightning.engines.base import derive_seed
from roll_lightning.errors import ConfigError

Rows = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """One optimizer step over all ranks.

    Args:
        index: its number within the epoch.
        micro_batches: rows of each micro-batch, ``micro_batches[rank][n]``; an empty one is filled with weight zero.
        tokens: loss tokens of the window over all ranks.
        sequences: rows with at least one loss token over all ranks.
    """

    index: int
    micro_batches: tuple[tuple[Rows, ...], ...]
    tokens: int
    sequences: int


@dataclass(frozen=True)
class BatchPlanner:
    """Cuts rows into windows and micro-batches.

    Args:
        batch_size: rows per optimizer step over all ranks.
        ranks: data-parallel ranks.
        accumulate: micro-batches per optimizer step and rank (``trainer.accumulate_grad_batches``).
        max_tokens: longest micro-batch in padded tokens (rows x longest row); ``None`` sets no limit.

    Raises:
        ConfigError: a number is not positive, or a window could never fill its micro-batches.
    """

    batch_size: int
    ranks: int = 1
    accumulate: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"data.batch_size is {self.batch_size}; it must be 1 or more")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"data.max_tokens_per_micro_batch is {self.max_tokens}; it must be 1 or more")
        slots = self.ranks * self.accumulate
        if self.max_tokens is None and self.batch_size < slots:
            raise ConfigError(
                f"data.batch_size {self.batch_size} is less than the {slots} micro-batches of an optimizer step "
                f"({self.ranks} ranks x trainer.accumulate_grad_batches {self.accumulate}); set data.batch_size to "
                f"{slots} or more, or trainer.accumulate_grad_batches to {max(1, self.batch_size // self.ranks)}"
            )

    def windows_per_epoch(self, rows: int) -> int:
        """Optimizer steps in one pass over ``rows`` rows; the last may be smaller."""
        return -(-rows // self.batch_size)

    def check_fits(self, lengths: Sequence[int]) -> None:
        """Refuse a token budget that some window of these rows could exceed.

        The worst window is that of the longest rows: the cut of a window needs no more micro-batches when any of its
        rows gets shorter.

        Raises:
            ConfigError: names ``accumulate_grad_batches`` that fits.
        """
        if self.max_tokens is None:
            return
        worst = sorted(lengths, reverse=True)[: self.batch_size]
        if worst and worst[0] > self.max_tokens:
            raise ConfigError(
                f"data.max_tokens_per_micro_batch {self.max_tokens} is less than the longest row ({worst[0]} tokens); "
                f"set it to {worst[0]} or more, or shorten the rows"
            )
        needed = -(-len(_cut(worst, self.max_tokens)) // self.ranks)
        if needed > self.accumulate:
            raise ConfigError(
                f"data.batch_size {self.batch_size} with data.max_tokens_per_micro_batch {self.max_tokens} needs "
                f"{needed} micro-batches per optimizer step and rank, but trainer.accumulate_grad_batches is "
                f"{self.accumulate}; set trainer.accumulate_grad_batches to {needed}"
            )

    def plan(self, lengths: Sequence[int], loss_tokens: Sequence[int], order: Sequence[int]) -> Iterator[Window]:
        """Cut one pass over the rows into windows.

        Rows without loss tokens take part in no micro-batch and in no denominator.

        Args:
            lengths: tokens of each row.
            loss_tokens: tokens of each row that carry loss.
            order: the row numbers in the order of this pass.
        """
        for index, start in enumerate(range(0, len(order), self.batch_size)):
            rows = [row for row in order[start : start + self.batch_size] if loss_tokens[row] > 0]
            rows.sort(key=lambda row: -lengths[row])
            parts = self._partition([lengths[row] for row in rows])
            cuts = [tuple(rows[a:b]) for a, b in parts] + [()] * (self.ranks * self.accumulate - len(parts))
            micro_batches = tuple(tuple(cuts[rank :: self.ranks]) for rank in range(self.ranks))
            yield Window(index, micro_batches, sum(loss_tokens[row] for row in rows), len(rows))

    def _partition(self, lengths: list[int]) -> list[tuple[int, int]]:
        """Cut lengths (longest first) into at most ranks x accumulate parts whose largest is as small as can be."""
        slots = self.ranks * self.accumulate
        if not lengths:
            return []
        low, high = lengths[0], lengths[0] * len(lengths)
        while low < high:
            middle = (low + high) // 2
            if len(_cut(lengths, middle)) <= slots:
                high = middle
            else:
                low = middle + 1
        if self.max_tokens is not None and low > self.max_tokens:
            raise ConfigError(
                f"a window needs micro-batches of {low} tokens, more than data.max_tokens_per_micro_batch "
                f"{self.max_tokens}; raise trainer.accumulate_grad_batches"
            )
        return _cut(lengths, low)


def _cut(lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Greedy cut of lengths (longest first) into spans of at most ``budget`` padded tokens."""
    spans: list[tuple[int, int]] = []
    start = 0
    while start < len(lengths):
        count = max(1, budget // max(1, lengths[start]))
        spans.append((start, min(len(lengths), start + count)))
        start += count
    return spans


def permutation(rows: int, *seed: int | str) -> list[int]:
    """A permutation of ``range(rows)`` that depends on the seed's parts only."""
    return np.random.default_rng(derive_seed(*seed)).permutation(rows).tolist()
