"""Rewards for runs, in a file of their own, which reward workers import."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from roll_lightning.data.types import Rollout
from roll_lightning.rewards import RewardFunction


class Odds(RewardFunction):
    """Share of odd digits, which a model with random weights gets varying amounts of."""

    in_process = True

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        return [self.value(r) for r in rollouts]

    def value(self, r: Rollout) -> float | None:
        return sum(c in "13579" for c in r.text) / (1 + len(r.text))


class SometimesNone(Odds):
    """Cannot score sample 1 of group 0, all of group 1, and all but one of group 2."""

    def value(self, r: Rollout) -> float | None:
        unscored = (r.group, r.sample) == (0, 1) or r.group == 1 or (r.group == 2 and r.sample > 0)
        return None if unscored else super().value(r)


class Forgiving(Odds):
    """Misbehaves on one answer; says that a hang or a crash is a wrong answer."""

    in_process = False
    value_on_overrun = 0.0
    deadline = 1.0

    def __init__(self, how: str) -> None:
        self.how = how

    def value(self, r: Rollout) -> float | None:
        if (r.group, r.sample) == (1, 0):
            if self.how == "hangs":
                time.sleep(3600)
            if self.how == "ends":
                os._exit(3)
            raise ValueError("no such thing")
        return super().value(r)
