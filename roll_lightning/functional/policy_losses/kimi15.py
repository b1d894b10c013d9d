"""The policy mirror descent of Kimi k1.5."""

from __future__ import annotations

import math

from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput
from roll_lightning.functional.ratios import RatioLevel, check_ratio_level, pool_log_ratio


class Kimi15(PolicyLoss):
    """The policy mirror descent of Kimi k1.5 (arXiv 2501.12599, equation 3).

    ``-A logp + tau/2 d²`` with ``d = logprobs - old_logprobs``: instead of a clip, a squared distance holds the policy
    near the one that wrote the tokens. A token's gradient is ``(tau d - A)`` times that of ``logp``: 0 where
    ``d = A / tau``.

    ``ratio`` says of what ``d`` is the log-ratio. The paper's is that of the whole answer, a sum; ``sequence`` takes
    the mean over the row, so that ``tau`` means the same at every length.

    Metrics: ``kimi15_log_ratio_mean`` = d, ``kimi15_log_ratio_abs_mean`` = abs(d), ``kimi15_policy_grad_magnitude``
    = abs(A d), ``kimi15_kl_reg_magnitude`` = tau/2 d², with ``d`` of that level; ``ratio`` = exp(d); ``approxkl`` and
    ``policykl``, d²/2 and d of single tokens.

    Args:
        tau: weight of the squared distance; above 0.
        ratio: per token, per sequence (the row) or per segment (a contiguous run of the mask).

    Raises:
        ConfigError: an argument is out of its range.
    """

    metric_names = (
        *LossTerms.metric_names,
        "kimi15_log_ratio_mean",
        "kimi15_log_ratio_abs_mean",
        "kimi15_policy_grad_magnitude",
        "kimi15_kl_reg_magnitude",
    )

    def __init__(self, tau: float = 0.1, ratio: RatioLevel = "token") -> None:
        if not (tau > 0 and math.isfinite(tau)):
            raise ConfigError(f"Kimi15.tau is {tau}; it must be a finite number above 0 (Vanilla has no such term)")
        check_ratio_level("Kimi15.ratio", ratio)
        self.tau = tau
        self.ratio: RatioLevel = ratio

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLossOutput:
        """Compute the loss and the metrics of each token; see :class:`PolicyLoss`."""
        terms = LossTerms.of(logprobs, old_logprobs, advantages, mask, self.ratio)
        # Not the logarithm of the ratio, whose exponent is clamped: the pull must grow with the distance.
        log_ratio = pool_log_ratio(terms.log_ratio, terms.mask, self.ratio)
        distance = 0.5 * self.tau * log_ratio.square()
        metrics = {
            "kimi15_log_ratio_mean": log_ratio,
            "kimi15_log_ratio_abs_mean": log_ratio.abs(),
            "kimi15_policy_grad_magnitude": (terms.advantages * log_ratio).abs(),
            "kimi15_kl_reg_magnitude": distance,
        }
        return terms.output(terms.likelihood_loss() + distance, metrics)

    def formula(self) -> str:
        """See :class:`PolicyLoss`."""
        return f"-A log π + {self.tau:g}/2 (log ρ)²"
