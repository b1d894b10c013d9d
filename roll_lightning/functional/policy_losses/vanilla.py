"""The plain policy gradient."""

from __future__ import annotations

from torch import Tensor

from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput


class Vanilla(PolicyLoss):
    """The plain policy gradient, REINFORCE (Williams, 1992, doi 10.1007/BF00992696).

    ``-A logp``. It has no ratio in it: right on tokens of the policy itself, biased on those of an older one.

    Metrics, of single tokens: ``ratio`` = exp(d), ``approxkl`` = d²/2, ``policykl`` = d with
    ``d = logprobs - old_logprobs``.
    """

    metric_names = LossTerms.metric_names

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLossOutput:
        """Compute the loss and the metrics of each token; see :class:`PolicyLoss`."""
        terms = LossTerms.of(logprobs, old_logprobs, advantages, mask, "token")
        return terms.output(terms.likelihood_loss(), {})

    def formula(self) -> str:
        """See :class:`PolicyLoss`."""
        return "-A log π"
