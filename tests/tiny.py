"""Tiny models, tokenizers, data and runs for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

CHARACTERS = "0123456789="
VOCABULARY = len(CHARACTERS) + 3  # pad, eos, unknown


def tiny_config(model_type: str = "llama", **changes: Any) -> Any:
    """The config of a model of two layers; any key can be changed."""
    from transformers import AutoConfig

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    return AutoConfig.for_model(model_type, **{**settings, **changes})


def write_model(folder: Path, model_type: str = "llama", weights: bool = False, **changes: Any) -> Path:
    """Write config and character tokenizer, with ``weights`` a whole Hugging Face model; the folder."""
    import torch
    from transformers import AutoModelForCausalLM

    from roll_lightning.models.tokenizer import character_tokenizer

    config = tiny_config(model_type, **changes)
    if weights:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    character_tokenizer(CHARACTERS).save_pretrained(folder)
    return folder


def write_instruct_model(folder: Path) -> Path:
    """Write a whole model of two layers with a chat template, one token per printable character; the folder."""
    import string

    import torch
    from transformers import AutoModelForCausalLM

    from roll_lightning.models.tokenizer import character_tokenizer, read_chat_template

    tokenizer = character_tokenizer(string.printable)
    tokenizer.chat_template = read_chat_template("plain")
    tokenizer.save_pretrained(folder)
    config = tiny_config(vocab_size=len(tokenizer), max_position_embeddings=256)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sorting_rows(count: int, digits: int = 3, start: int = 0, answer: str = "answer") -> list[dict[str, str]]:
    """Tasks like ``312=`` → ``123``, all different; ``answer`` is the column's name."""
    rows = []
    for number in range(start, start + count):
        text = f"{(number * 7919) % 10**digits:0{digits}d}"
        rows.append({"prompt": text + "=", answer: "".join(sorted(text))})
    return rows


def quiet_trainer(root: Path, *callbacks: Callback, **settings: Any) -> Trainer:
    """A Trainer on one CPU without bars and summaries."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": root,
        "use_distributed_sampler": False,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "callbacks": list(callbacks),
    }
    return Trainer(**{**defaults, **settings})
