"""How policies are cut into shards under FSDP2, and which strategies cut at all."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DeepSpeedStrategy, ModelParallelStrategy, Strategy
from torch import nn

from roll_lightning.errors import ConfigError
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.strategies.scale import mesh_sizes


def is_sharded(strategy: Strategy) -> bool:
    """Whether weights lie in shards, so that a forward pass is a collective: FSDP2 and ZeRO-3."""
    return isinstance(strategy, ModelParallelStrategy) or is_zero3(strategy)


def is_zero3(strategy: Strategy) -> bool:
    """Whether the strategy is DeepSpeed's ZeRO stage 3."""
    return isinstance(strategy, DeepSpeedStrategy) and bool(strategy.zero_stage_3)


def check_mesh(strategy: Strategy) -> None:
    """Refuse tensor parallelism, under which every rank of a tensor-parallel group would do the same work.

    Raises:
        ConfigError: says what to set.
    """
    mesh = mesh_sizes(strategy)
    if mesh is not None and mesh[1] > 1:
        data, tensor = mesh
        raise ConfigError(
            f"trainer.strategy has tensor_parallel_size {tensor}, which is not supported; set it to 1 and "
            f"data_parallel_size to {tensor * data}"
        )


def shard_model(model: nn.Module, module: LightningModule) -> None:
    """Under FSDP2 shard each decoder layer, then the rest; other strategies shard by themselves or not at all.

    Args:
        model: a policy or critic, a wrapper around ``model.hf``.
        module: whose device mesh it is sharded over.
    """
    if not isinstance(module.trainer.strategy, ModelParallelStrategy):
        return
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = module.device_mesh
    assert mesh is not None, "ModelParallelStrategy gives a mesh"
    for layer in _decoder_layers(model.hf):
        fully_shard(layer, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    if isinstance(model, CausalPolicy):
        register_fsdp_forward_method(model, "decode")


def _decoder_layers(hf: Any) -> list[nn.Module]:
    names = set(getattr(hf, "_no_split_modules", None) or [])
    return [layer for layer in hf.modules() if type(layer).__name__ in names]
