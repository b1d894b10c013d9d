"""What a policy loss gets and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from roll_lightning.functional.ratios import RatioLevel, importance_ratio, masked_log_ratio


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

    def formula(self) -> str:
        """The loss of a token in words that ``roll-lightning explain`` prints, its numbers filled in.

        ``ρ`` is the ratio of its level, ``A`` the advantage, ``π`` the token's probability; ``sg`` stops the gradient.
        A class that does not say is named.
        """
        return f"{type(self).__name__}(log π, log π_old, A)"


@dataclass(frozen=True)
class LossTerms:
    """What the losses here are made of, clean where the mask is false; all ``[batch, tokens]``.

    Args:
        logprobs: 0 where the mask is false.
        advantages: without gradient; 0 where the mask is false.
        mask: bool.
        log_ratio: of single tokens, whatever the level of ``ratio``; 0 where the mask is false.
        ratio: of tokens, sequences or segments; 1 where the mask is false.
    """

    logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    log_ratio: Tensor
    ratio: Tensor

    # Of every loss: the ratio, and the k2 and k1 estimates of the KL divergence to the old policy.
    metric_names = ("ratio", "approxkl", "policykl")

    @classmethod
    def of(cls, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, level: RatioLevel) -> Self:
        """Make them from the arguments of a :class:`PolicyLoss`; ``level`` is that of the ratio."""
        mask = mask.bool()
        log_ratio = masked_log_ratio(logprobs, old_logprobs, mask)
        return cls(
            logprobs=torch.where(mask, logprobs, 0.0),
            advantages=torch.where(mask, advantages.detach(), 0.0),
            mask=mask,
            log_ratio=log_ratio,
            ratio=importance_ratio(log_ratio, mask, level),
        )

    def likelihood_loss(self, weight: Tensor | float = 1.0) -> Tensor:
        """``-sg(weight) A logp``: the policy gradient, each token times its weight. ``sg`` stops the gradient."""
        weight = weight.detach() if isinstance(weight, Tensor) else weight
        return -weight * self.advantages * self.logprobs

    def output(self, per_token: Tensor, metrics: dict[str, Tensor]) -> PolicyLossOutput:
        """The loss with its metrics and those of every loss; 0 where the mask is false."""
        log_ratio = self.log_ratio.detach()
        every = {"ratio": self.ratio, "approxkl": 0.5 * log_ratio.square(), "policykl": log_ratio, **metrics}
        clean = {name: torch.where(self.mask, value.detach().to(per_token.dtype), 0.0) for name, value in every.items()}
        return PolicyLossOutput(torch.where(self.mask, per_token, 0.0), clean)
