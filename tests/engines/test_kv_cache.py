from __future__ import annotations

import pytest
import torch

from roll_lightning.engines import kv_cache
from roll_lightning.errors import EngineError


def filled(rows: int, width: int, layers: int = 2) -> object:
    """A cache whose entry of layer l, row r, column c is 100 l + 10 r + c."""
    cache = kv_cache.new_cache()
    for layer in range(layers):
        states = 100 * layer + 10 * torch.arange(rows)[:, None] + torch.arange(width)
        states = states[:, None, :, None].float()
        cache.update(states, -states, layer)
    return cache


def rows_of(cache: object, layer: int) -> list[list[float]]:
    keys, values = cache.layers[layer].keys, cache.layers[layer].values  # type: ignore[attr-defined]
    assert torch.equal(keys, -values)
    return keys[:, 0, :, 0].tolist()


def test_select_repeats_rows_and_drops_leading_columns() -> None:
    cache = filled(3, 3)
    kv_cache.select_rows(cache, torch.tensor([2, 0, 2]), drop_columns=1)
    assert rows_of(cache, 0) == [[21, 22], [1, 2], [21, 22]]
    assert rows_of(cache, 1) == [[121, 122], [101, 102], [121, 122]]


@pytest.mark.parametrize(("mine", "theirs"), [(3, 2), (2, 3)])
def test_append_right_aligns(mine: int, theirs: int) -> None:
    cache = filled(1, mine)
    kv_cache.append_rows(cache, filled(1, theirs))
    expected = {3: [0, 1, 2], 2: [0, 0, 1]}
    assert rows_of(cache, 0) == [expected[mine], expected[theirs]]


def test_copies_do_not_share_memory() -> None:
    cache = filled(2, 2)
    copy = kv_cache.copy_rows(cache, torch.tensor([1]))
    cache.layers[0].keys.zero_()
    cache.layers[0].values.zero_()
    assert rows_of(copy, 0) == [[10, 11]]
    assert rows_of(copy, 1) == [[110, 111]]


def test_growing_keeps_every_token_over_many_blocks_and_surgery() -> None:
    cache = filled(2, 1, layers=1)
    for column in range(1, 300):
        if column == 100:
            kv_cache.select_rows(cache, torch.tensor([1, 0]))
        step = torch.tensor([10.0, 0.0] if column >= 100 else [0.0, 10.0])[:, None, None, None] + column
        keys, values = cache.update(step, -step, 0)
        assert keys.shape == values.shape == (2, 1, column + 1, 1)
        assert cache.get_seq_length() == column + 1
    assert rows_of(cache, 0) == [[10 + c for c in range(300)], list(range(300))]


def test_mask_is_one_on_the_last_columns() -> None:
    mask = kv_cache.left_padding_mask(torch.tensor([1, 3]), 3)
    assert mask.tolist() == [[0, 0, 1], [1, 1, 1]]


def test_a_cache_of_the_wrong_shape_is_refused() -> None:
    kv_cache.check_filled(filled(2, 3), 2, 3, "toy")
    with pytest.raises(
        EngineError, match=r"'toy' filled its KV cache with \[\(2, 3\)\] instead of \(rows 2, tokens 4\)"
    ):
        kv_cache.check_filled(filled(2, 3), 2, 4, "toy")
