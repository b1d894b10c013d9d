"""What a reward is: a callable that scores a list of rollouts."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from roll_lightning.data.types import Rollout


@dataclass(frozen=True)
class RewardResult:
    """The value that a reward gives one rollout; ``None`` means that it could not be scored."""

    value: float | None


@runtime_checkable
class Reward(Protocol):
    """Scores rollouts. Plain functions qualify; numbers and ``None`` are accepted in place of ``RewardResult``.

    A result depends on its own rollout alone: :class:`~roll_lightning.rewards.RewardPool` hands a worker one rollout
    per call, so that each has its own deadline.
    """

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult | float | None]:
        """One result for each rollout, in their order."""
        ...


class RewardFunction(ABC):
    """Base of the rewards that YAML chooses by ``class_path``; in Python any :class:`Reward` serves as well.

    Attributes:
        in_process: run it in the trainer's process, all rollouts in one call and without a deadline. Only for code that
            no text of the model can make slow or make crash; everything else runs in a worker that can be killed.
        shaping: it shapes what is trained on and is no part of the raw score, where :class:`WeightedReward` does not
            say otherwise.
    """

    in_process: bool = False
    shaping: bool = False

    @abstractmethod
    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult | float | None]:
        """One result for each rollout, in their order."""


def reward_name(reward: Reward) -> str:
    """The name that metrics and errors use: ``name`` of the object, of the function, or its class in snake case."""
    name = getattr(reward, "name", None) or getattr(reward, "__name__", None)
    if isinstance(name, str):
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(reward).__name__).lower()
