"""Per-token policy losses. ``functional.aggregation`` turns them into one number."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class PolicyLossOutput:
    """What a policy loss gives.

    Args:
        per_token: ``[batch, tokens]``, to be minimised; 0 where the mask is false.
        metrics: by name, one value per token ``[batch, tokens]``, detached; 0 where the mask is false.
    """

    per_token: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class PolicyLoss(ABC):
    """A policy-gradient loss. Chosen in YAML by ``class_path``.

    ``metric_names`` are the keys of the metrics that it gives, the same on every rank and in every call.
    """

    metric_names: tuple[str, ...] = ()

    @abstractmethod
    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLossOutput:
        """Compute the loss of each token.

        Args:
            logprobs: ``[batch, tokens]`` under the policy that is trained.
            old_logprobs: ``[batch, tokens]`` under the policy that wrote the tokens.
            advantages: ``[batch, tokens]``.
            mask: ``[batch, tokens]``, true on tokens that count. What stands elsewhere, NaN included, must change
                neither value nor gradient.
        """


class PPOClip(PolicyLoss):
    """The clipped surrogate of PPO (arXiv 1707.06347).

    ``-min(r A, clip(r, 1 - low, 1 + high) A)`` with ``r = exp(logprobs - old_logprobs)``. A higher ``high`` lets rare
    tokens grow (DAPO's clip-higher, arXiv 2503.14476). For A < 0 nothing bounds ``r A`` when r is large; with
    ``dual_clip`` = c it is ``max(min(...), c A)`` (arXiv 1912.09729).

    The log-ratio is clamped to ±20 before ``exp``; beyond, a token has no gradient.

    Metrics: ``ratio``; ``clipfrac`` (1 where the clip takes the gradient away); ``ppo_ratio_low_clipfrac``,
    ``ppo_ratio_high_clipfrac`` and ``ppo_ratio_clipfrac`` (1 where the ratio is below, above, outside the range,
    whatever the sign of A); ``approxkl`` = d²/2 and ``policykl`` = d with ``d = logprobs - old_logprobs``.

    Args:
        low: the ratio is clipped below 1 - low; in (0, 1].
        high: the ratio is clipped above 1 + high; above 0.
        dual_clip: bound of the ratio for negative advantages; above 1. ``None`` leaves it unbounded.

    Raises:
        ConfigError: an argument is out of its range.
    """

    metric_names = (
        "ratio",
        "clipfrac",
        "ppo_ratio_low_clipfrac",
        "ppo_ratio_high_clipfrac",
        "ppo_ratio_clipfrac",
        "approxkl",
        "policykl",
    )

    def __init__(self, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None) -> None:
        if not 0 < low <= 1:
            raise ConfigError(f"PPOClip.low is {low}; it must be above 0 and at most 1")
        if not (high > 0 and math.isfinite(high)):
            raise ConfigError(f"PPOClip.high is {high}; it must be a finite number above 0")
        if dual_clip is not None and not dual_clip > 1:
            raise ConfigError(f"PPOClip.dual_clip is {dual_clip}; it must be above 1 (3 is usual), or null for none")
        self.low = low
        self.high = high
        self.dual_clip = dual_clip

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLossOutput:
        """Compute the loss and the metrics of each token; see :class:`PolicyLoss`."""
        mask = mask.bool()
        advantages = torch.where(mask, advantages.detach(), 0.0)
        log_ratio = masked_log_ratio(logprobs, old_logprobs, mask)
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        plain = ratio * advantages
        clipped = ratio.clamp(1 - self.low, 1 + self.high) * advantages
        objective = torch.minimum(plain, clipped)
        if self.dual_clip is not None:
            bounded = torch.maximum(objective, self.dual_clip * advantages)
            objective = torch.where(advantages < 0, bounded, objective)
        return PolicyLossOutput(-objective, self._metrics(log_ratio, ratio, clipped < plain, mask))

    @torch.no_grad()
    def _metrics(self, log_ratio: Tensor, ratio: Tensor, is_clipped: Tensor, mask: Tensor) -> dict[str, Tensor]:
        below, above = ratio < 1 - self.low, ratio > 1 + self.high
        return {
            "ratio": torch.where(mask, ratio, 0.0),
            "clipfrac": is_clipped.to(ratio.dtype),
            "ppo_ratio_low_clipfrac": below.to(ratio.dtype),
            "ppo_ratio_high_clipfrac": above.to(ratio.dtype),
            "ppo_ratio_clipfrac": (below | above).to(ratio.dtype),
            "approxkl": 0.5 * log_ratio.detach().square(),
            "policykl": log_ratio.detach(),
        }


def masked_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """``logprobs - old_logprobs`` ``[batch, tokens]``, 0 (value and gradient) where the mask is false."""
    return torch.where(mask.bool(), logprobs - old_logprobs.detach(), 0.0)
