"""A KV cache layer that grows by blocks. Imports transformers, so import it inside functions only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):
    """Keeps every token, like its base, but copies its states once per block of columns, not at every token.

    ``keys`` and ``values`` `[rows, heads, tokens, head_dim]` are views of buffers with room for more tokens.
    """

    # The base class registers subclasses for a layer type of a config; this one serves no type by name.
    _layer_type = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: tuple[Tensor, Tensor] | None = None

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Hold these states from now on."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self.keys, self.values, self._buffers = keys, values, None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the states of new tokens and return those of all."""
        used = self.get_seq_length()
        if used == 0:
            # A prompt: its rows are handed out to a group right after, so room here would be thrown away.
            self.replace(key_states, value_states)
            return key_states, value_states
        total = used + key_states.shape[2]
        if self._buffers is None or total > self._buffers[0].shape[2]:
            assert self.keys is not None
            assert self.values is not None
            self._buffers = _with_room(self.keys, total), _with_room(self.values, total)
        keys, values = self._buffers
        keys[:, :, used:total] = key_states
        values[:, :, used:total] = value_states
        self.keys, self.values = keys[:, :, :total], values[:, :, :total]
        return self.keys, self.values


def _with_room(states: Tensor, total: int) -> Tensor:
    rows, heads, used, width = states.shape
    # Blocks that suit the length: short responses waste little memory, long ones copy seldom.
    room = min(64, max(8, total // 2))
    buffer = torch.empty(rows, heads, total + room, width, dtype=states.dtype, device=states.device)
    buffer[:, :, :used] = states
    return buffer
