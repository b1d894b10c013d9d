"""Drawing tokens: temperature, top-k, top-p, and one stream of uniforms per request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roll_lightning.engines.base import SamplingParams


@dataclass(frozen=True)
class RowSampling:
    """The sampling parameters of a batch, one entry per row; ``None`` where no row needs the step.

    A greedy row takes the mode and reports its log-probability at temperature 1 without filters.

    Args:
        temperature: float32 `[rows]`, 1 for greedy rows; ``None`` if it is 1 for all.
        top_k: int64 `[rows]`, a huge number where off; ``None`` if no row filters.
        top_p: float64 `[rows]`, 1 where off; ``None`` if no row filters.
        greedy: bool `[rows]`; ``None`` if no row is greedy.
    """

    temperature: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    greedy: Tensor | None

    @classmethod
    def from_params(cls, params: Sequence[SamplingParams], device: torch.device) -> RowSampling:
        """Stack the parameters of the rows on ``device``."""
        greedy = [p.temperature == 0 for p in params]
        temperature = [p.temperature or 1.0 for p in params]
        top_k = [p.top_k if p.top_k and p.temperature else torch.iinfo(torch.long).max for p in params]
        top_p = [p.top_p if p.temperature else 1.0 for p in params]
        filters = any((p.top_k or p.top_p < 1) and p.temperature for p in params)
        return cls(
            temperature=torch.tensor(temperature, device=device) if any(t != 1 for t in temperature) else None,
            top_k=torch.tensor(top_k, device=device) if filters else None,
            top_p=torch.tensor(top_p, dtype=torch.float64, device=device) if filters else None,
            greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
        )


class UniformStreams:
    """One stream of uniforms in [0, 1) per request, seeded by the request alone.

    Python's Mersenne Twister: the sequence of ``random()`` for an integer seed is guaranteed to stay the same over
    versions, it lives on the CPU whatever the policy's device, and no global state is read or written.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [random.Random(seed) for seed in seeds]

    def draw(self, requests: Sequence[int], device: torch.device) -> Tensor:
        """The next uniform of each of these requests, float64 `[rows]`."""
        values = [self._generators[request].random() for request in requests]
        return torch.tensor(values, dtype=torch.float64, device=device)


def filtered_log_softmax(logits: Tensor, sampling: RowSampling) -> Tensor:
    """Log-probabilities `[rows, vocab]` of the distribution that tokens are drawn from.

    Temperature first, then top-k, then top-p on what top-k left, then renormalised; ``-inf`` outside the kept set.
    """
    if sampling.temperature is not None:
        logits = logits / sampling.temperature[:, None]
    if sampling.top_k is not None and sampling.top_p is not None:
        logits = logits.masked_fill(~_kept(logits, sampling.top_k, sampling.top_p), -torch.inf)
    return torch.log_softmax(logits, dim=-1)


def _kept(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which tokens survive top-k and top-p, bool `[rows, vocab]`. Ties are kept in order of token id."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    keep = rank < top_k[:, None]
    mass = torch.softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1, dtype=torch.float64)
    # A token is kept while the more likely ones have not reached top_p, so the smallest sufficient set stays.
    before = mass.cumsum(dim=-1) - mass
    # Rounding may lift `before` to 1 in the tail; top_p = 1 keeps all the same.
    keep &= (before < top_p[:, None]) | (top_p[:, None] >= 1)
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter(-1, order, keep)


def inverse_cdf(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens `[rows]` at the quantiles ``uniforms`` `[rows]` of ``logprobs`` `[rows, vocab]`, in token-id order.

    The cumulative sum is float64, and a token of probability 0 is never drawn.
    """
    cdf = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    # A float64 below 1 times a total near 1 stays below the total, so the search ends at a token of the support.
    return torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True).squeeze(-1)


def draw_tokens(logits: Tensor, uniforms: Tensor, sampling: RowSampling) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Args:
        logits: raw logits, float32 `[rows, vocab]`.
        uniforms: float64 `[rows]` in [0, 1).
        sampling: how each row draws.

    Returns:
        Tokens `[rows]` and their log-probabilities, float32 `[rows]`, under the distribution they were drawn from.
        A row whose logits hold NaN or +inf gives a log-probability that is not finite.
    """
    logprobs = filtered_log_softmax(logits, sampling)
    # NaN rows would send the search past the end; the caller finds them by their log-probability.
    tokens = inverse_cdf(logprobs, uniforms).clamp_(max=logits.shape[-1] - 1)
    if sampling.greedy is not None:
        tokens = torch.where(sampling.greedy, logits.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)
