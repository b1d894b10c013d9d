"""Calls a reward and checks what comes back."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from roll_lightning.data.types import Rollout
from roll_lightning.rewards.base import Reward, RewardResult


@dataclass(frozen=True)
class Fault:
    """A reward gave no valid result.

    Args:
        reason: continues the sentence "reward 'x' …".
        overrun: its worker ran past the deadline or died.
        value: what an overrun counts as; ``None`` for a failure.
    """

    reason: str
    overrun: bool = False
    value: float | None = None

    @property
    def is_failure(self) -> bool:
        """Whether this is a matter for ``on_error``."""
        return self.value is None


Outcome: TypeAlias = float | Fault | None
FaultKind: TypeAlias = Literal["overrun", "failure"]


@dataclass(frozen=True)
class Verdict:
    """What a reward says of one rollout.

    Args:
        value: ``None`` if it could not score it.
        fault: ``"overrun"`` if its worker ran past the deadline or died and the reward says what that counts as,
            ``"failure"`` if it gave no valid result.
    """

    value: float | None
    fault: FaultKind | None = None


def verdict(outcome: Outcome) -> Verdict:
    """An outcome without the reason of a fault."""
    if isinstance(outcome, Fault):
        return Verdict(outcome.value, "failure" if outcome.is_failure else "overrun")
    return Verdict(outcome)


def evaluate(reward: Reward, rollouts: Sequence[Rollout]) -> list[Outcome]:
    """One outcome for each rollout; never raises what the reward raised.

    When a call fails as a whole, each rollout is tried alone, so that one bad item costs one item.
    """
    try:
        results = reward(rollouts)
        fault = _wrong_shape(results, len(rollouts))
    except (Exception, SystemExit) as error:
        fault = Fault(f"raised {type(error).__name__}: {one_line(error)}")
    if fault is None:
        return [_check(result) for result in results]
    if len(rollouts) == 1:
        return [fault]
    return [outcome for rollout in rollouts for outcome in evaluate(reward, [rollout])]


def one_line(value: object, limit: int = 300) -> str:
    """``str(value)`` in one line of bounded length, for messages."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[:limit] + "…"


def _wrong_shape(results: Any, count: int) -> Fault | None:
    if not isinstance(results, Sequence) or isinstance(results, str | bytes):
        return Fault(f"returned a {type(results).__name__} in place of a list of results")
    if len(results) != count:
        return Fault(f"returned {len(results)} results for {count} rollout{'s' * (count != 1)}")
    return None


def _check(result: Any) -> Outcome:
    value = result.value if isinstance(result, RewardResult) else result
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        return Fault(f"returned {one_line(repr(value), 60)} ({type(value).__name__}), which is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else Fault(f"returned {number}, which is no finite number")
