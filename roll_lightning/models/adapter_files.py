"""Adapters on disk, in PEFT's format, with a note of the base model that they belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from roll_lightning.data.encode import first_line
from roll_lightning.errors import ConfigError
from roll_lightning.models.lora import ADAPTER, LoraConfig, adapter_tensors, check_all_found, inject_adapter

_PREFIX = "base_model.model."
_CONFIG, _WEIGHTS, _BASE = "adapter_config.json", "adapter_model.safetensors", "base_weights.json"
_SAMPLED = 64
_VARIANTS = (
    *("modules_to_save", "use_dora", "lora_bias", "trainable_token_indices", "target_parameters", "layer_replication"),
    *("use_qalora", "use_bdlora", "arrow_config", "alora_invocation_tokens", "kasa_config", "monteclora_config"),
    *("velora_config", "megatron_config"),
)
_KEEP_BASE = ("gaussian", "orthogonal", "eva")


def add_adapter(hf: Any, config: LoraConfig, seed: int, digest: str | None) -> None:
    """Give the model its adapters: fresh ones, or those of ``config.path``.

    Args:
        hf: the loaded base model, not yet sharded; changed in place.
        config: which adapters.
        seed: of fresh weights.
        digest: of the base weights, see :func:`weights_digest`; ``None`` where they cannot be compared.

    Raises:
        ConfigError: the adapter cannot be read, is of a kind that is not supported, or belongs to another base model.
    """
    if config.path is None:
        inject_adapter(hf, _fresh_settings(config), seed)
        if isinstance(config.target_modules, list):
            check_all_found(hf, config.target_modules)
        return
    folder = Path(config.path).expanduser()
    check_adapter_folder(config)
    settings = _stored_settings(config, folder)
    _check_base(folder, hf.config.name_or_path, digest)
    inject_adapter(hf, settings, seed)
    _load_weights(hf, folder)


def check_adapter_folder(config: LoraConfig) -> None:
    """Find a wrong ``path`` before a model loads.

    Raises:
        ConfigError: it is no folder of an adapter.
    """
    folder = Path(config.path or "").expanduser()
    missing = [name for name in (_CONFIG, _WEIGHTS) if not (folder / name).is_file()]
    if config.path is not None and missing:
        raise ConfigError(
            f"model.policy.lora.path {config.path} has no {missing[0]}; give the folder of an adapter, or leave it out "
            f"to begin with a fresh one"
        )


def is_adapter_folder(folder: Path) -> bool:
    """Whether the folder holds an adapter and no whole model."""
    return (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()


def save_adapter(folder: Path, hf: Any, weights: dict[str, Tensor], base: str, digest: str | None) -> None:
    """Write the adapter so that PEFT loads it.

    Args:
        folder: exists already.
        hf: the model that has it.
        weights: full tensors of the adapter by their names in ``hf``.
        base: path or hub name of the base model.
        digest: of the base model's weights; ``None`` writes none.
    """
    from safetensors.torch import save_file

    settings = hf.peft_config[ADAPTER]
    settings.base_model_name_or_path, settings.inference_mode = base, True
    settings.save_pretrained(folder)
    stored = {_PREFIX + name.replace(f".{ADAPTER}.", "."): value.contiguous() for name, value in weights.items()}
    save_file(stored, folder / _WEIGHTS, metadata={"format": "pt"})
    if digest is not None:
        (folder / _BASE).write_text(json.dumps({"digest": digest}) + "\n", encoding="utf-8")


@torch.no_grad()
def weights_digest(named_tensors: Iterable[tuple[str, Tensor]]) -> str:
    """32 hexadecimal digits that tell one model's weights from another's: names, shapes, and 64 values of each tensor.

    Values are rounded to bfloat16, so that it does not depend on the type that a model is loaded in.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named_tensors:
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED].bfloat16().float().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def _fresh_settings(config: LoraConfig) -> Any:
    from peft import LoraConfig as PeftLoraConfig

    r = config.r or 16
    return PeftLoraConfig(
        r=r,
        lora_alpha=config.alpha or 2 * r,
        lora_dropout=config.dropout,
        target_modules=config.target_modules or "all-linear",
        use_rslora=bool(config.rslora),
        task_type="CAUSAL_LM",
    )


