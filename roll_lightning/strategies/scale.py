"""By what a micro-batch's share of the window loss is multiplied, so that the optimizer sees the exact gradient."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy


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
    mesh = getattr(trainer.strategy, "device_mesh", None)
    return int(mesh["data_parallel"].size()) if mesh is not None else int(trainer.world_size)


def data_parallel_rank(trainer: Trainer) -> int:
    """This process's number among the ranks that see different rows."""
    mesh = getattr(trainer.strategy, "device_mesh", None)
    return int(mesh["data_parallel"].get_local_rank()) if mesh is not None else int(trainer.global_rank)
