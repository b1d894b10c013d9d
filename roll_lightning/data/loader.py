"""The loader of one rank: planned micro-batches, resumable at any optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roll_lightning.data.batch import TokenBatch, WindowTotals
from roll_lightning.data.planner import Rows, Window

Collate = Callable[[Rows, WindowTotals], TokenBatch]


@dataclass(frozen=True)
class PlannedBatchSampler:
    """Carries ``batch_size`` where Lightning's DeepSpeed strategy looks for it."""

    batch_size: int


class PlannedLoader:
    """Yields this rank's micro-batches of one epoch after the other.

    The plan of an epoch is asked for when its first batch is fetched, not before: with rollouts it does not exist
    until then. The length is the same for every epoch and known from the start.

    Args:
        windows: optimizer steps per epoch.
        accumulate: micro-batches per optimizer step and rank.
        rank: whose micro-batches these are.
        batch_size: rows per optimizer step over all ranks.
        epoch: tells the number of the epoch that is about to start.
        plan: the windows of an epoch.
        collate: makes a micro-batch from its rows.
    """

    def __init__(
        self,
        *,
        windows: int,
        accumulate: int,
        rank: int,
        batch_size: int,
        epoch: Callable[[], int],
        plan: Callable[[int], Sequence[Window]],
        collate: Collate,
    ) -> None:
        self.windows = windows
        self.accumulate = accumulate
        self.rank = rank
        self.batch_sampler = PlannedBatchSampler(batch_size)
        self.current_epoch: int | None = None
        self.delivered = 0
        self._epoch = epoch
        self._plan = plan
        self._collate = collate
        self._skip = 0

    def __len__(self) -> int:
        """Micro-batches of one epoch on this rank."""
        return self.windows * self.accumulate

    def __iter__(self) -> Iterator[TokenBatch]:
        """One epoch; the first after :meth:`load_state_dict` goes on where the state was taken."""
        skip, self._skip = self._skip, 0
        self.current_epoch = self._epoch()
        windows = self._plan(self.current_epoch)
        if len(windows) != self.windows:
            raise RuntimeError(f"epoch {self.current_epoch} has {len(windows)} windows, {self.windows} were announced")
        for number in range(skip, len(self)):
            window, micro_batch = windows[number // self.accumulate], number % self.accumulate
            totals = WindowTotals(window.index, window.tokens, window.sequences, micro_batch, self.accumulate)
            batch = self._collate(window.micro_batches[self.rank][micro_batch], totals)
            self.delivered = number + 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """How many batches of the current epoch have gone to the trainer, down to whole windows."""
        whole = self.delivered // self.accumulate * self.accumulate
        return {"delivered": 0 if whole == len(self) else whole}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next epoch begin after the batches that had been delivered."""
        self._skip = self.delivered = int(state["delivered"])


class FixedLoader:
    """Yields the same batches in every epoch and, unlike torch's DataLoader, draws no random number for it.

    Args:
        batches: what to yield.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        """The batches."""
        return iter(self.batches)
