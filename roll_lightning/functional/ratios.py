"""Importance ratios between two policies: per token, per sequence or per segment."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError

RatioLevel = Literal["token", "sequence", "segment"]

# exp(20) is 5e8: far beyond any ratio worth telling apart, and finite in every float type but float16.
MAX_LOG_RATIO = 20.0


def check_ratio_level(name: str, level: str) -> None:
    """Find a wrong setting before a model loads.

    Args:
        name: the setting's name in the message.
        level: its value.

    Raises:
        ConfigError: there is no such level.
    """
    if level not in get_args(RatioLevel):
        raise ConfigError(f"{name} is {level!r}; it must be token, sequence or segment")


def masked_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """``logprobs - old_logprobs`` ``[batch, tokens]``, 0 (value and gradient) where the mask is false.

    ``old_logprobs`` gets no gradient.
    """
    return torch.where(mask.bool(), logprobs - old_logprobs.detach(), 0.0)


def pool_log_ratio(log_ratio: Tensor, mask: Tensor, level: RatioLevel) -> Tensor:
    """Give all tokens of a sequence or segment the mean of their log-ratios.

    With ``d`` the log-ratio of a token:

    - ``token``: ``d`` itself.
    - ``sequence``: the mean of ``d`` over the row's mask tokens (GSPO, arXiv 2507.18071). It is a mean, not a sum, so
      that its size does not grow with the length.
    - ``segment``: the mean of ``d`` over a contiguous run of the mask, which is one turn of a dialogue. A hole in
      the mask inside a turn makes it two segments.

    The gradient flows through the mean: each token of the group gets its n-th part of the gradients of all n.

    Args:
        log_ratio: ``[batch, tokens]``.
        mask: ``[batch, tokens]``, true on tokens that count. What stands elsewhere changes nothing.
        level: see above.

    Returns:
        ``[batch, tokens]``, 0 where the mask is false.
    """
    mask = mask.bool()
    log_ratio = torch.where(mask, log_ratio, 0.0)
    if level == "token":
        return log_ratio
    if level == "sequence":
        mean = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(mask, mean, 0.0)
    ids = segment_ids(mask)
    empty = log_ratio.new_zeros(log_ratio.shape[0], log_ratio.shape[1] + 1)
    sums = empty.scatter_add(1, ids, log_ratio)
    counts = empty.scatter_add(1, ids, mask.to(log_ratio.dtype))
    return torch.where(mask, (sums / counts.clamp(min=1)).gather(1, ids), 0.0)


def importance_ratio(log_ratio: Tensor, mask: Tensor, level: RatioLevel) -> Tensor:
    """``exp`` of the pooled log-ratio: how much likelier the policy has become.

    At ``sequence`` it is GSPO's ``s = (π(y) / π_old(y))^(1/|y|)``, with GSPO's own gradient: that of ``s`` goes to all
    of the row's tokens in equal parts. (GSPO-token, the paper's variant with a stop-gradient on ``s``, gives each
    token the gradient of its own advantage. The two are the same if a row has one advantage.) The paper's objective,
    a mean over rows, is the aggregation ``seq-mean-token-mean``.

    The log-ratio is clamped to ±:data:`MAX_LOG_RATIO` before ``exp``; beyond, there is no gradient.

    Args:
        log_ratio: ``[batch, tokens]``.
        mask: ``[batch, tokens]``, true on tokens that count.
        level: see :func:`pool_log_ratio`.

    Returns:
        ``[batch, tokens]``, 1 where the mask is false.
    """
    return pool_log_ratio(log_ratio, mask, level).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def ratio_formula(level: RatioLevel, new: str = "π", old: str = "π_old") -> str:
    """The ratio of a level in words, for ``roll-lightning explain``."""
    if level == "token":
        return f"{new} / {old}"
    return f"exp({'mean_row' if level == 'sequence' else 'mean_turn'}(log({new} / {old})))"


def segment_ids(mask: Tensor) -> Tensor:
    """Number the contiguous runs of a mask ``[batch, tokens]``, from 1 in each row; 0 where it is false."""
    mask = mask.bool()
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    return starts.long().cumsum(-1) * mask
