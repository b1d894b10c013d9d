"""Tapered off-policy REINFORCE."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput
from roll_lightning.functional.ratios import RatioLevel, check_ratio_level


class TOPR(PolicyLoss):
    """Tapered off-policy REINFORCE (arXiv 2503.14286).

    Positives: ``-positive_weight A logp``. Negatives: ``-negative_weight sg(clamp(r, 0, 1)) A logp`` with
    ``r = exp(logprobs - old_logprobs)`` and ``sg`` the stop-gradient. So what was good is imitated, however far the
    policy has moved, and what was bad is pushed down only as long as the policy still says it.

    A token is positive if its advantage is above 0; with ``scores`` in the call, if its row's score is. The paper's
    ratio is that of the whole answer; ``ratio: sequence`` is its n-th root, so that it does not vanish with length.

    Metrics: ``ratio``; ``topr_positive_loss``, ``topr_negative_loss`` (before their weights, 0 on the other tokens) and
    ``topr_weighted_positive_loss``, ``topr_weighted_negative_loss``; ``topr_positive_ratio``, ``topr_negative_ratio``
    (1 on such tokens: their shares); ``topr_negative_total_clipfrac`` (1 on negatives whose ratio is above 1);
    ``approxkl`` = d²/2 and ``policykl`` = d with ``d = logprobs - old_logprobs`` of single tokens.

    Args:
        positive_weight: of the positives' loss; 0 or more.
        negative_weight: of the negatives' loss; 0 or more. With 0 only positives teach.
        ratio: per token, per sequence (the row) or per segment (a contiguous run of the mask).

    Raises:
        ConfigError: an argument is out of its range, or both weights are 0.
    """

    metric_names = (
        *LossTerms.metric_names,
        "topr_positive_loss",
        "topr_negative_loss",
        "topr_weighted_positive_loss",
        "topr_weighted_negative_loss",
        "topr_positive_ratio",
        "topr_negative_ratio",
        "topr_negative_total_clipfrac",
    )

    def __init__(self, positive_weight: float = 1.0, negative_weight: float = 1.0, ratio: RatioLevel = "token") -> None:
        for name, weight in (("positive_weight", positive_weight), ("negative_weight", negative_weight)):
            if not (weight >= 0 and math.isfinite(weight)):
                raise ConfigError(f"TOPR.{name} is {weight}; it must be a finite number, 0 or more")
        if positive_weight == negative_weight == 0:
            raise ConfigError("TOPR.positive_weight and TOPR.negative_weight are both 0; nothing would be learnt")
        check_ratio_level("TOPR.ratio", ratio)
        self.positive_weight = positive_weight
        self.negative_weight = negative_weight
        self.ratio: RatioLevel = ratio

    def __call__(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        scores: Tensor | None = None,
    ) -> PolicyLossOutput:
        """Compute the loss and the metrics of each token; see :class:`PolicyLoss`.

        Args:
            logprobs: ``[batch, tokens]`` under the policy that is trained.
            old_logprobs: ``[batch, tokens]`` under the policy that wrote the tokens.
            advantages: ``[batch, tokens]``.
            mask: ``[batch, tokens]``.
            scores: ``[batch]``; rows above 0 are positives. ``None``: tokens whose advantage is above 0 are.
        """
        terms = LossTerms.of(logprobs, old_logprobs, advantages, mask, self.ratio)
        positive = terms.advantages > 0 if scores is None else (scores > 0)[:, None].expand_as(terms.mask)
        loss = terms.likelihood_loss(torch.where(positive, 1.0, terms.ratio.clamp(max=1)))
        good, bad = torch.where(positive, loss, 0.0), torch.where(positive, 0.0, loss)
        weighted_good, weighted_bad = self.positive_weight * good, self.negative_weight * bad
        metrics = {
            "topr_positive_loss": good,
            "topr_negative_loss": bad,
            "topr_weighted_positive_loss": weighted_good,
            "topr_weighted_negative_loss": weighted_bad,
            "topr_positive_ratio": positive,
            "topr_negative_ratio": ~positive,
            "topr_negative_total_clipfrac": ~positive & (terms.ratio > 1),
        }
        return terms.output(weighted_good + weighted_bad, metrics)

    def formula(self) -> str:
        """See :class:`PolicyLoss`; as it is called in training, without ``scores``."""
        good, bad = ("" if w == 1 else f"{w:g} " for w in (self.positive_weight, self.negative_weight))
        return f"-{good}A log π if A > 0 else -{bad}sg(min(ρ, 1)) A log π"
