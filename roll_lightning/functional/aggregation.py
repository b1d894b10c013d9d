"""From per-token losses to one number, exact over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError

AggregationMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def check_aggregation(mode: str, norm_length: float | None = None) -> None:
    """Find a wrong setting before a model loads.

    Raises:
        ConfigError: there is no such mode, or ``norm_length`` is missing, not positive, or of no use.
    """
    if mode not in get_args(AggregationMode):
        raise ConfigError(f"aggregation mode is {mode!r}; it must be one of {', '.join(get_args(AggregationMode))}")
    if mode == "seq-mean-token-sum-norm":
        if norm_length is None or not norm_length > 0:
            raise ConfigError(
                f"norm_length is {norm_length}; mode {mode} divides by it: give a constant above 0, "
                f"such as the longest response"
            )
    elif norm_length is not None:
        raise ConfigError(f"norm_length is {norm_length}, but mode {mode} does not use it; leave it out")


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    mode: AggregationMode,
    *,
    tokens: float,
    sequences: float,
    norm_length: float | None = None,
) -> Tensor:
    """This micro-batch's share of the window loss. The shares of all micro-batches and ranks add up to it exactly.

    With ``l`` the loss of token t of row i, ``m`` its mask, N the window's tokens, S its sequences:

    - ``token-mean``: ``sum_i sum_t m l / N``. Each token weighs the same (DAPO, arXiv 2503.14476).
    - ``seq-mean-token-sum``: ``sum_i (sum_t m l) / S``. The plain policy gradient.
    - ``seq-mean-token-mean``: ``sum_i (sum_t m l / sum_t m) / S``. Each row weighs the same (GRPO, arXiv 2402.03300).
    - ``seq-mean-token-sum-norm``: ``sum_i (sum_t m l) / (S norm_length)`` with a constant, so that a row's length
      does not weigh its tokens (Dr. GRPO, arXiv 2503.20783).

    Args:
        per_token: ``[batch, tokens]``. What stands in masked places, NaN included, changes neither value nor gradient.
        mask: ``[batch, tokens]``, true on tokens that count. It is the only mask: numerator and denominators use it.
        mode: see above.
        tokens: mask tokens of the whole optimizer window, over all micro-batches and ranks.
        sequences: rows of the window with a mask token.
        norm_length: the constant of ``seq-mean-token-sum-norm``.

    Returns:
        A scalar on the graph of ``per_token``; 0 in a window without mask tokens.

    Raises:
        ConfigError: see :func:`check_aggregation`.
        ValueError: the window is said to be empty, but this micro-batch has mask tokens.
    """
    check_aggregation(mode, norm_length)
    mask = mask.bool()
    masked = torch.where(mask, per_token, 0.0)
    total = masked.sum()
    if not tokens or not sequences:
        if mask.any():
            raise ValueError(f"the window has {tokens} tokens and {sequences} sequences, but this micro-batch has some")
        return total
    if mode == "token-mean":
        return total / tokens
    if mode == "seq-mean-token-mean":
        return (masked.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / sequences
    return total / (sequences * (norm_length or 1.0))


def aggregation_formula(mode: AggregationMode, loss: str, norm_length: float | None = None) -> str:
    """The window loss of token losses ``loss`` in words, for ``roll-lightning explain``.

    As in :func:`aggregate`; ``n_i`` are the mask tokens of row i.
    """
    if mode == "token-mean":
        return f"Σ_i Σ_t {loss} / N"
    if mode == "seq-mean-token-mean":
        return f"Σ_i (Σ_t {loss} / n_i) / S"
    return f"Σ_i Σ_t {loss} / " + ("S" if norm_length is None else f"(S {norm_length:g})")


def window_totals(masks: Iterable[Tensor]) -> tuple[int, int]:
    """Mask tokens, and rows with at least one, over all masks ``[batch, tokens]`` of an optimizer window."""
    tokens = sequences = 0
    for mask in masks:
        tokens += int(mask.bool().sum())
        sequences += int(mask.bool().any(-1).sum())
    return tokens, sequences
