"""Micro-batches as a training step gets them.

They are plain classes on purpose: Lightning's precision plugins cast every float tensor that they find in a dataclass
or dictionary, and log-probabilities and advantages must stay in float32 under ``bf16-true``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from roll_lightning.data.types import Prompt
from roll_lightning.errors import DataError


@dataclass(frozen=True)
class WindowTotals:
    """The optimizer window that a micro-batch belongs to.

    Args:
        index: the window's number within its epoch.
        tokens: loss tokens of the window over all ranks.
        sequences: rows with a loss token of the window over all ranks.
        micro_batch: this micro-batch's number within the window.
        micro_batches: micro-batches of the window on each rank.
    """

    index: int
    tokens: int
    sequences: int
    micro_batch: int = 0
    micro_batches: int = 1


class TokenBatch:
    """Right-padded rows of tokens.

    Args:
        input_ids: ``[batch, tokens]``.
        attention_mask: ``[batch, tokens]`` bool, true on real tokens.
        loss_mask: ``[batch, tokens]`` bool, true on tokens that carry loss.
        window: totals of the optimizer window; ``None`` from a loader that is not ours.
    """

    def __init__(
        self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, window: WindowTotals | None = None
    ) -> None:
        self.input_ids = input_ids
        self.attention_mask = attention_mask
        self.loss_mask = loss_mask
        self.window = window

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The batch on a device; called by Lightning. This one stays where it is, as with a tensor."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The batch in pinned memory; called by a DataLoader with ``pin_memory=True``."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(changed, name, change(value))
        return changed

    def __len__(self) -> int:
        """Number of rows."""
        return self.input_ids.shape[0]


class ExperienceBatch(TokenBatch):
    """Rows of an :class:`~roll_lightning.data.experience.Experience`; ``loss_mask`` is the response mask.

    Args:
        input_ids: ``[batch, tokens]``.
        attention_mask: ``[batch, tokens]`` bool.
        loss_mask: ``[batch, tokens]`` bool, true on tokens that the policy wrote and that are trained on.
        advantages: ``[batch, tokens]`` float32.
        old_logprobs: ``[batch, tokens]`` float32, or ``None``: they are the first forward pass itself.
        ref_logprobs: ``[batch, tokens]`` float32, or ``None`` without a reference.
        behaviour_logprobs: ``[batch, tokens]`` float32 of the engine, or ``None`` where they cannot be compared.
        policy_weights: ``[batch, tokens]`` float32, factors of the policy loss, or ``None`` where all are 1.
        values: ``[batch, tokens]`` float32 of the critic that starts the iteration, or ``None`` without a critic.
        returns: ``[batch, tokens]`` float32, what the critic learns, or ``None``.
        window: totals of the optimizer window.
    """

    def __init__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        loss_mask: Tensor,
        advantages: Tensor,
        old_logprobs: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        behaviour_logprobs: Tensor | None = None,
        policy_weights: Tensor | None = None,
        values: Tensor | None = None,
        returns: Tensor | None = None,
        window: WindowTotals | None = None,
    ) -> None:
        super().__init__(input_ids, attention_mask, loss_mask, window)
        self.advantages = advantages
        self.old_logprobs = old_logprobs
        self.ref_logprobs = ref_logprobs
        self.behaviour_logprobs = behaviour_logprobs
        self.policy_weights = policy_weights
        self.values = values
        self.returns = returns


class PromptBatch:
    """Prompts of a validation or prediction step; nothing to move, the collector does the rest.

    Args:
        prompts: this rank's share; may be empty, so that every rank takes the same number of steps.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.prompts = tuple(prompts)

    def to(self, device: torch.device | str) -> Self:  # noqa: ARG002
        """Nothing to move."""
        return self

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self.prompts)


def pad_rows(rows: Sequence[Sequence[float]], dtype: torch.dtype, width: int | None = None) -> Tensor:
    """Right-pad rows with 0 to ``width`` (default: the longest) as ``[rows, width]``."""
    width = max((len(row) for row in rows), default=0) if width is None else width
    padded = torch.zeros(len(rows), width, dtype=dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.as_tensor(row, dtype=dtype)
    return padded


def collate_tokens(
    input_ids: Sequence[Sequence[int]], loss_masks: Sequence[Sequence[int]], window: WindowTotals | None = None
) -> TokenBatch:
    """Right-pad rows into a batch. Masks come from lengths, so pad and stop token may be the same id.

    No rows make a filler: one row of two tokens without loss, which still runs forward and backward.

    Args:
        input_ids: the tokens of each row.
        loss_masks: 1 on the tokens of each row that carry loss, else 0. Nothing stands before a row's first token that
            could predict it, so that one must be 0.
        window: totals of the optimizer window; ``None`` if nobody planned one.

    Raises:
        DataError: a mask has another length than its row, or a 1 on the first token.
    """
    if not input_ids:
        filler = torch.zeros(1, 2, dtype=torch.long)
        return TokenBatch(filler, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool), window)
    for number, (row, mask) in enumerate(zip(input_ids, loss_masks, strict=True)):
        if len(row) != len(mask):
            raise DataError(f"row {number} of a batch has {len(row)} tokens, but {len(mask)} entries in its loss mask")
        if len(mask) and mask[0]:
            raise DataError(
                f"row {number} of a batch has loss on its first token, which nothing predicts; set loss_mask[0] to 0"
            )
    ids = pad_rows(input_ids, torch.long)
    lengths = torch.tensor([len(row) for row in input_ids])
    attention = torch.arange(ids.shape[1])[None] < lengths[:, None]
    return TokenBatch(ids, attention, pad_rows(loss_masks, torch.bool), window)
