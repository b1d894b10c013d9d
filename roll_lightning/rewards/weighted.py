"""A reward with its weight in a list of rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.rewards.base import Reward, RewardFunction, RewardResult, reward_name


class WeightedReward(RewardFunction):
    """One reward of a weighted list. Called, it gives the raw values of ``reward``; the scorer applies the weight.

    Args:
        reward: what to weigh; in Python, plain functions serve as well.
        weight: factor of its value in the sums of :class:`~roll_lightning.rewards.RewardScorer`.
        shaping: leave it out of the raw score and add it to the trained reward only; ``None`` asks ``reward``.
        name: its name in metrics and errors; ``None`` takes that of ``reward``. Names in a list must differ.
        domains: the domains whose prompts it scores; ``None`` stands for all. For others it is not called, and is
            neither a component nor part of the sums.

    Raises:
        ConfigError: the weight is not finite, or ``domains`` is empty.
    """

    def __init__(
        self,
        reward: RewardFunction,
        weight: float = 1.0,
        shaping: bool | None = None,
        name: str | None = None,
        domains: list[str] | None = None,
    ) -> None:
        if not math.isfinite(weight):
            raise ConfigError(f"WeightedReward.weight is {weight}; it must be a finite number")
        if isinstance(domains, str):
            raise ConfigError(f"WeightedReward.domains is {domains!r}; write a list: [{domains}]")
        if domains is not None and not domains:
            raise ConfigError("WeightedReward.domains is an empty list; name domains, or leave it out for all of them")
        self.reward = reward
        self.weight = weight
        self.shaping = getattr(reward, "shaping", False) if shaping is None else shaping
        self.name = reward_name(reward) if name is None else name
        self.domains = None if domains is None else tuple(domains)
        self.in_process = getattr(reward, "in_process", False)
        self.deadline = getattr(reward, "deadline", None)
        self.value_on_overrun = getattr(reward, "value_on_overrun", None)

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult | float | None]:
        """The raw results of ``reward``."""
        return self.reward(rollouts)

    def warm_up(self) -> None:
        """That of ``reward``, if it has one."""
        if isinstance(self.reward, RewardFunction):
            self.reward.warm_up()


def as_weighted(reward: Reward) -> WeightedReward:
    """``reward`` itself if it carries a weight, else with weight 1."""
    return reward if isinstance(reward, WeightedReward) else WeightedReward(reward)  # type: ignore[arg-type]
