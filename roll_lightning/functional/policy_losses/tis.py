"""Truncated importance sampling."""

from __future__ import annotations

import math

from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput
from roll_lightning.functional.ratios import RatioLevel, check_ratio_level


class TIS(PolicyLoss):
    """The policy gradient with truncated importance weights (Ionides, 2008, doi 10.1198/106186008X320456).

    ``-sg(clamp(r, lower_bound, upper_bound)) A logp`` with ``r = exp(logprobs - old_logprobs)`` and ``sg`` the
    stop-gradient. Without bounds its gradient would be that of ``-r A``; the upper bound trades variance for bias.
    Unlike with :class:`PPOClip` a token beyond a bound keeps its gradient.

    Metrics: ``ratio``; ``tis_lower_clipfrac``, ``tis_upper_clipfrac``, ``tis_total_clipfrac`` (1 where the ratio is
    below, above, outside the bounds); ``tis_clipped_ratio_mean``, the weight; ``approxkl`` = d²/2 and ``policykl`` = d
    with ``d = logprobs - old_logprobs`` of single tokens.

    Args:
        lower_bound: the least weight; 0 or more.
        upper_bound: the greatest weight; finite and above ``lower_bound``.
        ratio: per token, per sequence (the row) or per segment (a contiguous run of the mask).

    Raises:
        ConfigError: an argument is out of its range.
    """

    metric_names = (
        *LossTerms.metric_names,
        "tis_lower_clipfrac",
        "tis_upper_clipfrac",
        "tis_total_clipfrac",
        "tis_clipped_ratio_mean",
    )

    def __init__(self, lower_bound: float = 0.0, upper_bound: float = 1.0, ratio: RatioLevel = "token") -> None:
        if not lower_bound >= 0:
            raise ConfigError(f"TIS.lower_bound is {lower_bound}; it must be 0 or more")
        if not (upper_bound > lower_bound and math.isfinite(upper_bound)):
            raise ConfigError(
                f"TIS.upper_bound is {upper_bound}; it must be a finite number above TIS.lower_bound ({lower_bound})"
            )
        check_ratio_level("TIS.ratio", ratio)
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self.ratio: RatioLevel = ratio

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLossOutput:
        """Compute the loss and the metrics of each token; see :class:`PolicyLoss`."""
        terms = LossTerms.of(logprobs, old_logprobs, advantages, mask, self.ratio)
        weight = terms.ratio.clamp(self.lower_bound, self.upper_bound)
        below, above = terms.ratio < self.lower_bound, terms.ratio > self.upper_bound
        metrics = {
            "tis_lower_clipfrac": below,
            "tis_upper_clipfrac": above,
            "tis_total_clipfrac": below | above,
            "tis_clipped_ratio_mean": weight,
        }
        return terms.output(terms.likelihood_loss(weight), metrics)

    def formula(self) -> str:
        """See :class:`PolicyLoss`."""
        return f"-sg(clip(ρ, {self.lower_bound:g}, {self.upper_bound:g})) A log π"
