"""Estimates of the KL divergence between the policy and a reference, per token, and the exact one."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError

KLKind = Literal["k1", "abs", "k2", "k3"]

# exp(20) is 5e8: finite in every float type but float16, and far beyond any difference worth telling apart.
MAX_EXPONENT = 20.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: KLKind, mask: Tensor | None = None) -> Tensor:
    """Estimate KL(policy ‖ reference) from one sampled token at each place.

    With ``d = logprobs - ref_logprobs`` (J. Schulman, "Approximating KL Divergence", 2020,
    http://joschu.net/blog/kl-approx.html; ``abs`` is a penalty of ROLL and TRL, no estimate of a KL):

    ==== ==================== =======================================================
    kind value                as an estimate of the KL, token ~ policy
    ==== ==================== =======================================================
    k1   ``d``                unbiased, can be negative
    abs  ``|d|``              biased: never below the KL, first order where KL is second
    k2   ``d² / 2``           biased, never negative
    k3   ``exp(-d) - 1 + d``  unbiased, never negative: the low-variance form of k1,
                              which is k1 plus the control variate ``exp(-d) - 1``
    ==== ==================== =======================================================

    An unbiased value does not give an unbiased gradient (Tang & Munos, arXiv 2506.09477). For tokens sampled from
    the policy itself, per token with the prefix held fixed, the expected gradient is:

    ==== ============================================= =====================================================
    kind differentiated in the loss                    in the reward (times the gradient of ``logprobs``)
    ==== ============================================= =====================================================
    k1   0: no penalty at all                          ∇KL(policy ‖ reference), **exact**
    abs  of another divergence: ∇ Σ|policy-reference|, biased: weighs ``|d|``, blind to the sign of ``d``
         twice the total variation
    k2   ∇KL(policy ‖ reference), **exact**            biased: weighs ``d²/2``, blind to the sign of ``d``
    k3   biased: ∇KL(reference ‖ policy), the forward  biased: ∇KL(policy ‖ reference) minus
         KL                                            ∇KL(reference ‖ policy)
    ==== ============================================= =====================================================

    All are biased on tokens from another policy unless they are weighted by the importance ratio. The two columns of
    k3 add up to the exact gradient, and so do those of k1: ``ratio · estimate`` with ``ratio = exp(logprobs -
    old_logprobs)`` *not* detached is exact in the loss, on tokens of the old policy too.

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
    if kind == "abs":
        return difference.abs()
    if kind == "k2":
        return 0.5 * difference.square()
    if kind == "k3":
        # The whole of d is clamped: with the exponent alone, the gradient left over would drive d further down.
        difference = difference.clamp(min=-MAX_EXPONENT)
        return torch.expm1(-difference) + difference
    *most, last = get_args(KLKind)
    raise ConfigError(f"kl kind is {kind!r}; it must be {', '.join(most)} or {last}")


def kl_formula(kind: str) -> str:
    """An estimate in words, with ``d`` the difference of log-probabilities, for ``roll-lightning explain``."""
    return {"k1": "d", "abs": "abs(d)", "k2": "d² / 2", "k3": "exp(-d) - 1 + d"}[kind]


def full_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """Exact KL(policy ‖ reference) = ``Σ_v p_v (log p_v - log q_v)`` over the vocabulary, of each token's distribution.

    The direction is the reverse one of KL-regularised RL: the policy's probabilities weigh. Nothing is sampled, so
    there is no variance. Rows do not know of one another: the result of chunks of rows is the chunks of the result.

    In the loss its gradient is ∇KL(policy ‖ reference), **exact**, whoever sampled the prefixes. In the reward it gives
    the token at its own place no gradient (it is the same for all tokens); only tokens before it learn, to lead where
    the KL is small.

    Args:
        logits: ``[n, vocab]`` of the policy, already divided by the temperature; log-probabilities do as well.
        ref_logits: ``[n, vocab]`` of the reference, likewise; it gets no gradient.

    Returns:
        ``[n]`` in float32 (float64 for float64 logits), at least 0 up to rounding. Tokens with ``-inf`` in ``logits``
        add nothing; one with ``-inf`` in ``ref_logits`` only makes it infinite, as it is.

    Raises:
        ValueError: the shapes differ.
    """
    if logits.shape != ref_logits.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)}, the reference's {tuple(ref_logits.shape)}; they must agree"
        )
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_p = logits.to(dtype).log_softmax(-1)
    log_q = ref_logits.detach().to(dtype).log_softmax(-1)
    p = log_p.exp()
    # Where p is 0 the term is 0, even if 0 · inf stands there.
    return (p * torch.where(p > 0, log_p - log_q, 0.0)).sum(-1)
