"""Means and deviations of group, batch and run in every combination; leave-one-out; whitening; clipping."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages import AdvantageInputs, AdvantageShaping, GroupRelative, LeaveOneOut
from roll_lightning.functional.advantages.shaping import masked_whiten

REWARDS = torch.tensor([1.0, 2.0, 3.0, 0.0, 6.0], dtype=torch.float64)
GROUPS = torch.tensor([7, 7, 7, 3, 3])
# By hand: group 7 has mean 2, variance 1; group 3 mean 3, variance 18; the batch mean 2.4, squares
# 1.96 + .16 + .36 + 5.76 + 12.96 = 21.2, variance 5.3.
MEANS = {"group": [2, 2, 2, 3, 3], "batch": [2.4] * 5, "running": [2.4] * 5, "none": [0] * 5}
STDS = {
    "group": [1, 1, 1, math.sqrt(18), math.sqrt(18)],
    "batch": [math.sqrt(5.3)] * 5,
    "running": [math.sqrt(5.3)] * 5,
    "none": [1] * 5,
}


def rows(estimator, rewards=REWARDS, groups=GROUPS) -> list[float]:
    out = estimator(AdvantageInputs(rewards, groups, torch.ones(len(rewards), 1)))
    return out.advantages[:, 0].tolist()


@pytest.mark.parametrize(("mean", "std"), product(MEANS, STDS))
def test_every_combination_by_hand(mean, std):
    expected = [(r - m) / s for r, m, s in zip(REWARDS.tolist(), MEANS[mean], STDS[std], strict=True)]
    assert rows(GroupRelative(mean, std, eps=0.0)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("mean", "std"), product(MEANS, STDS))
def test_T12_shuffling_and_unscored_rows_change_nothing(mean, std):
    expected = rows(GroupRelative(mean, std))
    order = [3, 0, 4, 2, 1]
    assert rows(GroupRelative(mean, std), REWARDS[order], GROUPS[order]) == [expected[i] for i in order]
    more = torch.cat([REWARDS, torch.tensor([math.nan], dtype=torch.float64)])
    assert rows(GroupRelative(mean, std), more, torch.cat([GROUPS, torch.tensor([3])])) == [*expected, 0.0]


def test_running_statistics_are_those_of_all_rewards_so_far_and_survive_resuming():
    estimator = GroupRelative("running", "running", eps=0.0)
    rows(estimator)
    again = GroupRelative("running", "running", eps=0.0)
    again.load_state_dict(estimator.state_dict())
    second = torch.tensor([10.0, 4.0], dtype=torch.float64)
    every = torch.cat([REWARDS, second])
    expected = ((second - every.mean()) / every.std()).tolist()
    for one in (estimator, again):
        assert rows(one, second, torch.tensor([0, 0])) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("std", ["batch", "running"])
def test_no_spread_at_all_is_not_blown_up(std):
    equal = torch.full((4,), 0.7, dtype=torch.float64)
    assert rows(GroupRelative("none", std), equal, torch.tensor([0, 0, 1, 1])) == [0.7] * 4
    assert rows(GroupRelative("batch", std), equal, torch.tensor([0, 0, 1, 1])) == pytest.approx([0] * 4, abs=1e-12)


@pytest.mark.parametrize(("mean", "std"), [("batch", "none"), ("none", "batch"), ("running", "none")])
def test_uniform_groups_teach_where_groups_are_not_compared(mean, std):
    equal, groups = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    estimator = GroupRelative(mean, std)
    assert not estimator.zero_variance(equal, groups).any()
    assert any(rows(estimator, equal, groups))
    assert GroupRelative("group", std).zero_variance(equal, groups).all()


def test_lite_ppo_group_mean_batch_deviation():
    assert rows(GroupRelative("group", "batch", eps=0.0)) == pytest.approx(
        [x / math.sqrt(5.3) for x in (-1, 0, 1, -3, 3)], abs=1e-12
    )


def test_leave_one_out_by_hand():
    # 1 - (2 + 3) / 2, 2 - (1 + 3) / 2, 3 - (1 + 2) / 2; 0 - 6, 6 - 0.
    assert rows(LeaveOneOut()) == pytest.approx([-1.5, 0, 1.5, -6, 6], abs=1e-12)


def test_T13_leave_one_out_of_one():
    with pytest.warns(UserWarning, match="1 groups have a single scored rollout"):
        assert LeaveOneOut().zero_variance(torch.tensor([5.0, 1, 2]), torch.tensor([0, 1, 1])).tolist() == [1, 0, 0]
    assert rows(LeaveOneOut(), torch.tensor([5.0, 1, 2]), torch.tensor([0, 1, 1])) == [0, -1, 1]


def test_leave_one_out_is_unbiased_and_the_group_mean_shrinks():
    """Two answers with p = 1/2 of reward 1: the exact policy gradient is the expected reward of each action."""
    total = {LeaveOneOut: 0.0, GroupRelative: 0.0}
    for first, second in product((0.0, 1.0), repeat=2):
        given = torch.tensor([first, second], dtype=torch.float64)
        for kind in total:
            estimator = kind() if kind is LeaveOneOut else kind(std="none")
            # d log p / d logit of the right action: 1 - p where it was taken, -p elsewhere.
            scores = [0.5 if value else -0.5 for value in (first, second)]
            total[kind] += (
                0.25 * sum(a * s for a, s in zip(rows(estimator, given, torch.zeros(2)), scores, strict=True)) / 2
            )
    assert total[LeaveOneOut] == pytest.approx(0.25, abs=1e-12)  # p (1 - p)
    assert total[GroupRelative] == pytest.approx(0.125, abs=1e-12)


def test_whitening_by_hand():
    values = torch.tensor([[1.0, 2.0, math.nan], [3.0, math.inf, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    white = masked_whiten(values, mask, eps=0.0)
    assert white.tolist() == [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert masked_whiten(values, torch.tensor([[1, 0, 0], [0, 0, 0]])).tolist() == [[1, 0, 0], [0, 0, 0]]


def test_shaping_clips_rewards_and_advantages_and_counts():
    shaping = AdvantageShaping(clip_rewards=2.0, clip=0.5)
    rewards, share = shaping.rewards(torch.tensor([5.0, math.nan, -3.0, 1.0]))
    assert (rewards[0], rewards[2], rewards[3], share) == (2, -2, 1, pytest.approx(2 / 3))
    assert rewards[1].isnan()
    advantages, share = shaping.advantages(torch.tensor([[1.0, 0.2, 9.0]]), torch.tensor([[1, 1, 0]]))
    assert advantages[0, :2].tolist() == pytest.approx([0.5, 0.2])
    assert share == 0.5
    whitened, _ = AdvantageShaping(whiten=True).advantages(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[1, 1, 0]]))
    assert whitened[0].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5), 0])
    with pytest.raises(ConfigError, match=r"model.shaping.clip is 0.0; it must be above 0"):
        AdvantageShaping(clip=0.0)
