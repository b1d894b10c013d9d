"""Per-token estimators of the KL divergence between the policy and a reference."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError

KLKind = Literal["k1", "k2", "k3"]

# exp(20) is 5e8: finite in every float type but float16, and far beyond any difference worth telling apart.
MAX_EXPONENT = 20.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: KLKind, mask: Tensor | None = None) -> Tensor:
    """Estimate KL(policy ‖ reference) from one sampled token at each place.

    With ``d = logprobs - ref_logprobs`` (J. Schulman, "Approximating KL Divergence", 2020,
    http://joschu.net/blog/kl-approx.html):

    ==== ==================== ==========================================
    kind value                as an estimate of the KL, token ~ policy
    ==== ==================== ==========================================
    k1   ``d``                unbiased, can be negative
    k2   ``d² / 2``           biased, never negative
    k3   ``exp(-d) - 1 + d``  unbiased, never negative
    ==== ==================== ==========================================

    An unbiased value does not give an unbiased gradient (Tang & Munos, arXiv 2506.09477). For tokens sampled from
    the policy itself, per token with the prefix held fixed, the expected gradient is:

    ==== ============================================= =====================================================
    kind differentiated in the loss                    in the reward (times the gradient of ``logprobs``)
    ==== ============================================= =====================================================
    k1   0: no penalty at all                          ∇KL(policy ‖ reference), **exact**
    k2   ∇KL(policy ‖ reference), **exact**            biased: weighs ``d²/2``, blind to the sign of ``d``
    k3   biased: ∇KL(reference ‖ policy), the forward  biased: ∇KL(policy ‖ reference) minus
         KL                                            ∇KL(reference ‖ policy)
    ==== ============================================= =====================================================

    All three are biased on tokens from another policy unless they are weighted by the importance ratio.

    Args:
        logprobs: ``[batch, tokens]`` of the policy.
        ref_logprobs: ``[batch, tokens]`` of the reference; it gets no gradient.
        kind: the estimator.
        mask: ``[batch, tokens]``, true on tokens that count. Elsewhere the result is 0 and so is the gradient, even
            if NaN stands there. Without it all tokens count.

    Returns:
        ``[batch, tokens]``. k3 is constant (gradient 0) below ``d = -20``, so that value and gradient stay finite.

    Raises:
        ConfigError: there is no such kind.
    """
    difference = logprobs - ref_logprobs.detach()
    if mask is not None:
        difference = torch.where(mask.bool(), difference, 0.0)
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * difference.square()
    if kind == "k3":
        # The whole of d is clamped: with the exponent alone, the gradient left over would drive d further down.
        difference = difference.clamp(min=-MAX_EXPONENT)
        return torch.expm1(-difference) + difference
    raise ConfigError(f"kl kind is {kind!r}; it must be k1, k2 or k3")
