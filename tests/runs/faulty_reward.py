"""A reward that misbehaves; in a file of its own, which a reward worker imports."""

from __future__ import annotations

import os
import time
from typing import Any

from roll_lightning.data.types import Rollout
from roll_lightning.rewards.base import RewardFunction


class Faulty(RewardFunction):
    """Misbehaves on the fifth answer."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, rollouts: list[Rollout]) -> list[Any]:
        if (rollouts[0].group, rollouts[0].sample) != (1, 0):
            return [float(len(rollouts[0].text) % 2)]
        if self.how == "raises":
            raise ValueError("no such thing")
        if self.how == "hangs":
            time.sleep(60)
        if self.how == "ends":
            os._exit(3)
        return [float("nan")] if self.how == "nan" else [1.0, 2.0]
