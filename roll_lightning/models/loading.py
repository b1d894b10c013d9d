"""Causal language models from a folder, a hub name, or a config alone."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from roll_lightning.data.encode import first_line
from roll_lightning.errors import ConfigError
from roll_lightning.hub import hub_fault, is_below_local_folder, is_hub_name
from roll_lightning.models.adapter_files import (
    add_adapter,
    check_adapter_folder,
    is_adapter_folder,
    recorded_base,
    weights_digest,
)
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.models.full_tensors import full_tensors
from roll_lightning.models.lora import LoraConfig
from roll_lightning.models.quiet import no_progress_bars
from roll_lightning.models.zero3 import whole_modules

Bits = Literal[4, 8]
ModelKind = Literal["AutoModelForCausalLM", "AutoModelForTokenClassification"]
DType = Literal["float32", "bfloat16", "float16"]


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
        lora: train adapters on frozen weights; ``None`` trains all weights.
        quantize_bits: keep the frozen weights in 4 (NF4, QLoRA, arXiv 2305.14314) or 8 bits; needs ``lora``, and
            bitsandbytes (``pip install 'roll-lightning[qlora]'``).
    """

    path: str
    from_scratch: bool = False
    tokenizer: str | None = None
    chat_template: str | None = None
    dtype: DType = "float32"
    attn_implementation: str = "sdpa"
    gradient_checkpointing: bool = False
    lora: LoraConfig | None = None
    quantize_bits: Bits | None = None

    def __post_init__(self) -> None:
        if self.quantize_bits not in (None, *get_args(Bits)):
            raise ConfigError(f"model.policy.quantize_bits is {self.quantize_bits}; it must be 4 or 8")
        if self.quantize_bits is not None and (self.lora is None or self.from_scratch):
            raise ConfigError(
                f"model.policy.quantize_bits is {self.quantize_bits}, but quantised weights cannot be trained: set "
                f"model.policy.lora as well, on a model with weights (from_scratch: false)"
            )
        if self.dtype not in get_args(DType):
            raise ConfigError(f"model.policy.dtype is {self.dtype!r}; it must be one of {', '.join(get_args(DType))}")


def check_policy(config: PolicyConfig, key: str = "model.policy") -> None:
    """Find wrong paths and missing libraries before anything is loaded.

    Args:
        config: which.
        key: where it stands in a config file, for messages.

    Raises:
        ConfigError: a local folder is missing, or is no model (or adapter), or bitsandbytes is not installed.
    """
    _check_model_path(config, key)
    if config.lora is not None:
        check_adapter_folder(config.lora)
    if config.quantize_bits is not None and find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"model.policy.quantize_bits is {config.quantize_bits}, but bitsandbytes is not installed; "
            "pip install 'roll-lightning[qlora]'"
        )


def load_policy(config: PolicyConfig, seed: int, dropout: bool = True) -> CausalPolicy:
    """A policy with its adapters, not yet sharded (but under ZeRO-3, see :mod:`roll_lightning.models.zero3`).

    Args:
        config: which.
        seed: of random weights; the global random state is left alone.
        dropout: false sets every dropout to 0, as reinforcement learning needs (else no ratio is 1).

    Raises:
        ConfigError: model or adapter cannot be loaded, or do not belong together.
    """
    hf = load_causal_lm(config, seed, dropout)
    if config.lora is None:
        return CausalPolicy(hf)
    digest = None if config.quantize_bits else weights_digest(full_tensors(hf))
    add_adapter(hf, config.lora, seed, digest)
    return CausalPolicy(hf, base_digest=digest)


