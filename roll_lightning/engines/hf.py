"""The in-process engine: generates with the model that is being trained."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from roll_lightning.engines import kv_cache
from roll_lightning.engines.base import Completion, Engine, Request, SyncReceipt
from roll_lightning.engines.decode_batch import DecodeBatch, PromptStates, Transcript
from roll_lightning.engines.sampling import UniformStreams, draw_tokens
from roll_lightning.engines.stopping import StopStrings, cut_at_stop
from roll_lightning.errors import ConfigError, EngineError
from roll_lightning.models.modes import eval_mode

PromptKey = tuple[int, tuple[int, ...]]


class HFEngine(Engine):
    """Batched generation with the trainer's own weights: no copy, no second process.

    Prompts are padded on the left in here and nowhere else. The prompt of a group is computed once and its KV cache
    handed to the members. Finished rows leave the batch and waiting requests take their place. Every request draws
    from its own stream of uniforms, so batch size, order and neighbours change its result by rounding at most.

    Args:
        max_batch_size: rows that decode at once; bounds the memory of the KV cache.
        compact_fraction: the share of a batch that must have finished before its rows are cut out of the KV cache,
            and the share of ``max_batch_size`` that must be free before waiting requests enter. Small values waste
            no computation on finished rows, large ones save copies of the cache and prompt forwards.
    """

    def __init__(self, max_batch_size: int = 256, compact_fraction: float = 0.125) -> None:
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size is {max_batch_size}; it must be 1 or more")
        if not 0 <= compact_fraction <= 1:
            raise ConfigError(f"compact_fraction is {compact_fraction}; it must be between 0 and 1")
        self.max_batch_size = max_batch_size
        self.compact_fraction = compact_fraction
        self._policy: Any = None
        self._tokenizer: Any = None
        self._any_rank_busy: Callable[[bool], bool] | None = None

    def bind(self, policy: Any, tokenizer: Any) -> None:
        """Take the policy and the tokenizer.

        Args:
            policy: a module with ``config``, ``device`` and ``decode(input_ids, attention_mask, position_ids,
                past_key_values)``, which updates the cache in place and returns the last position's raw logits,
                float32 `[batch, vocab]`.
            tokenizer: decodes responses.

        Raises:
            EngineError: if the model's cache is not a plain attention cache.
        """
        kv_cache.check_config(policy.config)
        self._policy = policy
        self._tokenizer = tokenizer

    def set_lockstep(self, any_rank_busy: Callable[[bool], bool] | None) -> None:
        """Run as many forwards as every other rank, for policies whose forward is a collective (FSDP2, ZeRO-3).

        Args:
            any_rank_busy: called before each forward, prompt or decode, with "this rank wants one"; answers whether
                any rank does (a MAX all-reduce). A rank that has finished runs one-token forwards until no rank wants
                one. Every rank must call ``generate``, if only with no requests. ``None`` turns it off.
        """
        self._any_rank_busy = any_rank_busy

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer each request, in their order.

        Only the requests' own stop tokens end a response; the tokenizer's end-of-sequence token is not added to them.

        Raises:
            ConfigError: for a prompt that is empty, too long for the model or outside the vocabulary, or a stop string
                that cannot occur. All requests are checked before the first forward.
            EngineError: before ``bind``, and for logits that are not finite.
        """
        if self._policy is None:
            raise EngineError("HFEngine.generate was called before bind(policy, tokenizer)")
        self._check(requests)
        stop_strings = StopStrings(self._tokenizer, requests)
        transcript = Transcript()
        with torch.no_grad(), eval_mode(self._policy):
            self._run(requests, stop_strings, transcript)
            self._wait_for_other_ranks()
        return self._completions(requests, transcript) if requests else []

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> SyncReceipt:  # noqa: ARG002
        """Note the version. The weights are the trainer's own, so no tensor is read and none travels."""
        start = time.perf_counter()
        self.version = version
        return SyncReceipt(version=version, tensors=0, bytes=0, seconds=time.perf_counter() - start)

    def close(self) -> None:
        """Let go of policy and tokenizer."""
        self._policy = self._tokenizer = None

    def _run(self, requests: Sequence[Request], stop_strings: StopStrings, transcript: Transcript) -> None:
        """Admit, draw, retire, decode, until every request has its answer."""
        uniforms = UniformStreams([request.seed for request in requests])
        prompts = _PromptQueue(requests, self._prefill)
        batch: DecodeBatch | None = None
        while True:
            batch = self._admit(batch, prompts)
            if batch is None:
                return
            tokens = self._draw(batch, uniforms, stop_strings, transcript)
            batch, tokens = self._retire(batch, tokens)
            if batch is not None:
                self._decode(batch, tokens)

    def _admit(self, batch: DecodeBatch | None, prompts: _PromptQueue) -> DecodeBatch | None:
        """Let waiting requests in if enough rows are free."""
        free = self.max_batch_size - (len(batch) if batch else 0)
        enough = batch is None or free >= max(1, self.compact_fraction * self.max_batch_size)
        if not prompts or not enough:
            return batch
        entering = prompts.take(free)
        if batch is None:
            return entering
        batch.append(entering)
        return batch

    def _draw(
        self, batch: DecodeBatch, uniforms: UniformStreams, stop_strings: StopStrings, transcript: Transcript
    ) -> Tensor:
        """Draw a token for each row, record those of live rows, and return them on the policy's device, `[rows]`."""
        states = batch.states
        quantiles = uniforms.draw(batch.rows, states.logits.device)
        tokens, logprobs = draw_tokens(states.logits, quantiles, batch.sampling)
        live = ~batch.finished
        drawn, drawn_logprobs = tokens.cpu(), logprobs.cpu()
        stopped = batch.advance(drawn, stop_strings)
        transcript.add(batch.row_ids[live], drawn[live], drawn_logprobs[live], stopped[live])
        return tokens

    def _retire(self, batch: DecodeBatch, tokens: Tensor) -> tuple[DecodeBatch | None, Tensor]:
        """Cut finished rows out, once they are many enough; ``None`` if no row is left."""
        finished = int(batch.finished.sum())
        if finished == len(batch):
            return None, tokens
        if finished and finished >= self.compact_fraction * len(batch):
            keep = (~batch.finished).nonzero().squeeze(1)
            batch.select(keep)
            tokens = tokens[keep.to(tokens.device)]
        return batch, tokens

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> PromptStates:
        """Read prompts, padded on the left to the longest of them."""
        device = self._policy.device
        width = max(map(len, prompts))
        padded = [(0,) * (width - len(prompt)) + prompt for prompt in prompts]
        input_ids = torch.tensor(padded, device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = kv_cache.left_padding_mask(lengths, width)
        positions = (mask.cumsum(dim=1) - 1).clamp_(min=0)
        cache = kv_cache.new_cache()
        logits = self._forward(input_ids, mask, positions, cache)
        kv_cache.check_filled(cache, len(prompts), width, getattr(self._policy.config, "model_type", "unknown"))
        return PromptStates(cache, lengths, logits)

    def _decode(self, batch: DecodeBatch, tokens: Tensor) -> None:
        """Feed one token per row and keep the logits of the next."""
        states = batch.states
        positions = states.lengths[:, None]
        limit = _max_positions(self._policy.config)
        if limit is not None:
            # Only rows that have finished and were not cut out yet can stand beyond the last position.
            positions = positions.clamp(max=limit - 1)
        states.lengths = states.lengths + 1
        mask = kv_cache.left_padding_mask(states.lengths, states.cache.get_seq_length() + 1)
        states.logits = self._forward(tokens[:, None], mask, positions, states.cache)

    def _forward(self, input_ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """The one place where the policy runs for a request."""
        if self._any_rank_busy is not None:
            self._any_rank_busy(True)
        return self._policy.decode(input_ids, mask, positions, cache)

    def _wait_for_other_ranks(self) -> None:
        """Run one-token forwards while another rank still needs this one's part of the weights."""
        if self._any_rank_busy is None:
            return
        one = torch.ones(1, 1, dtype=torch.long, device=self._policy.device)
        while self._any_rank_busy(False):
            self._policy.decode(one - 1, one, one - 1, kv_cache.new_cache())

    def _check(self, requests: Sequence[Request]) -> None:
        config = self._policy.config
        positions = _max_positions(config)
        vocabulary = getattr(config.get_text_config(), "vocab_size", None)
        for number, request in enumerate(requests):
            prompt, new = request.prompt_token_ids, request.params.max_new_tokens
            if not prompt:
                raise ConfigError(f"request {number} has an empty prompt; give it at least one token")
            if positions is not None and len(prompt) + new > positions:
                raise ConfigError(
                    f"request {number}: a prompt of {len(prompt)} tokens and max_new_tokens {new} make "
                    f"{len(prompt) + new}, but the model has {positions} positions; shorten one of them"
                )
            if vocabulary is not None and not 0 <= min(prompt) <= max(prompt) < vocabulary:
                raise ConfigError(
                    f"request {number}: its prompt holds a token id outside 0 to {vocabulary - 1}; "
                    "tokenizer and model do not belong together"
                )

    def _completions(self, requests: Sequence[Request], transcript: Transcript) -> list[Completion]:
        parts = transcript.split(len(requests))
        texts = self._tokenizer.batch_decode(
            [tokens for tokens, _, _ in parts], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return [
            Completion(tokens, logprobs, cut_at_stop(text, request.params.stop), reason, (self.version, self.version))
            for request, text, (tokens, logprobs, reason) in zip(requests, texts, parts, strict=True)
        ]


class _PromptQueue:
    """Waiting requests, group by group, and the state of a prompt whose members did not all fit in yet."""

    def __init__(
        self, requests: Sequence[Request], prefill: Callable[[Sequence[tuple[int, ...]]], PromptStates]
    ) -> None:
        self._requests = requests
        self._prefill = prefill
        members: dict[PromptKey, list[int]] = {}
        for number, request in enumerate(requests):
            members.setdefault((request.group, request.prompt_token_ids), []).append(number)
        # Group by group, so at most one prompt is only partly handed out.
        self._waiting = deque(number for numbers in members.values() for number in numbers)
        self._kept: tuple[PromptKey, PromptStates] | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, count: int) -> DecodeBatch:
        """The next ``count`` requests (or all that are left), their prompts computed once per group."""
        rows = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        keys = [self._key(row) for row in rows]
        unique = list(dict.fromkeys(keys))
        states = self._states(unique)
        prompt_rows = {key: index for index, key in enumerate(unique)}
        device = states.lengths.device
        self._kept = None
        if self._waiting and self._key(self._waiting[0]) == keys[-1]:
            self._kept = (keys[-1], states.copy(torch.tensor([len(unique) - 1], device=device)))
        if len(unique) < len(rows):
            states.select(torch.tensor([prompt_rows[key] for key in keys], device=device))
        return DecodeBatch(self._requests, rows, states)

    def _states(self, keys: list[PromptKey]) -> PromptStates:
        """The states of these prompts; only the first can be known from before."""
        if self._kept is None or self._kept[0] != keys[0]:
            return self._prefill([prompt for _, prompt in keys])
        states = self._kept[1]
        if len(keys) > 1:
            states.append(self._prefill([prompt for _, prompt in keys[1:]]))
        return states

    def _key(self, row: int) -> PromptKey:
        return self._requests[row].group, self._requests[row].prompt_token_ids


def _max_positions(config: Any) -> int | None:
    return getattr(config.get_text_config(), "max_position_embeddings", None)
