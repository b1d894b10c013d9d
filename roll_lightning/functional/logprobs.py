"""Log-probabilities of chosen tokens, without ever holding the logits of all tokens over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from roll_lightning.errors import ConfigError

DEFAULT_CHUNK_ELEMENTS = 2**24


class TokenLogprobs(NamedTuple):
    """What :func:`token_logprobs` gives; a tuple, so that strategies find the tensors in it.

    Args:
        logprobs: ``[batch, tokens]``, aligned with ``input_ids``; 0.0 where no log-probability was asked for.
        entropy: ``[batch, tokens]``, of the distribution that each token was drawn from, in nats; ``None`` if it was
            not asked for.
        values: ``[batch, tokens]`` of a critic that shares the policy's body; ``None`` without one.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None


def count_chunks(positions: Tensor, vocab_size: int, max_chunk_elements: int = DEFAULT_CHUNK_ELEMENTS) -> int:
    """How many times :func:`token_logprobs` calls the head for these ``positions`` ``[batch, tokens]``; at least 1."""
    selected = int(positions[:, 1:].sum())
    return max(1, -(-selected // _chunk_size(vocab_size, max_chunk_elements)))


def token_logprobs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    input_ids: Tensor,
    positions: Tensor,
    *,
    vocab_size: int,
    temperature: float = 1.0,
    entropy: bool = False,
    postprocess: Callable[[Tensor], Tensor] | None = None,
    max_chunk_elements: int = DEFAULT_CHUNK_ELEMENTS,
    min_chunks: int = 1,
) -> TokenLogprobs:
    """Log-probability of each selected token given the tokens before it.

    ``logprobs[:, t] = log_softmax(postprocess(head(hidden[:, t - 1])) / temperature)[input_ids[:, t]]``

    The selected hidden states go through the head in chunks of ``max_chunk_elements // vocab_size`` tokens. With more
    than one chunk, backward computes each chunk's logits again instead of keeping them. If nothing is selected, the
    head still sees one hidden state and the zeros that come back hang on the graph, so that every parameter gets a
    gradient (DDP waits for it).

    Args:
        hidden: ``[batch, tokens, dim]``, last hidden states of a causal language model.
        head: maps ``[n, dim]`` to logits ``[n, vocab_size]``. It is called, not taken apart, since ZeRO-3, FSDP and
            LoRA work through module calls.
        input_ids: ``[batch, tokens]``.
        positions: ``[batch, tokens]`` bool, the tokens to score. Token 0 has nothing before it and is never scored.
        vocab_size: width of the head's output.
        temperature: divides the logits, after ``postprocess``.
        entropy: also give the entropy of each selected token's distribution.
        postprocess: what the model does to its logits after the head (soft-capping, scaling), shape kept.
        max_chunk_elements: most logits that exist at once; one token's logits always may.
        min_chunks: call the head at least so often. Where a call of the head is collective (ZeRO-3), every rank must
            make as many: give each the maximum of :func:`count_chunks` over the ranks.

    Returns:
        Values in float32 (float64 for float64 logits), whatever the model's precision.

    Raises:
        ConfigError: ``temperature``, ``max_chunk_elements`` or ``vocab_size`` cannot be.
    """
    if not temperature > 0:
        raise ConfigError(
            f"temperature is {temperature}; log-probabilities need one above 0 (a greedy sample has none)"
        )
    selected = positions.bool().clone()
    selected[:, 0] = False
    states = hidden[:, :-1][selected[:, 1:]]
    targets = input_ids[selected]
    size = _chunk_size(vocab_size, max_chunk_elements)
    chunks = list(zip(states.split(size), targets.split(size), strict=True)) if len(targets) else []
    real = len(chunks)
    chunks += [(hidden[:1, 0], input_ids[:1, 0])] * (max(1, min_chunks) - real)

    def score(chunk_states: Tensor, chunk_targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(chunk_states)
        if logits.shape[-1] != vocab_size:
            raise ConfigError(f"vocab_size is {vocab_size}, but the head gives {logits.shape[-1]} logits per token")
        if postprocess is not None:
            logits = postprocess(logits)
        return _SelectedLogSoftmax.apply(logits, chunk_targets, temperature, entropy)

    again = len(chunks) > 1 and torch.is_grad_enabled()
    scored = [checkpoint(score, *chunk, use_reentrant=False) if again else score(*chunk) for chunk in chunks]
    # A fill, not a product with 0: what does not count may be infinite.
    idle = [logprobs.masked_fill(torch.ones_like(logprobs, dtype=torch.bool), 0.0) for logprobs, _ in scored[real:]]
    logprobs = _spread([pair[0] for pair in scored[:real]], selected, like=scored[0][0])
    for zero in idle:
        logprobs = logprobs + zero
    entropies = _spread([pair[1] for pair in scored[:real]], selected, like=scored[0][1]) if entropy else None
    return TokenLogprobs(logprobs, entropies)


def _chunk_size(vocab_size: int, max_chunk_elements: int) -> int:
    for name, value in (("vocab_size", vocab_size), ("max_chunk_elements", max_chunk_elements)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be 1 or more")
    return max(1, max_chunk_elements // vocab_size)


def _spread(values: list[Tensor], selected: Tensor, like: Tensor) -> Tensor:
    """Put the values of the selected tokens, chunk after chunk, where they belong in ``[batch, tokens]``."""
    empty = like.new_zeros(selected.shape)
    return empty.masked_scatter(selected, torch.cat(values)) if values else empty


class _SelectedLogSoftmax(torch.autograd.Function):
    """Log-softmax at one index per row, and its entropy.

    Autograd's own form holds several tensors of the logits' size. This one saves the logits (the head's output, which
    exists anyway) and two numbers per row, and uses a single further buffer, in forward as in backward (two where the
    entropy has a gradient).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        index = targets[:, None]
        buffer = logits.to(dtype, copy=True).div_(temperature)
        largest = buffer.amax(-1, keepdim=True)
        picked = buffer.gather(-1, index)
        total = buffer.sub_(largest).exp_().sum(-1, keepdim=True)
        logprobs = picked.sub(largest).sub_(total.log())
        if entropy:
            probabilities = buffer.div_(total)
            entropies = torch.special.entr(probabilities, out=probabilities).sum(-1)
        else:
            entropies = buffer.new_empty(0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, index, largest + total.log(), entropies)
        ctx.temperature = temperature
        return logprobs.squeeze(-1), entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        """With p the softmax of the logits z over T: d log p_k / dz = (1_k - p) / T, dH / dz = -p (log p + H) / T."""
        logits, index, log_total, entropies = ctx.saved_tensors
        if grad is None and grad_entropy is None:
            return None, None, None, None
        grad = torch.zeros_like(log_total) if grad is None else grad[:, None].to(log_total.dtype)
        buffer = logits.to(log_total.dtype, copy=True).div_(ctx.temperature).sub_(log_total)
        if grad_entropy is not None and len(entropies):
            # Where p is 0, log p may be -inf, and p log p is 0.
            slope = buffer.clamp(min=-1e4).add_(entropies[:, None])
            slope.mul_(grad_entropy[:, None].to(buffer.dtype)).add_(grad)
            buffer = buffer.exp_().mul_(slope).neg_()
        else:
            buffer = buffer.exp_().mul_(-grad)
        buffer.scatter_add_(-1, index, grad).div_(ctx.temperature)
        return buffer.to(logits.dtype), None, None, None
