"""Credit over time: discounted returns, turns, GAE, greedy baselines."""

from __future__ import annotations

import math

import pytest
import torch

from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages import (
    GAE,
    AdvantageInputs,
    GroupRelative,
    Reinforce,
    ReinforcePlusPlus,
    ReMax,
    SegmentReinforce,
)

GROUPS = torch.zeros(1)


def advantages(estimator, reward, mask, **more):
    inputs = AdvantageInputs(torch.tensor([reward], dtype=torch.float64), GROUPS, torch.tensor([mask]), **more)
    return estimator(inputs)


def tensor(*values):
    return torch.tensor([list(values)], dtype=torch.float64)


def test_discounted_returns_by_hand():
    out = advantages(Reinforce(0.5), 8.0, [0, 1, 1, 1, 0])
    assert out.advantages.tolist() == [[0, 2, 4, 8, 0]]


def test_token_rewards_add_to_the_return():
    # From the end: 8 + 4 = 12; 2 + 12/2 = 8; 1 + 8/2 = 5.
    rewards = tensor(math.nan, 1.0, 2.0, 4.0, math.inf)
    assert advantages(Reinforce(0.5), 8.0, [0, 1, 1, 1, 0], token_rewards=rewards).advantages.tolist() == [
        [0, 5, 8, 12, 0]
    ]


def test_without_discount_every_token_gets_the_reward():
    assert advantages(Reinforce(), 3.0, [1, 1, 0, 1]).advantages.tolist() == [[3, 3, 0, 3]]


@pytest.mark.parametrize("estimator", [Reinforce(0.9), GAE(0.9, 0.8), SegmentReinforce(0.9)])
def test_T10_T11_masked_tokens_neither_discount_nor_contribute(estimator):
    """Padding and tool output, NaN included, change nothing; only turns begin anew."""
    plain = {"token_rewards": tensor(0.1, 0.2, 0.3), "values": tensor(0.5, 0.6, 0.7)}
    expected = advantages(estimator, 2.0, [1, 1, 1], **plain).advantages[0].tolist()
    nan = math.nan
    padded = {"token_rewards": tensor(nan, 0.1, 0.2, 0.3, nan, 9), "values": tensor(nan, 0.5, 0.6, 0.7, 50, nan)}
    found = advantages(estimator, 2.0, [0, 1, 1, 1, 0, 0], **padded).advantages[0].tolist()
    assert found == [0, *expected, 0, 0]
    if not isinstance(estimator, SegmentReinforce):
        inside = {"token_rewards": tensor(0.1, nan, 5, 0.2, 0.3), "values": tensor(0.5, nan, 70, 0.6, 0.7)}
        found = advantages(estimator, 2.0, [1, 0, 0, 1, 1], **inside).advantages[0].tolist()
        assert found == [expected[0], 0, 0, *expected[1:]]


def test_T10_gae_by_hand():
    # Last token: δ = 1 - 0.5; before: δ = 0.9 · 0.5 - 0.4 = 0.05, A = 0.05 + 0.9 · 0.8 · 0.5 = 0.41;
    # first: δ = 0.9 · 0.4 - 0.3 = 0.06, A = 0.06 + 0.72 · 0.41.
    values = tensor(0.3, 0.4, 0.5, 77.0)
    out = advantages(GAE(0.9, 0.8), 1.0, [1, 1, 1, 0], values=values)
    assert out.advantages[0].tolist() == pytest.approx([0.06 + 0.72 * 0.41, 0.41, 0.5, 0], abs=1e-12)
    assert out.returns[0].tolist() == pytest.approx([0.36 + 0.72 * 0.41, 0.81, 1.0, 0], abs=1e-12)


def test_gae_with_lambda_1_is_the_return_less_the_value():
    values = tensor(0.3, -0.2, 0.9)
    out = advantages(GAE(0.95, 1.0), 2.0, [1, 1, 1], values=values)
    returns = advantages(Reinforce(0.95), 2.0, [1, 1, 1]).advantages
    assert torch.allclose(out.advantages, returns - values, atol=1e-12)
    assert torch.allclose(out.returns, returns, atol=1e-12)


def test_gae_of_a_perfect_critic_is_zero():
    values = advantages(Reinforce(0.9), 2.0, [1, 1, 1, 1]).advantages
    out = advantages(GAE(0.9, 0.7), 2.0, [1, 1, 1, 1], values=values)
    assert out.advantages.abs().max() < 1e-12


def test_gae_needs_values():
    with pytest.raises(ConfigError, match="GAE needs a critic"):
        advantages(GAE(), 1.0, [1])
    with pytest.raises(ConfigError, match=r"GAE.lam is 1.5; it must be 0 to 1"):
        GAE(lam=1.5)


def test_turns_by_hand():
    """Three turns with rewards 0.5 (two tokens), 2 and 1 + 8: 9, 2 + 4.5, 0.5 + 3.25."""
    rewards = tensor(0.0, 0.25, 0.25, 9.9, 2.0, math.nan, 0.0, 1.0)
    out = advantages(SegmentReinforce(0.5), 8.0, [0, 1, 1, 0, 1, 0, 1, 1], token_rewards=rewards)
    assert out.advantages[0].tolist() == [0, 3.75, 3.75, 0, 6.5, 0, 9, 9]


def test_turns_of_rows_with_different_counts():
    inputs = AdvantageInputs(
        torch.tensor([4.0, 6.0], dtype=torch.float64), torch.zeros(2), torch.tensor([[1, 0, 1, 0, 1], [0, 1, 1, 1, 0]])
    )
    assert SegmentReinforce(0.5)(inputs).advantages.tolist() == [[1, 0, 2, 0, 4], [0, 6, 6, 6, 0]]


def test_reinforce_plus_plus_whitens_over_all_tokens():
    inputs = AdvantageInputs(
        torch.tensor([1.0, 3.0, math.nan], dtype=torch.float64),
        torch.zeros(3),
        torch.tensor([[1, 0], [1, 0], [1, 1]]),
    )
    out = ReinforcePlusPlus()(inputs).advantages
    assert out.flatten().tolist() == pytest.approx([-math.sqrt(0.5), 0, math.sqrt(0.5), 0, 0, 0], abs=1e-6)


def test_remax_by_hand():
    inputs = AdvantageInputs(
        torch.tensor([1.0, 0.0, 1.0, math.nan], dtype=torch.float64),
        torch.zeros(4),
        torch.ones(4, 1),
        baselines=torch.tensor([0.25, 1.0, math.nan, 0.5], dtype=torch.float64),
    )
    assert ReMax()(inputs).advantages.flatten().tolist() == [0.75, -1, 0, 0]
    with pytest.raises(ConfigError, match="ReMax needs the reward of a greedy answer"):
        advantages(ReMax(), 1.0, [1])


def test_a_kl_in_the_reward_reaches_group_relative_advantages():
    """The outcome is compared within the group; penalties of tokens add up behind each token."""
    inputs = AdvantageInputs(
        torch.tensor([0.0, 2.0], dtype=torch.float64),
        torch.zeros(2),
        torch.ones(2, 3),
        token_rewards=-torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, 0.5]], dtype=torch.float64),
    )
    out = GroupRelative(std="none")(inputs).advantages
    assert torch.allclose(out, torch.tensor([[-1.6, -1.5, -1.3], [0.5, 0.5, 0.5]], dtype=torch.float64))


def test_T17_precision_is_that_of_the_rewards():
    inputs = AdvantageInputs(torch.tensor([1.0]), GROUPS, torch.ones(1, 2))
    assert Reinforce()(inputs).advantages.dtype == torch.float32