def _stored_settings(config: LoraConfig, folder: Path) -> Any:
    from peft import LoraConfig as PeftLoraConfig
    from peft import PeftConfig

    try:
        settings = PeftConfig.from_pretrained(str(folder))
    except Exception as error:  # it may hold anything
        raise ConfigError(f"model.policy.lora.path {config.path}: {_CONFIG} is broken: {first_line(error)}") from error
    if not isinstance(settings, PeftLoraConfig):
        raise ConfigError(
            f"model.policy.lora.path {config.path} is of type {settings.peft_type}; only LoRA is supported"
        )
    _refuse_variants(settings, config)
    asked = {
        "r": (config.r, settings.r),
        "alpha": (config.alpha, settings.lora_alpha),
        "target_modules": (_names(config.target_modules), _names(settings.target_modules)),
        "rslora": (config.rslora, settings.use_rslora),
    }
    for key, (wanted, stored) in asked.items():
        if wanted is not None and wanted != stored:
            raise ConfigError(
                f"model.policy.lora.{key} is {wanted}, but the adapter of {config.path} has {stored}; leave it out"
            )
    settings.lora_dropout, settings.inference_mode = config.dropout, False
    return settings


def _names(modules: Any) -> Any:
    return modules if modules is None or isinstance(modules, str) else sorted(modules)


def _refuse_variants(settings: Any, config: LoraConfig) -> None:
    """What is more than W + scale · B A would be merged and exported wrongly."""
    used = [name for name in _VARIANTS if getattr(settings, name, None)]
    if settings.bias != "none":
        used.append("bias")
    if isinstance(settings.init_lora_weights, str) and settings.init_lora_weights not in _KEEP_BASE:
        # PiSSA, OLoRA and their like change W itself, so that the model with its adapter off is not the base model.
        used.append(f"init_lora_weights {settings.init_lora_weights}")
    if used:
        raise ConfigError(
            f"model.policy.lora.path {config.path} uses {used[0]}, which is not supported; merge it into its base "
            f"model with PEFT and set model.policy.path to the result"
        )


def _check_base(folder: Path, path: str, digest: str | None) -> None:
    """Adapters written by us name the weights that they were trained on, others a path at most."""
    base = recorded_base(folder)
    if digest is None or not (folder / _BASE).is_file():
        if base != path:
            rank_zero_warn(f"model.policy.lora.path {folder} says that its base model is {base}, not {path}")
        return
    try:
        recorded = json.loads((folder / _BASE).read_text(encoding="utf-8"))["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"model.policy.lora.path {folder}: {_BASE} is broken: {first_line(error)}; delete it to use the adapter "
            f"without a check of its base model"
        ) from error
    if recorded != digest:
        raise ConfigError(
            f"model.policy.lora.path {folder} was trained on other weights than those of model.policy.path; set "
            f"model.policy.path to its base model, {base}"
        )


def recorded_base(folder: Path) -> str | None:
    """The base model that the adapter's config names; ``None`` where it names none or cannot be read."""
    try:
        settings = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        return None
    return settings.get("base_model_name_or_path") if isinstance(settings, dict) else None


def _load_weights(hf: nn.Module, folder: Path) -> None:
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    base = recorded_base(folder)
    try:
        tensors = load_file(folder / _WEIGHTS)
    except Exception as error:  # it may hold anything
        raise ConfigError(f"model.policy.lora.path {folder}: {_WEIGHTS} is broken: {first_line(error)}") from error
    stored = {name.removeprefix(_PREFIX): value for name, value in tensors.items()}
    wanted = {name.replace(f".{ADAPTER}.", ".") for name, _ in adapter_tensors(hf)}
    alone = sorted(stored.keys() ^ wanted)
    if alone:
        raise _other_base(folder, base, f"{alone[0]} is only in {'the model' if alone[0] in wanted else 'the adapter'}")
    try:
        set_peft_model_state_dict(hf, stored, ADAPTER)
    except RuntimeError as error:
        raise _other_base(folder, base, "its weights have other shapes") from error


def _other_base(folder: Path, base: str | None, reason: str) -> ConfigError:
    return ConfigError(
        f"model.policy.lora.path {folder} does not fit the model of model.policy.path: {reason}; set model.policy.path "
        f"to the adapter's base model, {base}"
    )
