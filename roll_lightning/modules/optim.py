"""AdamW with decay groups, and the usual schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from roll_lightning.errors import ConfigError

ScheduleName = Literal["constant", "linear", "cosine", "inverse_sqrt"]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (arXiv 1711.05101). Biases and norms, all parameters of one dimension, are not decayed.

    Args:
        lr: learning rate after the warm-up.
        betas: decay rates of the moments.
        eps: added to the denominator.
        weight_decay: of matrices.
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"model.optimizer.lr is {self.lr}; it must be above 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"model.optimizer.betas is {self.betas}; each must be in [0, 1)")
        if self.weight_decay < 0:
            raise ConfigError(f"model.optimizer.weight_decay is {self.weight_decay}; it must be 0 or more")


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over optimizer steps.

    Args:
        name: ``constant``, ``linear``, ``cosine`` (both down to ``min_ratio``), or ``inverse_sqrt``.
        warmup_steps: optimizer steps from 0 up to the learning rate.
        min_ratio: share of the learning rate at the end.
    """

    name: ScheduleName = "constant"
    warmup_steps: int = 0
    min_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigError(f"model.schedule.warmup_steps is {self.warmup_steps}; it must be 0 or more")
        if not 0 <= self.min_ratio <= 1:
            raise ConfigError(f"model.schedule.min_ratio is {self.min_ratio}; it must be in [0, 1]")

    @property
    def needs_total(self) -> bool:
        """Whether the schedule depends on the number of steps of the run."""
        return self.name in ("linear", "cosine")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with a learning rate of their own.

    Args:
        parameters: the trained among them are optimised.
        lr: learning rate after the warm-up.
        delay: optimizer steps with learning rate 0, after which the schedule begins.
    """

    parameters: Sequence[nn.Parameter]
    lr: float
    delay: int = 0


def make_optimizer(groups: Sequence[ParameterGroup], config: OptimizerConfig) -> Optimizer:
    """AdamW over the trained parameters; each group is split in two by decay, and keeps its place in the order."""
    made = []
    for group in groups:
        trained = [parameter for parameter in group.parameters if parameter.requires_grad]
        matrices = [parameter for parameter in trained if _dimensions(parameter) >= 2]
        vectors = [parameter for parameter in trained if _dimensions(parameter) < 2]
        settings = {"lr": group.lr, "delay": group.delay}
        made += [{"params": matrices, "weight_decay": config.weight_decay, **settings}] if matrices else []
        made += [{"params": vectors, "weight_decay": 0.0, **settings}] if vectors else []
    return AdamW(made, lr=config.lr, betas=config.betas, eps=config.eps)


def _dimensions(parameter: nn.Parameter) -> int:
    """Of the whole parameter: under ZeRO-3 what is left of it on this rank is empty and flat."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def make_schedule(optimizer: Optimizer, config: ScheduleConfig, total_steps: int) -> LambdaLR:
    """The schedule as a per-step scheduler; ``total_steps`` are the optimizer steps of the run."""
    return LambdaLR(optimizer, [_delayed(config, total_steps, group["delay"]) for group in optimizer.param_groups])


def _delayed(config: ScheduleConfig, total_steps: int, delay: int) -> Callable[[int], float]:
    factor = schedule_factor(config, total_steps - delay)
    return lambda step: factor(step - delay) if step >= delay else 0.0


def schedule_factor(config: ScheduleConfig, total_steps: int) -> Callable[[int], float]:
    """Share of the learning rate at each optimizer step, the first being step 0.

    Warm-up reaches the full rate at step ``warmup_steps``; step 0 of a warm-up already moves.
    """

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / (config.warmup_steps + 1)
        if config.name == "constant":
            return 1.0
        if config.name == "inverse_sqrt":
            start = max(1, config.warmup_steps)
            return max(config.min_ratio, math.sqrt(start / max(start, step)))
        done = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
        shape = 1 - done if config.name == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return config.min_ratio + (1 - config.min_ratio) * shape

    return factor
