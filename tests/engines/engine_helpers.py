"""A stand-in policy around tiny transformers models, and two tokenizers, for the tests of the engines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 \n"
PAD, EOS = 0, 1


class TinyPolicy(nn.Module):
    """The part of the policy's interface that an engine uses; counts and records its forwards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.shapes: list[tuple[int, int]] = []
        self.caches: list[Any] = []
        self.modes: list[bool] = []

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def decode(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any) -> Tensor:
        self.shapes.append(tuple(input_ids.shape))
        self.modes.append(self.model.training)
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()


def tiny_config(name: str = "qwen2", **changes: Any) -> Any:
    from transformers import LlamaConfig, MistralConfig, Qwen2Config

    kind = {"qwen2": Qwen2Config, "llama": LlamaConfig, "mistral": MistralConfig}[name]
    settings = {
        "vocab_size": len(CHARACTERS) + 2,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": None,
    }
    return kind(**{**settings, **changes})


def policy_of(config: Any, seed: int = 0) -> TinyPolicy:
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyPolicy(AutoModelForCausalLM.from_config(config)).eval()


def character_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": PAD, "<eos>": EOS, **{c: i + 2 for i, c in enumerate(CHARACTERS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def byte_tokenizer() -> Any:
    """A byte-level BPE with merges: most of its tokens can be written in several ways."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat. Größe 猫 é the answer is 42\n"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def full_logprobs(policy: TinyPolicy, prompt: tuple[int, ...], response: list[int], temperature: float) -> Tensor:
    """Log-probability of each response token by one plain forward over the sequence, as a trainer computes it."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *response]])).logits[0].float()
    rows = torch.log_softmax(logits / temperature, dim=-1)[len(prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(response)[:, None]).squeeze(1)
