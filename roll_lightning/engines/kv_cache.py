"""Row surgery on a transformers KV cache. Rows are right-aligned: padding is on the left, the newest token last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from roll_lightning.errors import EngineError

PLAIN_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer")


def new_cache() -> Any:
    """An empty cache whose layers all keep every token.

    Sliding-window layers, too, are kept whole: their masks go by column distance, and a cut cache could not be joined.
    """
    from transformers import Cache

    from roll_lightning.engines.growing_cache import GrowingLayer

    return Cache(layer_class_to_replicate=GrowingLayer)


def check_config(config: Any) -> None:
    """Refuse models whose state is more than the keys and values of their tokens.

    Raises:
        EngineError: for recurrent, hybrid, compressed-cache and encoder-decoder models.
    """
    from transformers import DynamicCache

    if getattr(config, "is_encoder_decoder", False):
        raise EngineError(
            f"model type {config.model_type!r} is an encoder-decoder; HFEngine needs a decoder-only model"
        )
    kinds = {type(layer).__name__ for layer in DynamicCache(config=config).layers}
    other = sorted(kinds.difference(PLAIN_LAYERS))
    if other:
        raise EngineError(
            f"model type {config.model_type!r} keeps {', '.join(other)} in its cache; HFEngine can cut and join plain "
            "attention caches only: use another engine for this model"
        )


def check_filled(cache: Any, rows: int, width: int, model_type: str) -> None:
    """Refuse a cache that the model did not fill with ``width`` columns for ``rows`` rows (its state is elsewhere).

    Raises:
        EngineError: naming the model type.
    """
    shapes = {(layer.keys.shape[0], layer.keys.shape[2]) for layer in _layers(cache)}
    if shapes != {(rows, width)}:
        raise EngineError(
            f"model type {model_type!r} filled its KV cache with {sorted(shapes) or 'nothing'} instead of "
            f"(rows {rows}, tokens {width}); HFEngine needs a model with a plain attention cache"
        )


def select_rows(cache: Any, rows: Tensor, drop_columns: int = 0) -> None:
    """Keep ``rows`` (repeats allowed: that is how a prompt is shared out) and drop leading columns, in place."""
    for layer in _layers(cache):
        keys = layer.keys[:, :, drop_columns:].index_select(0, rows)
        layer.replace(keys, layer.values[:, :, drop_columns:].index_select(0, rows))


def copy_rows(cache: Any, rows: Tensor, drop_columns: int = 0) -> Any:
    """A new cache with ``rows`` of this one."""
    copy = new_cache()
    for index, layer in enumerate(cache.layers):
        if layer.is_initialized:
            keys = layer.keys[:, :, drop_columns:].index_select(0, rows)
            copy.update(keys, layer.values[:, :, drop_columns:].index_select(0, rows), index)
    return copy


def append_rows(cache: Any, other: Any) -> None:
    """Put the rows of ``other`` below those of ``cache``, in place; the narrower one is padded on the left."""
    width = max(cache.get_seq_length(), other.get_seq_length())
    for mine, theirs in zip(_layers(cache), _layers(other), strict=True):
        keys = torch.cat([_widen(mine.keys, width), _widen(theirs.keys, width)])
        mine.replace(keys, torch.cat([_widen(mine.values, width), _widen(theirs.values, width)]))


def left_padding_mask(lengths: Tensor, width: int) -> Tensor:
    """Attention mask, int64 `[rows, width]`: 1 on the last ``lengths[i]`` columns of row i."""
    columns = torch.arange(width, device=lengths.device)
    return (columns >= width - lengths[:, None]).long()


def _layers(cache: Any) -> list[Any]:
    """The layers that hold something; models that share keys between layers leave some empty."""
    return [layer for layer in cache.layers if layer.is_initialized]


def _widen(states: Tensor, width: int) -> Tensor:
    return pad(states, (0, 0, width - states.shape[2], 0))
