"""Clipped importance-sampling weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput
from roll_lightning.functional.ratios import RatioLevel, check_ratio_level


class CISPO(PolicyLoss):
    """The policy gradient with clipped importance weights, of MiniMax-M1 (arXiv 2506.13585).

    ``-sg(clamp(r, 1 - low, 1 + high)) A logp`` with ``r = exp(logprobs - old_logprobs)`` and ``sg`` the stop-gradient.
    The weight is clipped, not the update: a token outside the range keeps its gradient, so that rare tokens on which
    an argument turns go on learning. The paper leaves the lower side open (``low: 1``) and averages over tokens
    (aggregation ``token-mean``).

    With ``unified_mask`` the tokens that PPO's clip would stop are left out (the paper's unified formulation):
    those with A > 0 and r > 1 + high, and with A < 0 and r < 1 - low. They stay in the denominator.

    Metrics: ``ratio``; ``cispo_lower_clipfrac``, ``cispo_upper_clipfrac``, ``cispo_total_clipfrac`` (1 where the ratio
    is below, above, outside the range); ``cispo_clipped_ratio_mean``, the weight; with ``unified_mask`` also
    ``cispo_masked_positive_tokens``, ``cispo_masked_negative_tokens``, ``cispo_kept_tokens`` (1 on such tokens);
    ``approxkl`` = d²/2 and ``policykl`` = d with ``d = logprobs - old_logprobs`` of single tokens.

    Args:
        low: the weight is at least 1 - low; in (0, 1].
        high: the weight is at most 1 + high; above 0.
        unified_mask: leave out what PPO's clip would stop.
        ratio: per token, per sequence (the row) or per segment (a contiguous run of the mask).

    Raises:
        ConfigError: an argument is out of its range.
    """

    metric_names: tuple[str, ...] = (
        *LossTerms.metric_names,
        "cispo_lower_clipfrac",
        "cispo_upper_clipfrac",
        "cispo_total_clipfrac",
        "cispo_clipped_ratio_mean",
    )

    def __init__(
        self, low: float = 0.1, high: float = 0.1, unified_mask: bool = False, ratio: RatioLevel = "token"
    ) -> None:
        if not 0 < low <= 1:
            raise ConfigError(f"CISPO.low is {low}; it must be above 0 and at most 1, which leaves the side open")
        if not (high > 0 and math.isfinite(high)):
            raise ConfigError(f"CISPO.high is {high}; it must be a finite number above 0")
        check_ratio_level("CISPO.ratio", ratio)
        self.low = low
        self.high = high
        self.unified_mask = unified_mask
        self.ratio: RatioLevel = ratio
        if unified_mask:
            kept = ("cispo_masked_positive_tokens", "cispo_masked_negative_tokens", "cispo_kept_tokens")
            self.metric_names = (*self.metric_names, *kept)

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLossOutput:
        """Compute the loss and the metrics of each token; see :class:`PolicyLoss`."""
        terms = LossTerms.of(logprobs, old_logprobs, advantages, mask, self.ratio)
        below, above = terms.ratio < 1 - self.low, terms.ratio > 1 + self.high
        weight = terms.ratio.clamp(1 - self.low, 1 + self.high)
        per_token = terms.likelihood_loss(weight)
        metrics = {
            "cispo_lower_clipfrac": below,
            "cispo_upper_clipfrac": above,
            "cispo_total_clipfrac": below | above,
            "cispo_clipped_ratio_mean": weight,
        }
        if self.unified_mask:
            positive, negative = (terms.advantages > 0) & above, (terms.advantages < 0) & below
            per_token = torch.where(positive | negative, 0.0, per_token)
            metrics["cispo_masked_positive_tokens"] = positive
            metrics["cispo_masked_negative_tokens"] = negative
            metrics["cispo_kept_tokens"] = ~(positive | negative)
        return terms.output(per_token, metrics)

    def formula(self) -> str:
        """See :class:`PolicyLoss`."""
        weight = f"clip(ρ, 1 - {self.low:g}, 1 + {self.high:g})" if self.low < 1 else f"min(ρ, 1 + {self.high:g})"
        loss = f"-sg({weight}) A log π"
        if not self.unified_mask:
            return loss
        return f"0 if A > 0 and ρ > 1 + {self.high:g} or A < 0 and ρ < 1 - {self.low:g} else {loss}"
