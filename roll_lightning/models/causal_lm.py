"""The policy: a causal language model that gives log-probabilities for training and logits for decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from roll_lightning.errors import ConfigError
from roll_lightning.functional.logprobs import DEFAULT_CHUNK_ELEMENTS, TokenLogprobs, count_chunks, token_logprobs
from roll_lightning.functional.values import token_values
from roll_lightning.models.full_tensors import is_zero3_parameter
from roll_lightning.models.modes import eval_mode


class CausalPolicy(nn.Module):
    """Wraps a ``transformers`` causal language model.

    Args:
        hf: the model.
        max_chunk_elements: most logits that exist at once while tokens are scored.
        base_digest: of the weights below its adapters; ``None`` without adapters, or where it cannot be taken.

    Attributes:
        value_head: of a critic that shares the body; ``None`` without one.
        values_reach_body: whether the gradient of the values flows into the body.
    """

    def __init__(
        self, hf: nn.Module, max_chunk_elements: int = DEFAULT_CHUNK_ELEMENTS, base_digest: str | None = None
    ) -> None:
        super().__init__()
        self.base_digest = base_digest
        self.hf: Any = hf
        self.max_chunk_elements = max_chunk_elements
        # Of a critic that shares the body: here, so that strategies shard and synchronise it with the rest.
        self.value_head: nn.Linear | None = None
        self.values_reach_body = True

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.hf.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.hf.parameters()).device

    @property
    def vocab_size(self) -> int:
        """Rows of the output matrix (may be more than the tokenizer has)."""
        return int(self.hf.get_output_embeddings().out_features)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        temperature: float = 1.0,
        entropy: bool = False,
    ) -> TokenLogprobs:
        """Log-probabilities of the tokens at ``positions``, and their values where there is a value head.

        Rows are right-padded, so no real token ever sees a padded one and no attention mask is needed.

        Args:
            input_ids: ``[batch, tokens]``.
            positions: ``[batch, tokens]`` bool, the tokens to score.
            temperature: divides the logits.
            entropy: also give the entropy at each position.
        """
        hidden = self.hf.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        scored = token_logprobs(
            hidden,
            self.hf.get_output_embeddings(),
            input_ids,
            positions,
            vocab_size=self.vocab_size,
            temperature=temperature,
            entropy=entropy,
            postprocess=logit_postprocess(self.config),
            max_chunk_elements=self.max_chunk_elements,
            min_chunks=self._chunks_of_any_rank(positions),
        )
        if self.value_head is None:
            return scored
        states = hidden if self.values_reach_body else hidden.detach()
        return scored._replace(values=token_values(states, self.value_head, positions))

    def _chunks_of_any_rank(self, positions: Tensor) -> int:
        """Calls of the head that every rank must make: under ZeRO-3 each is a collective."""
        if not any(map(is_zero3_parameter, self.hf.get_output_embeddings().parameters())):
            return 1
        chunks = torch.tensor(count_chunks(positions, self.vocab_size, self.max_chunk_elements), device=self.device)
        torch.distributed.all_reduce(chunks, torch.distributed.ReduceOp.MAX)
        return int(chunks)

    def decode(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any) -> Tensor:
        """Logits ``[batch, vocab]`` of the next token in float32; the cache grows in place."""
        output = self.hf(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    @torch.no_grad()
    def check_logits(self) -> None:
        """Compare our log-probabilities with those of the model's own logits on a few tokens.

        What the head gives is blown up for this, since soft-capping hardly changes the small logits of random weights.

        Raises:
            ConfigError: they differ, so the model changes its logits in a way that is not known here.
        """
        ids = (torch.arange(8, device=self.device) * 7 % self.vocab_size)[None]
        head = self.hf.get_output_embeddings()
        handle = head.register_forward_hook(lambda module, inputs, output: _blow_up(output))  # noqa: ARG005
        try:
            with eval_mode(self):
                ours = self(ids, torch.ones_like(ids, dtype=torch.bool)).logprobs[0, 1:]
                logits = self.hf(input_ids=ids, use_cache=False).logits[0, :-1].float()
        finally:
            handle.remove()
        plain = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        tolerance = 1e-3 if torch.finfo(head.weight.dtype).bits >= 32 else 0.2
        if not torch.allclose(ours.float(), plain, atol=tolerance, rtol=tolerance):
            raise ConfigError(
                f"model type {self.config.model_type} changes its logits in a way that is not known here "
                f"(log-probabilities differ by {(ours - plain).abs().max():.3g}); add it to models.causal_lm."
                f"logit_postprocess"
            )


def _blow_up(logits: Tensor) -> Tensor:
    """The logits, each token's times such a factor that the largest is 50."""
    largest = logits.abs().amax(-1, keepdim=True)
    return logits * (50 / largest.clamp(min=1e-6))


def logit_postprocess(config: Any) -> Callable[[Tensor], Tensor] | None:
    """What a model does to its logits after the head: soft-capping (Gemma 2), scaling (Cohere, Granite)."""
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    if cap:
        return lambda logits: cap * torch.tanh(logits / cap)
    if scale:
        return lambda logits: logits * scale
    if divisor:
        return lambda logits: logits / divisor
    return None
