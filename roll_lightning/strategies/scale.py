"""By what a micro-batch's share of the window loss is multiplied, so that the optimizer sees the exact gradient."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, ModelParallelStrategy, Strategy


def loss_scale(trainer: Trainer) -> float:
    """The factor that undoes every mean that Lightning and the strategy take.

    Lightning divides each micro-batch's loss by ``accumulate_grad_batches``; DDP, FSDP2 and DeepSpeed average
    gradients over data-parallel ranks; DeepSpeed's engine divides by the accumulation steps once more (measured with
    SGD under ZeRO-1 and 2).
    """
    accumulate = trainer.accumulate_grad_batches
    scale = float(accumulate * data_parallel_size(trainer))
    if isinstance(trainer.strategy, DeepSpeedStrategy):
        scale *= accumulate
    return scale


def data_parallel_size(trainer: Trainer) -> int:
    """Ranks that see different rows."""
    mesh = mesh_sizes(trainer.strategy)
    return int(trainer.world_size) if mesh is None else mesh[0]


def mesh_sizes(strategy: Strategy) -> tuple[int, int] | None:
    """Data-parallel and tensor-parallel ranks of a strategy with a mesh, ``None`` without one.

    Before its processes have started they are what the strategy will make of its settings.
    """
    if isinstance(strategy, ModelParallelStrategy) and strategy._device_mesh is None:
        data, tensor = strategy._data_parallel_size, strategy._tensor_parallel_size
        return (
            int(strategy.num_nodes if data == "auto" else data),
            int(strategy.num_processes if tensor == "auto" else tensor),
        )
    mesh = getattr(strategy, "device_mesh", None)
    return None if mesh is None else (int(mesh["data_parallel"].size()), int(mesh["tensor_parallel"].size()))


def data_parallel_rank(trainer: Trainer) -> int:
    """This process's number among the ranks that see different rows."""
    mesh = getattr(trainer.strategy, "device_mesh", None)
    return int(mesh["data_parallel"].get_local_rank()) if mesh is not None else int(trainer.global_rank)
