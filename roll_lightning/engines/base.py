"""What every engine offers: requests in, completions out, and weights that carry a version."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from roll_lightning.data.types import FinishReason
from roll_lightning.errors import ConfigError


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn.

    Args:
        max_new_tokens: longest response, the stop token included.
        temperature: divides the logits; 0 takes the most likely token.
        top_p: keeps the smallest set of tokens whose probability reaches it; 1 keeps all.
        top_k: keeps the k most likely tokens; 0 keeps all.
        stop: strings that end a response. The tokens stay in it, the text is cut before the string.
        stop_token_ids: tokens that end a response and stay in it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}; it must be 1 or more")
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must be in (0, 1]")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; it must be 0 (off) or more")


@dataclass(frozen=True)
class Request:
    """One sample to generate.

    Args:
        prompt_token_ids: what to continue.
        params: how to draw.
        seed: all randomness of this sample; nothing else decides it, neither global state nor the batch.
        group: requests of one group have the same prompt; an engine may compute it once.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    group: int


@dataclass
class Completion:
    """The answer to a request.

    Args:
        token_ids: the response, the stop token included.
        logprobs: log-probability of each of them under the distribution that it was drawn from.
        text: the decoded response, cut before a stop string, special tokens left out.
        finish_reason: ``"stop"`` or ``"length"``.
        weight_version: lowest and highest version of the weights that wrote it.
    """

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: FinishReason
    weight_version: tuple[int, int]


@dataclass(frozen=True)
class SyncReceipt:
    """What an engine got in one weight sync.

    Args:
        version: the weights' version from now on.
        tensors: how many tensors travelled (0: the engine reads the trainer's own).
        bytes: how many bytes travelled.
        seconds: wall time.
    """

    version: int
    tensors: int
    bytes: int
    seconds: float


class Engine(ABC):
    """Generates with a policy. ``version`` is that of the weights it has, -1 before the first sync."""

    version: int = -1

    @abstractmethod
    def bind(self, policy: Any, tokenizer: Any) -> None:
        """Called once before the first generation with the trainer's policy and tokenizer."""

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer each request, in the order of the requests."""

    @abstractmethod
    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> SyncReceipt:
        """Take the trainer's weights. ``named_tensors`` is lazy: an engine that shares them need not read it."""

    def close(self) -> None:  # noqa: B027
        """Free what the engine holds."""


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) from its parts, e.g. (run seed, iteration, prompt id, sample number); stable everywhere."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
