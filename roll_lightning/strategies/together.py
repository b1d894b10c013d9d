"""What happens on one rank and concerns all: a failure ends every rank with the same line instead of a wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from roll_lightning.errors import RollLightningError

T = TypeVar("T")


def together(function: Callable[[], T]) -> T:
    """Run ``function`` on every rank; a collective, for work that may fail on some ranks only.

    Raises:
        RollLightningError: on every rank, when ``function`` failed on another one.
        Exception: what ``function`` raised on this rank.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return function()
    result: T | None = None
    failure: Exception | None = None
    try:
        result = function()
    except Exception as error:
        failure = error
    failures: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(failures, None if failure is None else _portable(failure))
    if failure is not None:
        raise failure
    for rank, other in enumerate(failures):
        if other is not None:
            raise other if isinstance(other, RollLightningError) else RollLightningError(f"rank {rank} failed: {other}")
    return result  # type: ignore[return-value]


def _portable(error: Exception) -> RollLightningError | str:
    """The error, or for one of somebody else's, which may not be picklable, its text."""
    return error if isinstance(error, RollLightningError) else f"{type(error).__name__}: {error}"
