from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from roll_lightning.errors import ConfigError
from roll_lightning.functional.aggregation import aggregate, check_aggregation, window_totals

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
ROWS, TOKENS, DIM = 6, 5, 3
LENGTHS = [1, 5, 0, 2, 4, 3]  # row 2 is fully masked
NORM_LENGTH = 8.0

# One row of 1, one of 3 and one of no tokens; the losses are 6 | 1, 2, 3 | -
HAND_LOSS = torch.tensor([[6.0, 50.0, 50.0], [1.0, 2.0, 3.0], [50.0, 50.0, 50.0]])
HAND_MASK = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]])


def norm_of(mode: str) -> float | None:
    return NORM_LENGTH if mode == "seq-mean-token-sum-norm" else None


def window() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(ROWS, TOKENS, DIM, dtype=torch.float64, generator=generator)
    return data, torch.arange(TOKENS)[None] < torch.tensor(LENGTHS)[:, None]


def model() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(DIM, 1).double()


def share(module: nn.Module, rows: list[int], mode: str, totals: tuple[int, int]) -> Tensor:
    data, mask = window()
    per_token = module(data[rows]).squeeze(-1).square()
    return aggregate(
        per_token,
        mask[rows],
        mode,
        tokens=totals[0],
        sequences=totals[1],
        norm_length=norm_of(mode),  # type: ignore[arg-type]
    )


def whole(mode: str) -> tuple[float, list[Tensor]]:
    """Loss and gradient of the window as one batch."""
    module = model()
    loss = share(module, list(range(ROWS)), mode, window_totals([window()[1]]))
    loss.backward()
    return loss.item(), [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (6 + 1 + 2 + 3) / 4),
        ("seq-mean-token-sum", (6 + 6) / 2),
        ("seq-mean-token-mean", (6 + 2) / 2),
        ("seq-mean-token-sum-norm", (6 + 6) / (2 * 8)),
    ],
)
def test_T08_hand_computed_with_a_fully_masked_row(mode, expected):
    totals = window_totals([HAND_MASK])
    assert totals == (4, 2)
    loss = aggregate(HAND_LOSS, HAND_MASK, mode, tokens=4, sequences=2, norm_length=norm_of(mode))
    assert loss.item() == expected
    without = aggregate(HAND_LOSS[:2], HAND_MASK[:2], mode, tokens=4, sequences=2, norm_length=norm_of(mode))
    assert without.item() == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "split",
    [
        [[0], [1], [2], [3], [4], [5]],
        [[2], [0, 1, 3, 4, 5]],
        [[1, 4], [0, 2, 3], [5]],
        [[5, 4, 3], [2, 1, 0]],
        [[0, 1, 2, 3, 4], [5], []],
    ],
)
def test_T01_every_split_gives_the_same_loss_and_gradient(mode, split):
    loss, gradients = whole(mode)
    module = model()
    totals = window_totals([window()[1][rows] for rows in split])
    shares = [share(module, rows, mode, totals) for rows in split]
    for part in shares:
        part.backward()  # gradient accumulation: nothing is divided again (T03)
    assert abs(sum(part.item() for part in shares) - loss) < 1e-10
    for parameter, expected in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-10)


def test_T01_averaging_the_means_of_micro_batches_would_differ():
    """The split above can tell right from wrong: the fault of T01 moves the loss by far more than the tolerance."""
    data, mask = window()
    per_token = model()(data).squeeze(-1).square()
    wrong = torch.stack([per_token[rows][mask[rows]].mean() for rows in ([1, 4], [0, 2, 3], [5])]).mean()
    assert abs(wrong.item() - whole("token-mean")[0]) > 1e-2


@pytest.mark.parametrize("mode", MODES)
def test_T02_the_denominator_is_the_window_it_is_given(mode):
    def at(factor: int) -> float:
        return aggregate(
            HAND_LOSS, HAND_MASK, mode, tokens=4 * factor, sequences=2 * factor, norm_length=norm_of(mode)
        ).item()

    assert at(4) == at(1) / 4


