"""The formulas of parts, as far as they are those of the class that computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll_lightning.functional.advantages import AdvantageEstimator
from roll_lightning.functional.advantages.base import OutcomeEstimator
from roll_lightning.functional.policy_losses import PolicyLoss
from roll_lightning.functional.sample_masks import SampleMask, SampleWeight
from roll_lightning.rewards.base import RewardFunction, reward_name
from roll_lightning.rewards.weighted import WeightedReward


def speaks_for(part: Any, words: str, *computes: str) -> bool:
    """Whether the method ``words`` is about the methods ``computes``.

    It is not where a subclass overrides one of these and inherits the words: they are about its base.
    """
    classes = type(part).__mro__

    def place(name: str) -> int:
        return next((number for number, cls in enumerate(classes) if name in vars(cls)), len(classes))

    return place(words) <= min(map(place, computes))


def policy_loss_formula(loss: PolicyLoss) -> str:
    """The loss of a token; a class that does not say is named."""
    return loss.formula() if speaks_for(loss, "formula", "__call__") else PolicyLoss.formula(loss)


def advantage_formula(estimator: AdvantageEstimator, penalty: str) -> str:
    """The advantage of a token before shaping; a class that does not say is named."""
    said = speaks_for(estimator, "formula", "__call__")
    if isinstance(estimator, OutcomeEstimator):
        said = said and speaks_for(estimator, "formula", "returns")
        said = said and speaks_for(estimator, "outcome_formula", "outcomes")
    return estimator.formula(penalty) if said else AdvantageEstimator.formula(estimator, penalty)


def mask_formula(mask: SampleMask) -> str:
    """What a sample mask leaves out; a class that does not say is named."""
    return mask.formula() if speaks_for(mask, "formula", "__call__") else SampleMask.formula(mask)


def weight_formula(weight: SampleWeight) -> str:
    """The weight of a row; a class that does not say is named."""
    return weight.formula() if speaks_for(weight, "formula", "__call__") else SampleWeight.formula(weight)


def rewards_formula(rewards: Sequence[RewardFunction]) -> str:
    """The weighted sum of a list of rewards."""
    terms = [_reward_term(reward) for reward in rewards]
    return " + ".join(terms).replace("+ -", "- ") or "reward"


def _reward_term(reward: RewardFunction) -> str:
    if not isinstance(reward, WeightedReward):
        return reward_name(reward)
    term = reward.name if reward.weight == 1 else f"{reward.weight:g} {reward.name}"
    return term if reward.domains is None else f"{term} [{' or '.join(reward.domains)}]"
