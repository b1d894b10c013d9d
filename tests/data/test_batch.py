"""Micro-batches."""

from __future__ import annotations

import pytest
import torch

from roll_lightning.data.batch import ExperienceBatch, PromptBatch, TokenBatch, collate_tokens, pad_rows
from roll_lightning.errors import DataError


def test_T32_masks_come_from_lengths_so_pad_may_be_the_stop_token():
    batch = collate_tokens([[5, 0, 0], [6, 0]], [[0, 1, 1], [0, 1]])
    assert batch.input_ids.tolist() == [[5, 0, 0], [6, 0, 0]]
    assert batch.attention_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.loss_mask.tolist() == [[False, True, True], [False, True, False]]
    assert len(batch) == 2


def test_no_rows_make_a_filler_without_loss():
    batch = collate_tokens([], [])
    assert batch.input_ids.shape == (1, 2)
    assert batch.attention_mask.all()
    assert not batch.loss_mask.any()


def test_T04_loss_on_a_first_token_would_count_in_the_denominator_only():
    with pytest.raises(DataError, match=r"row 1 of a batch has loss on its first token.*set loss_mask\[0\] to 0"):
        collate_tokens([[5, 6], [5, 6]], [[0, 1], [1, 1]])
    with pytest.raises(DataError, match="row 0 of a batch has 2 tokens, but 3 entries in its loss mask"):
        collate_tokens([[5, 6]], [[0, 1, 1]])


def test_moving_gives_another_batch_and_leaves_this_one():
    """A validation batch is used again in every validation and must not stay on the device."""
    batch = collate_tokens([[5, 6]], [[0, 1]])
    moved = batch.to("meta")
    assert moved.input_ids.device.type == "meta"
    assert moved.window is batch.window
    assert {value.device.type for value in vars(batch).values() if isinstance(value, torch.Tensor)} == {"cpu"}


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_lightnings_half_precision_leaves_the_float_tensors_of_a_batch_alone(precision):
    from lightning.pytorch.plugins.precision import HalfPrecision

    ones = torch.ones(1, 3)
    batch = ExperienceBatch(ones.long(), ones.bool(), ones.bool(), ones, ones, ones, ones)
    converted = HalfPrecision(precision).convert_input(batch)
    for name in ("advantages", "old_logprobs", "ref_logprobs", "behaviour_logprobs"):
        assert getattr(converted, name).dtype == torch.float32


def test_lightning_moves_our_batches():
    from lightning.fabric.utilities.apply_func import move_data_to_device

    batch = collate_tokens([[5, 6]], [[0, 1]])
    assert isinstance(move_data_to_device(batch, torch.device("meta")), TokenBatch)
    prompts = PromptBatch([])
    assert move_data_to_device(prompts, torch.device("meta")) is prompts
    assert len(prompts) == 0


def test_padding():
    assert pad_rows([[1, 2], []], torch.long, 3).tolist() == [[1, 2, 0], [0, 0, 0]]
    assert pad_rows([], torch.long).shape == (0, 0)
