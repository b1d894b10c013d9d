"""What a reward is: a callable that scores a list of rollouts."""

from __future__ import annotations

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
    """Scores rollouts. Plain functions qualify; numbers and ``None`` are accepted in place of ``RewardResult``."""

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult | float | None]:
        """One result for each rollout, in their order."""
        ...
