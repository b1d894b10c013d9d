"""A penalty on responses that come close to the length limit."""

from __future__ import annotations

from collections.abc import Sequence

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.rewards.base import RewardFunction, RewardResult


class LengthPenalty(RewardFunction):
    """The soft overlong punishment of DAPO (arXiv 2503.14476, eq. 13), counted in response tokens ``n``.

    0 for ``n <= max_length - buffer``, then ``(max_length - buffer - n) / buffer``, and -1 from ``max_length`` on.
    It is a shaping reward: it changes what is trained on, not the raw score.

    Args:
        max_length: tokens at which the penalty reaches -1.
        buffer: tokens before ``max_length`` over which it grows; from 1 to ``max_length``.

    Raises:
        ConfigError: ``buffer`` is out of its range.
    """

    in_process = True
    shaping = True

    def __init__(self, max_length: int, buffer: int) -> None:
        if not 1 <= buffer <= max_length:
            raise ConfigError(
                f"LengthPenalty.buffer is {buffer} with max_length {max_length}; it must be from 1 to max_length"
            )
        self.max_length = max_length
        self.buffer = buffer

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """A value from -1 to 0 for each rollout."""
        return [RewardResult(self._score(rollout.response_length)) for rollout in rollouts]

    def _score(self, length: int) -> float:
        return min(0.0, max(-1.0, (self.max_length - self.buffer - length) / self.buffer))
