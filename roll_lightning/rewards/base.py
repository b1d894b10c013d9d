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
        deadline: seconds for one rollout in a worker; ``None`` takes ``rollout.reward_deadline``.
        value_on_overrun: the value of a rollout on which the worker runs past its deadline or dies. ``None`` makes that
            a failure, which ``rollout.reward_on_error`` deals with: right for code that may be at fault itself. Where
            the code is known to be good, and only the model's text can bring this about, set what a wrong answer gets:
            one such text must not end the run, and an answer that counts as "could not score" would leave its group's
            statistics, so that a policy could learn to hang the verifier rather than to be wrong. Such rollouts are
            counted and logged.
    """

    in_process: bool = False
    shaping: bool = False
    deadline: float | None = None
    value_on_overrun: float | None = None

    @abstractmethod
    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult | float | None]:
        """One result for each rollout, in their order."""

    def warm_up(self) -> None:  # noqa: B027
        """What must not count against the first rollout's deadline: slow imports, loading a file.

        A worker calls it once, before its first rollout.
        """


def reward_name(reward: Reward) -> str:
    """The name that metrics and errors use: ``name`` of the object, of the function, or its class in snake case."""
    name = getattr(reward, "name", None) or getattr(reward, "__name__", None)
    if isinstance(name, str):
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(reward).__name__).lower()
