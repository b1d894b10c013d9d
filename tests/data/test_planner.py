"""The batch planner: every row once, exact denominators, exactly N micro-batches, and a budget that is never broken."""

from __future__ import annotations

import random
import re

import pytest

from roll_lightning.data.planner import BatchPlanner, permutation
from roll_lightning.errors import ConfigError

CASES = range(300)


def random_case(seed: int):
    """Lengths, loss tokens (a fifth of the rows has none), and a planner without a budget."""
    rng = random.Random(seed)
    rows = rng.randint(1, 60)
    longest = rng.choice([1, 3, 20, 500])
    lengths = [rng.randint(1, longest) for _ in range(rows)]
    loss_tokens = [0 if rng.random() < 0.2 else rng.randint(1, length) for length in lengths]
    ranks, accumulate = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 2, 3, 5])
    batch_size = rng.randint(ranks * accumulate, 40)
    return rng, lengths, loss_tokens, BatchPlanner(batch_size, ranks, accumulate)


def padded(rows, lengths) -> int:
    return len(rows) * max((lengths[row] for row in rows), default=0)


def parts_of(window) -> list[tuple[int, ...]]:
    return [rows for rank in window.micro_batches for rows in rank]


@pytest.mark.parametrize("seed", range(0, 300, 50))
def test_every_row_once_in_its_window_with_exactly_n_micro_batches(seed):
    for case in range(seed, seed + 50):
        _, lengths, loss_tokens, planner = random_case(case)
        order = permutation(len(lengths), case)
        windows = list(planner.plan(lengths, loss_tokens, order))
        assert len(windows) == planner.windows_per_epoch(len(lengths))
        for index, window in enumerate(windows):
            chosen = order[index * planner.batch_size : (index + 1) * planner.batch_size]
            expected = sorted(row for row in chosen if loss_tokens[row])
            assert window.index == index
            assert len(window.micro_batches) == planner.ranks
            assert {len(rank) for rank in window.micro_batches} == {planner.accumulate}
            assert sorted(row for rows in parts_of(window) for row in rows) == expected


def test_T02_T04_T08_denominators_are_those_of_exactly_the_window_without_masked_rows():
    for case in CASES:
        _, lengths, loss_tokens, planner = random_case(case)
        for window in planner.plan(lengths, loss_tokens, permutation(len(lengths), case)):
            rows = [row for part in parts_of(window) for row in part]
            assert window.tokens == sum(loss_tokens[row] for row in rows)
            assert window.sequences == len(rows)
            assert all(loss_tokens[row] > 0 for row in rows), "a row without loss costs no computation"


def test_T01_the_same_windows_for_any_ranks_and_accumulation():
    rng = random.Random(0)
    lengths = [rng.randint(1, 30) for _ in range(50)]
    loss_tokens = [rng.randint(0, length) for length in lengths]
    order = permutation(50, "order")

    def contents(ranks: int, accumulate: int):
        windows = BatchPlanner(16, ranks, accumulate).plan(lengths, loss_tokens, order)
        return [(w.index, w.tokens, w.sequences, sorted(r for part in parts_of(w) for r in part)) for w in windows]

    reference = contents(1, 1)
    assert len(reference) == 4
    for ranks in (1, 2, 3, 4):
        for accumulate in (1, 2, 3, 4):
            assert contents(ranks, accumulate) == reference


def test_a_budget_that_passes_the_check_is_never_broken_whatever_the_order():
    passed = refused = 0
    for case in CASES:
        rng, lengths, loss_tokens, plain = random_case(case)
        budget = rng.randint(1, 2 * max(lengths) + 20)
        planner = BatchPlanner(plain.batch_size, plain.ranks, plain.accumulate, budget)
        try:
            planner.check_fits(lengths)
        except ConfigError:
            refused += 1
            continue
        passed += 1
        for attempt in range(5):
            for window in planner.plan(lengths, loss_tokens, permutation(len(lengths), case, attempt)):
                assert all(padded(rows, lengths) <= budget for rows in parts_of(window))
    assert passed > 50
    assert refused > 50


def test_the_worst_case_of_shorter_rows_is_not_worse():
    """In RL the check sees the longest possible rows, the plan the real ones."""
    for case in CASES:
        rng, lengths, loss_tokens, plain = random_case(case)
        budget = rng.randint(max(lengths), 3 * max(lengths))
        planner = BatchPlanner(plain.batch_size, plain.ranks, plain.accumulate, budget)
        try:
            planner.check_fits(lengths)
        except ConfigError:
            continue
        shorter = [rng.randint(1, length) for length in lengths]
        planner.check_fits(shorter)
        list(planner.plan(shorter, [min(a, b) for a, b in zip(loss_tokens, shorter, strict=True)], range(len(lengths))))


