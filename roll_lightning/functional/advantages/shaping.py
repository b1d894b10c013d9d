"""What is done to rewards before, and to advantages after, an estimator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError


@dataclass(frozen=True)
class AdvantageShaping:
    """Clipping and whitening, in this order: rewards are clipped, the estimator runs, advantages are whitened, clipped.

    Args:
        clip_rewards: rewards of rows are clipped to plus and minus this; ``None`` leaves them.
        whiten: advantages of all tokens of the batch get mean 0 and standard deviation 1.
        clip: advantages are clipped to plus and minus this; ``None`` leaves them.

    Raises:
        ConfigError: a bound is not above 0.
    """

    clip_rewards: float | None = None
    whiten: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip_rewards", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"model.shaping.{name} is {value}; it must be above 0, or null for none")

    def rewards(self, rewards: Tensor) -> tuple[Tensor, float]:
        """Clipped rewards ``[rows]``, NaN kept, and the share of the scored ones that the clip changed."""
        return _clip(rewards, ~rewards.isnan(), self.clip_rewards)

    def advantages(self, advantages: Tensor, mask: Tensor) -> tuple[Tensor, float]:
        """Whitened and clipped advantages ``[rows, tokens]``, and the share of the mask's that the clip changed."""
        mask = mask.bool()
        shaped = masked_whiten(advantages, mask) if self.whiten else advantages
        return _clip(shaped, mask, self.clip)

    def reward_formula(self, reward: str) -> str:
        """The ``reward`` that the estimator gets, in words, for ``roll-lightning explain``."""
        return reward if self.clip_rewards is None else f"clip({reward}, -{self.clip_rewards:g}, {self.clip_rewards:g})"

    def formula(self, advantage: str) -> str:
        """The estimator's ``advantage`` in words, as it is shaped."""
        shaped = f"whiten({advantage})" if self.whiten else advantage
        return shaped if self.clip is None else f"clip({shaped}, -{self.clip:g}, {self.clip:g})"


def masked_whiten(values: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """``(x - mean) / sqrt(var + eps)`` over the mask's values, the variance divided by n - 1; 0 elsewhere.

    With fewer than two values there is no variance: they stay as they are.
    """
    mask = mask.bool()
    chosen = values[mask].double()
    if len(chosen) < 2:
        return torch.where(mask, values, 0.0)
    white = (values.double() - chosen.mean()) / (chosen.var(correction=1) + eps).sqrt()
    return torch.where(mask, white, 0.0).to(values.dtype)


def _clip(values: Tensor, counts: Tensor, bound: float | None) -> tuple[Tensor, float]:
    if bound is None:
        return values, 0.0
    clipped = values.clamp(-bound, bound)
    changed = (clipped != values) & counts
    return clipped, float(changed.sum() / counts.sum().clamp(min=1))
