"""The loader of one rank."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from roll_lightning.data.batch import TokenBatch, WindowTotals, collate_tokens
from roll_lightning.data.loader import FixedLoader, PlannedLoader
from roll_lightning.data.planner import BatchPlanner, permutation

LENGTHS = [2, 3, 4, 5, 6, 2, 3, 4]


class Run:
    """A loader over eight rows, and the epochs that it asked to be planned."""

    def __init__(self, rank: int = 0, ranks: int = 1, accumulate: int = 2, announced: int = 2) -> None:
        self.epoch, self.planned = 0, []
        planner = BatchPlanner(4, ranks, accumulate)

        def plan(epoch: int):
            self.planned.append(epoch)
            return list(planner.plan(LENGTHS, [1] * 8, permutation(8, epoch)))

        def collate(rows: tuple[int, ...], window: WindowTotals) -> TokenBatch:
            return collate_tokens(
                [[row] * LENGTHS[row] for row in rows], [[0] + [1] * (LENGTHS[row] - 1) for row in rows], window
            )

        self.loader = PlannedLoader(
            windows=announced,
            accumulate=accumulate,
            rank=rank,
            batch_size=4,
            epoch=lambda: self.epoch,
            plan=plan,
            collate=collate,
        )

    def rows(self) -> list[list[int]]:
        """The rows of each micro-batch; a filler has none."""
        return [batch.input_ids[batch.loss_mask.any(1), 0].tolist() for batch in self.loader]


def test_length_is_known_and_the_plan_is_made_only_when_a_batch_is_fetched():
    run = Run()
    assert len(run.loader) == 4
    assert run.loader.batch_sampler.batch_size == 4
    iterator = iter(run.loader)
    assert run.planned == []
    next(iterator)
    assert run.planned == [0]


def test_each_micro_batch_knows_its_window():
    windows = [batch.window for batch in Run().loader]
    assert [(w.index, w.micro_batch, w.micro_batches, w.sequences) for w in windows] == [
        (0, 0, 2, 4),
        (0, 1, 2, 4),
        (1, 0, 2, 4),
        (1, 1, 2, 4),
    ]


def test_T45_another_order_in_every_epoch_and_every_row_once():
    run = Run()
    first = run.rows()
    run.epoch = 1
    second = run.rows()
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(8))
    assert first != second


def test_ranks_share_the_rows():
    parts = [Run(rank, ranks=2).rows() for rank in range(2)]
    assert len(parts[0]) == len(parts[1]) == 4
    assert sorted(chain(*parts[0], *parts[1])) == list(range(8))


@pytest.mark.parametrize("delivered", range(5))
def test_T44_T45_a_state_goes_on_after_the_last_whole_window(delivered):
    whole, run = Run().rows(), Run()
    iterator = iter(run.loader)
    for _ in range(delivered):
        next(iterator)
    state = run.loader.state_dict()
    assert state == {"delivered": {0: 0, 1: 0, 2: 2, 3: 2, 4: 0}[delivered]}
    resumed = Run()
    resumed.loader.load_state_dict(state)
    assert resumed.rows() == whole[state["delivered"] :]
    assert resumed.rows() == whole, "the epoch after is a whole one"


def test_a_plan_of_another_length_than_announced_is_a_fault():
    with pytest.raises(RuntimeError, match="epoch 0 has 2 windows, 3 were announced"):
        Run(announced=3).rows()


def test_a_fixed_loader_repeats_itself_and_draws_no_random_number():
    state = torch.get_rng_state()
    loader = FixedLoader(["a", "b"])
    assert len(loader) == 2
    assert list(loader) == list(loader) == ["a", "b"]
    assert torch.equal(torch.get_rng_state(), state)