@pytest.mark.parametrize("mode", MODES)
def test_T04_masking_a_completion_leaves_numerator_and_denominator(mode):
    _, mask = window()
    masked = mask.clone()
    masked[1] = False
    kept = [0, 2, 3, 4, 5]
    assert window_totals([masked]) == window_totals([mask[kept]])
    totals = window_totals([masked])
    data, _ = window()
    per_token = data.sum(-1)
    norm = norm_of(mode)
    loss = aggregate(per_token, masked, mode, tokens=totals[0], sequences=totals[1], norm_length=norm)
    dropped = aggregate(per_token[kept], mask[kept], mode, tokens=totals[0], sequences=totals[1], norm_length=norm)
    torch.testing.assert_close(loss, dropped, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_T10_T17_masked_places_change_nothing(mode, junk):
    data, mask = window()
    per_token = data.sum(-1)
    results = []
    for values in (per_token, torch.where(mask, per_token, junk)):
        leaf = values.clone().requires_grad_()
        loss = aggregate(leaf, mask, mode, tokens=15, sequences=5, norm_length=norm_of(mode))
        loss.backward()
        results.append((loss.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not results[1][1][~mask].any()


@pytest.mark.parametrize("mode", MODES)
def test_empty_window_is_zero_and_on_the_graph(mode):
    leaf = torch.full((2, 3), torch.nan, requires_grad=True)
    loss = aggregate(leaf, torch.zeros(2, 3), mode, tokens=0, sequences=0, norm_length=norm_of(mode))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(leaf.grad, torch.zeros(2, 3))


def test_a_window_that_denies_this_micro_batch_is_refused():
    with pytest.raises(ValueError, match="0 tokens and 0 sequences"):
        aggregate(HAND_LOSS, HAND_MASK, "token-mean", tokens=0, sequences=0)


def test_window_totals_over_several_masks():
    assert window_totals([]) == (0, 0)
    assert window_totals([HAND_MASK, torch.ones(2, 5, dtype=torch.bool)]) == (14, 4)


@pytest.mark.parametrize(
    ("mode", "norm_length", "message"),
    [
        ("mean", None, "'mean'; it must be one of token-mean"),
        ("seq-mean-token-sum-norm", None, "norm_length is None"),
        ("seq-mean-token-sum-norm", 0.0, "norm_length is 0.0"),
        ("token-mean", 8.0, "does not use it"),
    ],
)
def test_bad_settings(mode, norm_length, message):
    with pytest.raises(ConfigError, match=message):
        check_aggregation(mode, norm_length)
    with pytest.raises(ConfigError, match=message):
        aggregate(HAND_LOSS, HAND_MASK, mode, tokens=4, sequences=2, norm_length=norm_length)


def data_parallel_rank(rank: int, folder: str) -> None:
    """One of two ranks, with two micro-batches each and very uneven token counts."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    mine = [[[0], [2, 3]], [[1, 4], [5]]][rank]
    results = {}
    for mode in MODES:
        counts = torch.tensor(window_totals([window()[1][rows] for rows in mine]))
        dist.all_reduce(counts)
        totals = (int(counts[0]), int(counts[1]))
        module = DistributedDataParallel(model())
        logged = torch.zeros((), dtype=torch.float64)
        with module.no_sync():
            first = share(module, mine[0], mode, totals)
            (first * 2).backward()
        last = share(module, mine[1], mode, totals)
        (last * 2).backward()  # x ranks, since DDP takes the mean over ranks
        logged += first.detach() + last.detach()
        dist.all_reduce(logged)
        results[mode] = (logged.item(), [p.grad for p in module.parameters()])
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_T06_two_data_parallel_ranks_give_the_gradient_of_one(tmp_path):
    mp.spawn(data_parallel_rank, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        for mode in MODES:
            loss, gradients = whole(mode)
            assert abs(results[mode][0] - loss) < 1e-10
            for ours, expected in zip(results[mode][1], gradients, strict=True):
                torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
