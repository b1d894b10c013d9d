"""Weights that FSDP2 or ZeRO-3 cut into shards, put together again one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn


def full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and full, detached tensor of each parameter, one after the other.

    Collective under sharding: every rank must run through all of them. A tensor is valid until the next is asked for.
    """
    for name, parameter in model.named_parameters():
        with gathered([parameter]):
            yield name, full_tensor(parameter)


def full_tensor(parameter: nn.Parameter) -> Tensor:
    """The whole, detached tensor of a parameter; under ZeRO-3 inside :func:`gathered`; collective under sharding."""
    value: Any = parameter.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def gathered(parameters: Sequence[nn.Parameter], changed: bool = False) -> AbstractContextManager[Any]:
    """Parameters are whole inside, also under ZeRO-3; collective there.

    Args:
        parameters: which.
        changed: what the first rank does to them inside is kept, on every rank.
    """
    if not any(map(is_zero3_parameter, parameters)):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=0 if changed else None)


def is_zero3_parameter(parameter: nn.Parameter) -> bool:
    """Whether ZeRO-3 has partitioned the parameter."""
    return hasattr(parameter, "ds_id")
