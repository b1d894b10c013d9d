"""A tiny model and a task that it can learn in a minute: sort six digits. ``538210=`` is answered by ``012358``."""

from __future__ import annotations

import json
import random
from pathlib import Path

CHARACTERS = "0123456789="
DIGITS = 6


def make_task(folder: Path, seed: int, warmup: int = 9600, train: int = 6400, held_out: int = 256) -> None:
    """Write model config, tokenizer and rows. No number occurs in two files.

    Args:
        folder: gets ``model/`` and ``data/``.
        seed: of the choice of numbers.
        warmup: rows for supervised fine-tuning.
        train: prompts for reinforcement learning.
        held_out: prompts of each of the three files that nothing is trained on.
    """
    sizes = {"sft": warmup, "sft_val": held_out, "rlvr": train, "rlvr_val": held_out, "eval": held_out}
    numbers = random.Random(seed).sample(range(10**DIGITS), sum(sizes.values()))
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    start = 0
    for name, size in sizes.items():
        answer = "completion" if name.startswith("sft") else "answer"
        with (data / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in numbers[start : start + size]:
                digits = f"{number:0{DIGITS}d}"
                file.write(json.dumps({"prompt": digits + "=", answer: "".join(sorted(digits))}) + "\n")
        start += size
    make_model(folder / "model")


def make_model(folder: Path) -> None:
    """Write a tokenizer of one token per character and the config of a model of 0.4 million parameters."""
    from transformers import LlamaConfig

    from roll_lightning.models.tokenizer import character_tokenizer

    tokenizer = character_tokenizer(CHARACTERS)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
