"""LoRA (arXiv 2106.09685) inside a ``transformers`` model, through PEFT."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from roll_lightning.data.encode import first_line
from roll_lightning.errors import ConfigError
from roll_lightning.models.full_tensors import full_tensor, gathered
from roll_lightning.models.zero3 import whole_modules

ADAPTER = "default"


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on frozen weights.

    Args:
        path: folder of an adapter to start from; its rank, scale and modules are then taken from there.
        r: rank; ``None`` means 16, or the started adapter's.
        alpha: the update is scaled by alpha / r; ``None`` means 2 r, or the started adapter's.
        target_modules: names of the linear layers that get adapters, or ``all-linear``: all but the output matrix.
            ``None`` means ``all-linear``, or the started adapter's.
        dropout: on the adapter's input in training; reinforcement learning needs 0.
        rslora: scale by alpha / sqrt(r) instead (arXiv 2312.03732); ``None`` means false, or the started adapter's.
    """

    path: str | None = None
    r: int | None = None
    alpha: int | None = None
    target_modules: str | list[str] | None = None
    dropout: float = 0.0
    rslora: bool | None = None

    def __post_init__(self) -> None:
        if self.r is not None and self.r < 1:
            raise ConfigError(f"model.policy.lora.r is {self.r}; it must be 1 or more")
        if self.alpha is not None and self.alpha < 1:
            raise ConfigError(f"model.policy.lora.alpha is {self.alpha}; it must be 1 or more")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.policy.lora.dropout is {self.dropout}; it must be in [0, 1)")
        if self.target_modules is not None and not self.target_modules:
            raise ConfigError("model.policy.lora.target_modules is empty; name linear layers, or all-linear")


def inject_adapter(hf: nn.Module, settings: Any, seed: int) -> None:
    """Put fresh adapters, which change nothing yet, into the model and freeze everything else.

    Args:
        hf: the model; changed in place.
        settings: PEFT's ``LoraConfig``.
        seed: of the adapters' weights; the global random state is left alone.

    Raises:
        ConfigError: the model has no such modules, or one of them is not linear or shares its weight.
    """
    from peft import inject_adapter_in_model

    asked = settings.target_modules
    with torch.random.fork_rng(), whole_modules():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(settings, hf, ADAPTER)
        except (ValueError, re.error) as error:
            raise _unfit(asked, first_line(error)) from error
    _check_targets(hf, asked)


def _check_targets(hf: nn.Module, asked: Any) -> None:
    """Of an embedding or a tied weight, W + scale · B A would be merged wrongly."""
    from transformers.pytorch_utils import Conv1D

    owners = [parameter for _, parameter in hf.named_parameters(remove_duplicate=False)]
    for name, layer in _lora_layers(hf):
        if ADAPTER not in layer.lora_A or not isinstance(layer.get_base_layer(), nn.Linear | Conv1D):
            raise _unfit(asked, f"{name} is no linear layer")
        if sum(owner is layer.get_base_layer().weight for owner in owners) > 1:
            raise _unfit(asked, f"{name} shares its weight with another layer, so an update of it cannot be merged")


def check_all_found(hf: nn.Module, names: list[str]) -> None:
    """PEFT leaves out in silence what it does not find, if it finds anything.

    Raises:
        ConfigError: a name is of no layer with an adapter.
    """
    for name in names:
        if not any(layer == name or layer.endswith(f".{name}") for layer, _ in _lora_layers(hf)):
            raise _unfit(names, f"it has no layer {name}")


def _unfit(asked: Any, reason: str) -> ConfigError:
    shown = asked if isinstance(asked, str) or asked is None else sorted(asked)
    hint = "; a string is a regular expression of whole names: for names give a list" if isinstance(shown, str) else ""
    return ConfigError(f"model.policy.lora.target_modules {shown} does not fit the model: {reason}{hint}")


def adapter_facts(hf: Any) -> dict[str, Any]:
    """Rank, scale and modules of the model's adapters as JSON values; empty without adapters.

    Written to checkpoints, so that a run cannot go on with other adapters.
    """
    return {name: {"r": layer.r[ADAPTER], "scale": float(layer.scaling[ADAPTER])} for name, layer in _lora_layers(hf)}


@contextmanager
def adapter_off(hf: nn.Module) -> Iterator[None]:
    """The model as it was before its adapters, for as long as the block lasts. No gradient may be taken inside."""
    layers = [layer for _, layer in _lora_layers(hf)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def adapter_tensors(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and full tensor of each weight of the adapters; collective under sharding."""
    for name, parameter in hf.named_parameters():
        if ".lora_" in name:
            with gathered([parameter]):
                yield name, full_tensor(parameter)


def merged_tensors(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and full tensor of each weight of the model without adapters, their update added; collective under sharding.

    Quantised weights are dequantised first. A tensor is valid until the next is asked for.
    """
    layers = dict(_lora_layers(hf))
    for name, parameter in hf.named_parameters():
        if ".lora_" in name:
            continue
        layer = layers.get(name.removesuffix(".base_layer.weight"))
        if layer is None:
            with gathered([parameter]):
                yield name.replace(".base_layer.", "."), full_tensor(parameter)
        else:
            down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
            with gathered([parameter, down, up]):
                yield name.replace(".base_layer.", "."), _merge(layer, parameter, down, up)


def _merge(layer: Any, base: nn.Parameter, down: nn.Parameter, up: nn.Parameter) -> Tensor:
    """W + scale · B A."""
    from peft.utils.integrations import dequantize_module_weight

    weight = full_tensor(base) if base.is_floating_point() else dequantize_module_weight(layer.base_layer).detach()
    update = full_tensor(up).float() @ full_tensor(down).float() * layer.scaling[ADAPTER]
    return (weight.float() + (update.T if layer.fan_in_fan_out else update)).to(weight.dtype)


def _lora_layers(hf: nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return ((name, module) for name, module in hf.named_modules() if isinstance(module, LoraLayer))