def _check_model_path(config: PolicyConfig, key: str) -> None:
    folder = Path(config.path).expanduser()
    if not config.path:
        raise ConfigError(f"{key}.path is empty; give a folder with config.json, or a hub name")
    if not folder.exists():
        if not is_hub_name(config.path) or is_below_local_folder(config.path):
            raise ConfigError(f"{key}.path {config.path} does not exist; give a folder with config.json, or a hub name")
        fault = hub_fault(config.path, "model")
        if fault is not None:
            raise ConfigError(f"{key}.path {fault}")
        return
    if is_adapter_folder(folder):
        base = recorded_base(folder) or "(not named in its config)"
        raise ConfigError(
            f"{key}.path {config.path} is an adapter; set {key}.path to its base model {base} and "
            f"{key}.lora.path to {config.path}"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{key}.path {config.path} has no config.json; give a folder of a Hugging Face model")
    if not config.from_scratch and not _has_weights(folder):
        raise ConfigError(
            f"{key}.path {config.path} has no weights; set {key}.from_scratch true to start from random "
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
    model, missing = load_transformer(config, "AutoModelForCausalLM", seed, dropout)
    if missing:
        raise ConfigError(
            f"model.policy.path {config.path} lacks {len(missing)} weights, {missing[0]} among them, which would start "
            f"at random; give a folder with all weights of a causal language model"
        )
    return model


def load_transformer(
    config: PolicyConfig, kind: ModelKind, seed: int, dropout: bool = True, key: str = "model.policy"
) -> tuple[nn.Module, list[str]]:
    """A ``transformers`` model, and the names of the weights that its files did not have.

    Args:
        config: which.
        kind: the class of ``transformers`` that finds the model's own; a token classifier gets one label.
        seed: of random weights; the global random state is left alone.
        dropout: false sets every dropout to 0.
        key: where it stands in a config file, for messages.

    Raises:
        ConfigError: it cannot be loaded.
    """
    _check_model_path(config, key)
    model_config = load_model_config(config, key)
    if kind == "AutoModelForTokenClassification":
        model_config.num_labels = 1
    if not dropout:
        turn_off_dropout(model_config)
    # What can be wrong with a model's files is open-ended: safetensors and config checks have errors of their own.
    try:
        with no_progress_bars():
            model, missing = _load(config, kind, model_config, seed)
    except Exception as error:
        raise _cannot_load(config, error, key) from error
    _keep_trainable(model)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, missing


def load_model_config(config: PolicyConfig, key: str = "model.policy") -> Any:
    """The ``transformers`` config of the model, without its weights.

    Raises:
        ConfigError: it cannot be loaded.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(_source(config))
    except Exception as error:
        raise _cannot_load(config, error, key) from error


def plain_model(model_config: Any, kind: ModelKind = "AutoModelForCausalLM") -> Any:
    """A model of this config without quantisation, adapters and memory: its weights are on the meta device."""
    import transformers

    model_config = copy.deepcopy(model_config)
    if hasattr(model_config, "quantization_config"):
        del model_config.quantization_config
    with torch.device("meta"):
        return getattr(transformers, kind).from_config(model_config)


def max_positions(config: PolicyConfig) -> int | None:
    """Tokens that the model has positions for; ``None`` for a model without such a limit.

    Raises:
        ConfigError: its config cannot be loaded.
    """
    return getattr(load_model_config(config).get_text_config(), "max_position_embeddings", None)


def _load(config: PolicyConfig, kind: ModelKind, model_config: Any, seed: int) -> tuple[Any, list[str]]:
    import transformers

    cls = getattr(transformers, kind)
    settings: dict[str, Any] = {
        "dtype": getattr(torch, config.dtype),
        "attn_implementation": config.attn_implementation,
    }
    if config.quantize_bits is not None:
        settings |= {"quantization_config": _quantization(config)}
    if config.from_scratch:
        with torch.random.fork_rng(), whole_modules():
            torch.manual_seed(seed)
            return cls.from_config(model_config, **settings), []
    loaded: Any = cls.from_pretrained(_source(config), config=model_config, output_loading_info=True, **settings)
    return loaded[0], sorted(loaded[1]["missing_keys"])


def _keep_trainable(model: nn.Module) -> None:
    """On some CPUs bitsandbytes repacks 4-bit weights in eval mode, for good; then no gradient passes through them."""
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def _quantization(config: PolicyConfig) -> Any:
    from transformers import BitsAndBytesConfig

    if config.quantize_bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.dtype),
    )


def _source(config: PolicyConfig) -> str:
    folder = Path(config.path).expanduser()
    return str(folder) if folder.is_dir() else config.path


def _cannot_load(config: PolicyConfig, error: Exception, key: str) -> ConfigError:
    mismatch = "ignore_mismatched_sizes" in str(error)
    reason = "its weights have other shapes than its config.json says" if mismatch else first_line(error)
    return ConfigError(
        f"{key}.path {config.path} cannot be loaded: {reason}; give a local folder of a causal language model, or a "
        f"hub name with the network on"
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
