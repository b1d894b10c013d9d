from __future__ import annotations

import math
import warnings

import pytest
import torch

from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.functional.advantages import AdvantageInputs, GroupRelative

MASK = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 0]])


def advantages_of(estimator, rewards, groups, mask, **more) -> torch.Tensor:
    return estimator(AdvantageInputs(rewards, groups, mask, **more)).advantages


def per_row(
    rewards: list[float], groups: list[int], kind: type = GroupRelative, **arguments
) -> tuple[list[float], list[bool]]:
    """Advantage of each row, and whether its group has no variance."""
    estimator, mask = kind(**arguments), torch.ones(len(rewards), 1)
    given = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)
    return advantages_of(estimator, *given, mask)[:, 0].tolist(), estimator.zero_variance(*given).tolist()


def test_hand_computed_with_std():
    # Group 7: mean 2, deviations -1, 0, 1, variance (1 + 0 + 1) / (3 - 1) = 1. Group 3: mean 3, variance 18.
    advantages, flat = per_row([1, 2, 3, 0, 6], [7, 7, 7, 3, 3], eps=0.0)
    half = 3 / math.sqrt(18)
    assert advantages == pytest.approx([-1, 0, 1, -half, half], abs=1e-12)
    assert flat == [False] * 5


def test_hand_computed_without_std():
    advantages, _ = per_row([1, 2, 3, 0, 6], [7, 7, 7, 3, 3], std="none")
    assert advantages == [-1, 0, 1, -3, 3]


def test_eps_is_added_to_the_deviation():
    advantages, _ = per_row([1, 2, 3], [0, 0, 0], eps=1.0)
    assert advantages == pytest.approx([-0.5, 0, 0.5], abs=1e-12)


def test_T17_broadcast_over_response_tokens_only():
    rewards, groups = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1])
    out = advantages_of(GroupRelative(std="none"), rewards, groups, MASK)
    expected = torch.tensor(
        [[0.0, -0.5, -0.5, 0.0], [0.0, 0.5, 0.5, 0.5], [-0.5, -0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0]]
    )
    assert torch.equal(out, expected)
    assert out.dtype == torch.float32


def test_T17_the_mask_does_not_weigh_in():
    """A row's advantage is the same however many tokens it has."""
    rewards, groups = torch.tensor([0.0, 1.0, 0.3, 0.9]), torch.tensor([0, 0, 0, 0])
    short = advantages_of(GroupRelative(), rewards, groups, MASK)
    full = advantages_of(GroupRelative(), rewards, groups, torch.ones(4, 4))
    assert torch.equal(short, full * MASK)


@pytest.mark.parametrize("std", ["group", "none"])
def test_T12_shuffling_changes_nothing(std):
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(9).repeat_interleave(torch.tensor([2, 3, 4, 8, 8, 8, 5, 2, 7]))
    rewards = torch.rand(len(groups), generator=generator, dtype=torch.float64)
    rewards[[3, 20, 21]] = torch.nan
    rewards[groups == 4] = 0.1
    mask = torch.rand(len(groups), 6, generator=generator) < 0.7
    estimator = GroupRelative(std=std)
    expected = advantages_of(estimator, rewards, groups, mask)
    flat = estimator.zero_variance(rewards, groups)
    for _ in range(5):
        order = torch.randperm(len(groups), generator=generator)
        assert torch.equal(advantages_of(estimator, rewards[order], groups[order], mask[order]), expected[order])
        assert torch.equal(estimator.zero_variance(rewards[order], groups[order]), flat[order])


def test_T12_a_prompt_that_occurs_twice_is_two_groups():
    """Same rewards as one group of four would have other means."""
    advantages, _ = per_row([0, 1, 10, 11], [0, 1000, 1000, 0], std="none")
    assert advantages == [-5.5, -4.5, 4.5, 5.5]


@pytest.mark.parametrize("std", ["group", "none"])
def test_T13_group_of_one_gets_zero_and_a_counted_warning(std):
    with pytest.warns(UserWarning, match="2 groups have a single scored rollout"):
        advantages, flat = per_row([5, 1, 2, 7], [0, 1, 1, 2], std=std)
    assert advantages[0] == advantages[3] == 0
    assert advantages[1] == -advantages[2] < 0
    assert flat == [True, False, False, True]


def test_T13_one_score_left_in_a_group():
    with pytest.warns(UserWarning, match="1 groups"):
        advantages, flat = per_row([5, math.nan, math.nan], [0, 0, 0])
    assert advantages == [0, 0, 0]
    assert flat == [True] * 3


def test_unscored_rows_leave_the_statistics():
    advantages, flat = per_row([1, math.nan, 3, 2], [0, 0, 0, 0], eps=0.0)
    assert advantages == pytest.approx([-1, 0, 1, 0], abs=1e-12)
    assert flat == [False] * 4


def test_group_without_any_score():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advantages, flat = per_row([math.nan, math.nan, 0, 1], [0, 0, 1, 1], std="none")
    assert advantages == [0, 0, -0.5, 0.5]
    assert flat == [True, True, False, False]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1])
@pytest.mark.parametrize("std", ["group", "none"])
def test_equal_rewards_give_exactly_zero(value, std):
    """Whatever the rounding of their mean: divided by eps it would be an advantage out of nothing."""
    advantages, flat = per_row([value] * 7, [0] * 7, std=std, eps=0.0)
    assert advantages == [0] * 7
    assert flat == [True] * 7


def test_zero_variance_is_per_group():
    _, flat = per_row([1, 1, 0, 1, math.nan, 1], [0, 0, 1, 1, 2, 2])
    assert flat == [True, True, False, False, True, True]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_reward_is_refused(value):
    with pytest.raises(RewardError, match=f"row 1 is {value}"):
        per_row([0, value], [0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"std": "row"}, "GroupRelative.std is 'row'; it must be one of group, batch, running, none"),
        ({"mean": "row"}, "GroupRelative.mean is 'row'"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"gamma": 0.0}, "GroupRelative.gamma is 0.0; it must be above 0 and at most 1"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ConfigError, match=message):
        GroupRelative(**arguments)
