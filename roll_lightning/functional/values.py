"""A critic's values, its loss, and how much of the returns it explains."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


def token_values(hidden: Tensor, head: nn.Module, positions: Tensor) -> Tensor:
    """``V[:, t] = head(hidden[:, t - 1])``, what is expected before token t is written; 0 where not asked for.

    The head works in its own precision, without autocast: bfloat16 has too few digits to tell returns apart.

    Args:
        hidden: ``[batch, tokens, dim]``.
        head: maps ``dim`` to one number.
        positions: ``[batch, tokens]`` bool. Token 0 has nothing before it and no value.
    """
    dtype = next(head.parameters()).dtype
    with torch.autocast(hidden.device.type, enabled=False):
        values = head(hidden[:, :-1].to(dtype))[..., 0].float()
    values = nn.functional.pad(values, (1, 0))
    asked = positions.bool().clone()
    asked[:, 0] = False
    return torch.where(asked, values, 0.0)


class ValueLoss(NamedTuple):
    """What :func:`value_loss` gives.

    Args:
        per_token: ``[batch, tokens]``.
        clipped: ``[batch, tokens]`` bool, where the clip took the gradient away.
    """

    per_token: Tensor
    clipped: Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None) -> ValueLoss:
    """Half the squared error of the critic, which may move by ``clip`` at most from where the iteration began.

    ``l_t = 1/2 max((V_t - R_t)², (clip(V_t, V_old - c, V_old + c) - R_t)²)`` (OpenAI's PPO, 2017). Where the clipped
    error is the larger one, the value has gone far enough towards its return, and there is no gradient.

    Args:
        values: ``[batch, tokens]`` of the critic now; the gradient flows into them.
        old_values: ``[batch, tokens]`` of the critic at the start of the iteration.
        returns: ``[batch, tokens]``, what is learned.
        mask: ``[batch, tokens]``; what stands where it is false changes neither value nor gradient.
        clip: ``c``, in units of the reward; ``None`` leaves the plain squared error.
    """
    mask = mask.bool()
    values, returns = torch.where(mask, values, 0.0), torch.where(mask, returns, 0.0)
    plain = (values - returns).square()
    if clip is None:
        return ValueLoss(0.5 * plain, torch.zeros_like(mask))
    old = torch.where(mask, old_values, 0.0)
    limited = (old + (values - old).clamp(-clip, clip) - returns).square()
    return ValueLoss(0.5 * torch.maximum(plain, limited), limited > plain)


def value_loss_formula(clip: float | None) -> str:
    """The loss of a token in words, with R the return, for ``roll-lightning explain``."""
    if clip is None:
        return "(V - R)² / 2"
    return f"max((V - R)², (clip(V, V_old - {clip:g}, V_old + {clip:g}) - R)²) / 2"


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """``1 - Var(R - V) / Var(R)`` over the mask's tokens: 1 for a perfect critic, 0 for one that knows the mean only.

    0 where the returns do not vary.
    """
    mask = mask.bool()
    learned, error = returns[mask].double(), (returns - values)[mask].double()
    if len(learned) < 2 or not learned.var():
        return 0.0
    return float(1 - error.var() / learned.var())
