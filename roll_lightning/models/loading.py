"""Causal language models from a folder, a hub name, or a config alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from roll_lightning.data.encode import first_line
from roll_lightning.errors import ConfigError
from roll_lightning.models.quiet import no_progress_bars

DType = Literal["float32", "bfloat16", "float16"]
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass
class PolicyConfig:
    """A language model and its tokenizer.

    Args:
        path: local folder or hub name.
        from_scratch: make random weights from the folder's ``config.json`` instead of loading any.
        tokenizer: folder or hub name of the tokenizer; ``None`` takes ``path``.
        chat_template: name of a shipped template, or a .jinja file; ``None`` keeps the tokenizer's.
        dtype: of the weights. Keep float32 for training and set ``trainer.precision: bf16-mixed`` for bfloat16 matrix
            products over float32 master weights.
        attn_implementation: how transformers computes attention (sdpa, eager, flash_attention_2, …).
        gradient_checkpointing: compute activations again in backward instead of keeping them.
    """

    path: str
    from_scratch: bool = False
    tokenizer: str | None = None
    chat_template: str | None = None
    dtype: DType = "float32"
    attn_implementation: str = "sdpa"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DType):
            raise ConfigError(f"model.policy.dtype is {self.dtype!r}; it must be one of {', '.join(get_args(DType))}")


def check_model_path(config: PolicyConfig) -> None:
    """Find a wrong path before anything is loaded.

    Raises:
        ConfigError: a local folder is missing, or is no model.
    """
    folder = Path(config.path).expanduser()
    if not config.path:
        raise ConfigError("model.policy.path is empty; give a folder with config.json, or a hub name")
    if not folder.exists():
        if not _may_be_hub_name(config.path):
            raise ConfigError(
                f"model.policy.path {config.path} does not exist; give a folder with config.json, or a hub name"
            )
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model.policy.path {config.path} has no config.json; give a folder of a Hugging Face model")
    if not config.from_scratch and not _has_weights(folder):
        raise ConfigError(
            f"model.policy.path {config.path} has no weights; set model.policy.from_scratch true to start from random "
            f"ones, or give a folder with model.safetensors"
        )


def load_causal_lm(config: PolicyConfig, seed: int, dropout: bool = True) -> nn.Module:
    """A ``transformers`` causal language model.

    Args:
        config: which.
        seed: of random weights; the global random state is left alone.
        dropout: false sets every dropout to 0, as reinforcement learning needs (else no ratio is 1).

    Raises:
        ConfigError: it cannot be loaded, or some of its weights are missing.
    """
    check_model_path(config)
    model_config = load_model_config(config)
    if not dropout:
        turn_off_dropout(model_config)
    # What can be wrong with a model's files is open-ended: safetensors and config checks have errors of their own.
    try:
        with no_progress_bars():
            model, missing = _load(config, model_config, seed)
    except Exception as error:
        raise _cannot_load(config, error) from error
    if missing:
        raise ConfigError(
            f"model.policy.path {config.path} lacks {len(missing)} weights, {missing[0]} among them, which would start "
            f"at random; give a folder with all weights of a causal language model"
        )
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def load_model_config(config: PolicyConfig) -> Any:
    """The ``transformers`` config of the model, without its weights.

    Raises:
        ConfigError: it cannot be loaded.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(_source(config))
    except Exception as error:
        raise _cannot_load(config, error) from error


def max_positions(config: PolicyConfig) -> int | None:
    """Tokens that the model has positions for; ``None`` for a model without such a limit.

    Raises:
        ConfigError: its config cannot be loaded.
    """
    return getattr(load_model_config(config).get_text_config(), "max_position_embeddings", None)


def _load(config: PolicyConfig, model_config: Any, seed: int) -> tuple[Any, list[str]]:
    """The model, and the names of the weights that its files did not have."""
    from transformers import AutoModelForCausalLM

    settings: dict[str, Any] = {
        "dtype": getattr(torch, config.dtype),
        "attn_implementation": config.attn_implementation,
    }
    if config.from_scratch:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(model_config, **settings), []
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        _source(config), config=model_config, output_loading_info=True, **settings
    )
    return loaded[0], sorted(loaded[1]["missing_keys"])


def _source(config: PolicyConfig) -> str:
    folder = Path(config.path).expanduser()
    return str(folder) if folder.is_dir() else config.path


def _cannot_load(config: PolicyConfig, error: Exception) -> ConfigError:
    mismatch = "ignore_mismatched_sizes" in str(error)
    reason = "its weights have other shapes than its config.json says" if mismatch else first_line(error)
    return ConfigError(
        f"model.policy.path {config.path} cannot be loaded: {reason}; give a local folder of a causal language model, "
        f"or a hub name with the network on"
    )


def turn_off_dropout(config: Any) -> None:
    """Set every dropout probability of a model config to 0, those of the configs inside it too."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_json_string"):
            turn_off_dropout(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def model_facts(config: Any) -> dict[str, Any]:
    """The part of a model's config that decides the shape of its weights, as JSON values.

    Written to checkpoints, so that a run cannot go on with another model.
    """
    skipped = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures")
    facts = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in facts.items() if key not in skipped and "attn_implementation" not in key}


def _has_weights(folder: Path) -> bool:
    patterns = ("*.safetensors", "*.bin", "*.safetensors.index.json")
    return any(any(folder.glob(pattern)) for pattern in patterns)


def _may_be_hub_name(path: str) -> bool:
    """Whether a path that does not exist is spelt ``name`` or ``owner/name``, and no folder ``owner`` is here."""
    parent = Path(path).parent
    return bool(_HUB_NAME.fullmatch(path)) and not path.startswith(".") and not (parent != Path() and parent.is_dir())
