from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roll_lightning.functional.logprobs import token_logprobs


class LargestTensor(TorchDispatchMode):
    """Records the most elements of any tensor that an operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.elements = max(self.elements, leaf.numel())
        return result


def test_T52_full_vocabulary_logits_never_exist():
    batch, tokens, dim, vocab, chunk = 2, 65, 4, 300, 8
    torch.manual_seed(0)
    hidden = torch.randn(batch, tokens, dim, requires_grad=True)
    head = nn.Linear(dim, vocab)
    ids = torch.randint(vocab, (batch, tokens))
    positions = torch.ones(batch, tokens, dtype=torch.bool)

    def largest(limit: int) -> int:
        with LargestTensor() as record:
            out = token_logprobs(
                hidden, head, ids, positions, vocab_size=vocab, temperature=1.5, entropy=True, max_chunk_elements=limit
            )
            out.logprobs.sum().backward()
        return record.elements

    assert largest(chunk * vocab) == chunk * vocab
    assert largest(10**9) == batch * (tokens - 1) * vocab  # the record sees it when it does exist


def peak_elements(step: Callable[[], None]) -> float:
    """The most float32 numbers that ``step`` had allocated at once, by the allocator's own record."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    live = peak = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak / 4


def test_T52_peak_memory_measured():
    tokens, dim, vocab, chunk = 513, 8, 4096, 32
    hidden = torch.randn(1, tokens, dim, requires_grad=True)
    head = nn.Linear(dim, vocab)
    ids = torch.randint(vocab, (1, tokens))
    positions = torch.ones(1, tokens, dtype=torch.bool)

    def step(limit: int) -> None:
        out = token_logprobs(
            hidden, head, ids, positions, vocab_size=vocab, temperature=1.5, entropy=True, max_chunk_elements=limit
        )
        out.logprobs.sum().backward()

    step(10**9)
    full = (tokens - 1) * vocab
    rest = 4 * (vocab + tokens) * dim  # gradients of the weight and of the hidden states, and their sums
    # At any time, in forward as in backward, there are the logits of one chunk and one more buffer of their size.
    assert peak_elements(lambda: step(10**9)) < 2 * full + rest
    assert peak_elements(lambda: step(10**9)) > 2 * full
    assert peak_elements(lambda: step(chunk * vocab)) < 2 * chunk * vocab + rest < full / 4
