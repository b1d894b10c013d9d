"""PPO's clipped surrogate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput
from roll_lightning.functional.ratios import RatioLevel, check_ratio_level


class PPOClip(PolicyLoss):
    """The clipped surrogate of PPO (arXiv 1707.06347), also of GRPO (arXiv 2402.03300) and GSPO (arXiv 2507.18071).

    ``-min(r A, clip(r, 1 - low, 1 + high) A)`` with ``r = exp(logprobs - old_logprobs)``. A higher ``high`` lets rare
    tokens grow (DAPO's clip-higher, arXiv 2503.14476). For A < 0 nothing bounds ``r A`` when r is large; with
    ``dual_clip`` = c it is ``max(min(...), c A)`` (arXiv 1912.09729).

    With ``ratio: sequence`` it is GSPO, with the gradient of GSPO itself, not of its variant GSPO-token: see
    :func:`~roll_lightning.functional.ratios.importance_ratio`. A mean over a row moves far less than a token does, so
    the clip range is far narrower: the paper has low 3e-4, high 4e-4.

    The log-ratio is clamped to ±20 before ``exp``; beyond, a token has no gradient.

    Metrics: ``ratio``; ``clipfrac`` (1 where the range takes the gradient away; what ``dual_clip`` takes is not in
    it); ``ppo_ratio_low_clipfrac``, ``ppo_ratio_high_clipfrac`` and ``ppo_ratio_clipfrac`` (1 where the ratio is below,
    above, outside the range, whatever the sign of A); ``approxkl`` = d²/2 and ``policykl`` = d with
    ``d = logprobs - old_logprobs`` of single tokens.

    Args:
        low: the ratio is clipped below 1 - low; in (0, 1].
        high: the ratio is clipped above 1 + high; above 0.
        dual_clip: bound of the ratio for negative advantages; above 1. ``None`` leaves it unbounded.
        ratio: per token, per sequence (the row) or per segment (a contiguous run of the mask).

    Raises:
        ConfigError: an argument is out of its range.
    """

    metric_names = (
        *LossTerms.metric_names,
        "clipfrac",
        "ppo_ratio_low_clipfrac",
        "ppo_ratio_high_clipfrac",
        "ppo_ratio_clipfrac",
    )

    def __init__(
        self, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None, ratio: RatioLevel = "token"
    ) -> None:
        if not 0 < low <= 1:
            raise ConfigError(f"PPOClip.low is {low}; it must be above 0 and at most 1")
        if not (high > 0 and math.isfinite(high)):
            raise ConfigError(f"PPOClip.high is {high}; it must be a finite number above 0")
        if dual_clip is not None and not dual_clip > 1:
            raise ConfigError(f"PPOClip.dual_clip is {dual_clip}; it must be above 1 (3 is usual), or null for none")
        check_ratio_level("PPOClip.ratio", ratio)
        self.low = low
        self.high = high
        self.dual_clip = dual_clip
        self.ratio: RatioLevel = ratio

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLossOutput:
        """Compute the loss and the metrics of each token; see :class:`PolicyLoss`."""
        terms = LossTerms.of(logprobs, old_logprobs, advantages, mask, self.ratio)
        plain = terms.ratio * terms.advantages
        clipped = terms.ratio.clamp(1 - self.low, 1 + self.high) * terms.advantages
        objective = torch.minimum(plain, clipped)
        if self.dual_clip is not None:
            bounded = torch.maximum(objective, self.dual_clip * terms.advantages)
            objective = torch.where(terms.advantages < 0, bounded, objective)
        below, above = terms.ratio < 1 - self.low, terms.ratio > 1 + self.high
        metrics = {
            "clipfrac": clipped < plain,
            "ppo_ratio_low_clipfrac": below,
            "ppo_ratio_high_clipfrac": above,
            "ppo_ratio_clipfrac": below | above,
        }
        return terms.output(-objective, metrics)

    def formula(self) -> str:
        """See :class:`PolicyLoss`."""
        objective = f"min(ρ A, clip(ρ, 1 - {self.low:g}, 1 + {self.high:g}) A)"
        if self.dual_clip is None:
            return f"-{objective}"
        return f"-max({objective}, {self.dual_clip:g} A) if A < 0 else -{objective}"
