"""Weights under FSDP2 and ZeRO-3: how they are cut, and how they are put together again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn

from roll_lightning.models.causal_lm import CausalPolicy


def shard_policy(policy: CausalPolicy, module: LightningModule) -> None:
    """Under FSDP2 shard each decoder layer, then the rest; other strategies shard by themselves or not at all."""
    if not isinstance(module.trainer.strategy, ModelParallelStrategy):
        return
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = module.device_mesh
    assert mesh is not None, "ModelParallelStrategy gives a mesh"
    for layer in _decoder_layers(policy.hf):
        fully_shard(layer, mesh=mesh["data_parallel"])
    fully_shard(policy, mesh=mesh["data_parallel"])
    register_fsdp_forward_method(policy, "decode")


def _decoder_layers(hf: Any) -> list[nn.Module]:
    names = set(getattr(hf, "_no_split_modules", None) or [])
    return [layer for layer in hf.modules() if type(layer).__name__ in names]


def full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and full, detached tensor of each parameter, one after the other.

    Collective under sharding: every rank must run through all of them. A tensor is valid until the next is asked for.
    """
    for name, parameter in model.named_parameters():
        with _gathered(parameter):
            value: Any = parameter.detach()
            yield name, value.full_tensor() if hasattr(value, "full_tensor") else value


def _gathered(parameter: nn.Parameter) -> Any:
    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])