def test_a_refusal_names_the_accumulation_that_fits():
    seen = 0
    for case in CASES:
        rng, lengths, loss_tokens, plain = random_case(case)
        budget = rng.randint(max(lengths), max(lengths) + 20)
        planner = BatchPlanner(plain.batch_size, plain.ranks, plain.accumulate, budget)
        try:
            planner.check_fits(lengths)
        except ConfigError as error:
            seen += 1
            named = int(re.search(r"set trainer.accumulate_grad_batches to (\d+)$", str(error))[1])
            assert named > planner.accumulate
            fitting = BatchPlanner(plain.batch_size, plain.ranks, named, budget)
            fitting.check_fits(lengths)
            list(fitting.plan(lengths, loss_tokens, range(len(lengths))))
            with pytest.raises(ConfigError):
                BatchPlanner(plain.batch_size, plain.ranks, named - 1, budget).check_fits(lengths)
    assert seen > 50


def test_the_largest_micro_batch_is_as_small_as_can_be():
    """Against every way to cut a sorted window into at most so many spans."""
    from itertools import combinations

    rng = random.Random(1)
    for _ in range(100):
        rows = rng.randint(2, 8)
        lengths = [rng.randint(1, 12) for _ in range(rows)]
        slots = rng.randint(2, rows)
        window = next(iter(BatchPlanner(rows, 1, slots).plan(lengths, lengths, range(rows))))
        found = max(padded(part, lengths) for part in parts_of(window))
        ordered = sorted(lengths, reverse=True)
        best = min(
            max(ordered[a] * (b - a) for a, b in zip((0, *cut), (*cut, rows), strict=True))
            for size in range(slots)
            for cut in combinations(range(1, rows), size)
        )
        assert found == best


def test_the_cut_by_hand():
    lengths = [4, 9, 2, 3, 8, 1]
    (window,) = BatchPlanner(6, 2, 2).plan(lengths, [1, 1, 1, 1, 1, 1], range(6))
    # Longest first 9 8 4 3 2 1: the first alone (9), 8 alone, then 4 3 (8), then 2 1 (4); dealt out over the ranks.
    assert window.micro_batches == (((1,), (0, 3)), ((4,), (2, 5)))
    assert (window.tokens, window.sequences) == (6, 6)


def test_a_window_without_loss_has_only_empty_micro_batches():
    (window,) = BatchPlanner(4, 2, 2).plan([3, 3, 3, 3], [0, 0, 0, 0], range(4))
    assert window.micro_batches == (((), ()), ((), ()))
    assert (window.tokens, window.sequences) == (0, 0)
    (single,) = BatchPlanner(4).plan([3, 3, 3, 3], [0, 0, 0, 0], range(4))
    assert single.micro_batches == (((),),)


def test_one_micro_batch_does_not_break_the_budget_in_silence():
    with pytest.raises(ConfigError, match=r"more than data.max_tokens_per_micro_batch 10"):
        list(BatchPlanner(4, max_tokens=10).plan([5, 5, 5, 5], [1, 1, 1, 1], range(4)))


def test_bad_numbers():
    for settings, text in [
        ({"batch_size": 0}, "data.batch_size is 0; it must be 1 or more"),
        ({"batch_size": 4, "max_tokens": 0}, "data.max_tokens_per_micro_batch is 0; it must be 1 or more"),
        ({"batch_size": 4, "ranks": 2, "accumulate": 3}, "set data.batch_size to 6 or more, or .*batches to 2"),
    ]:
        with pytest.raises(ConfigError, match=text):
            BatchPlanner(**settings)
    with pytest.raises(ConfigError, match=r"less than the longest row \(12 tokens\); set it to 12 or more"):
        BatchPlanner(4, max_tokens=10).check_fits([3, 12, 5])
    BatchPlanner(4).check_fits([10**6])
    BatchPlanner(4, max_tokens=1).check_fits([])


def test_a_permutation_depends_on_its_seed_alone():
    assert permutation(20, 0, "rows", 1) == permutation(20, 0, "rows", 1)
    assert sorted(permutation(20, 0, "rows", 1)) == list(range(20))
    assert len({tuple(permutation(20, seed, "rows", epoch)) for seed in range(5) for epoch in range(5)}) == 25
