"""Rollouts as tensors."""

from __future__ import annotations

import pytest
import torch

from roll_lightning.data.batch import WindowTotals
from roll_lightning.data.experience import Experience, check_logprobs
from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.errors import EngineError


def rollout(prompt: list[int], answer: list[int], logprobs: list[float] | None = None) -> Rollout:
    return Rollout(
        prompt=Prompt(id="p7", token_ids=tuple(prompt), text=""),
        group=0,
        sample=0,
        token_ids=prompt + answer,
        loss_mask=[0] * len(prompt) + [1] * len(answer),
        logprobs=[0.0] * len(prompt) + (logprobs or [-0.5] * len(answer)),
        text="",
        finish_reason="stop",
        weight_version=(0, 0),
    )


def experience() -> Experience:
    found = Experience.from_rollouts([rollout([3, 4], [5, 1]), rollout([6], [7, 8, 9, 1], [-1.0, -2.0, -3.0, -4.0])])
    found.advantages = torch.arange(10.0).reshape(2, 5)
    found.old_logprobs = -torch.arange(10.0).reshape(2, 5)
    return found


def test_tensors_are_right_padded_and_aligned_with_the_tokens():
    found = experience()
    assert found.input_ids.tolist() == [[3, 4, 5, 1, 0], [6, 7, 8, 9, 1]]
    assert found.lengths.tolist() == [4, 5]
    assert found.response_mask.tolist() == [[False, False, True, True, False], [False, True, True, True, True]]
    assert found.behaviour_logprobs.tolist() == [[0, 0, -0.5, -0.5, 0], [0, -1, -2, -3, -4]]
    assert len(found) == 2


def test_a_micro_batch_is_as_wide_as_its_longest_row_and_a_copy():
    found, window = experience(), WindowTotals(0, 6, 2)
    batch = found.batch([0], window)
    assert batch.input_ids.tolist() == [[3, 4, 5, 1]]
    assert batch.attention_mask.all()
    assert batch.loss_mask.tolist() == [[False, False, True, True]]
    assert batch.advantages.tolist() == [[0, 1, 2, 3]]
    assert batch.old_logprobs.tolist() == [[0, -1, -2, -3]]
    assert batch.ref_logprobs is None
    assert batch.window is window
    batch.advantages.zero_()
    assert found.advantages[0, 3] == 3
    swapped = found.batch([1, 0])
    assert swapped.attention_mask.tolist() == [[True] * 5, [True] * 4 + [False]]


def test_T08_a_filler_has_no_loss():
    batch = experience().batch([])
    assert batch.input_ids.shape == (1, 2)
    assert not batch.loss_mask.any()


def test_state_goes_through_tensors_only(tmp_path):
    found = experience()
    torch.save(found.state_dict(), tmp_path / "state")
    again = Experience.from_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert again.state_dict().keys() == found.state_dict().keys()
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in again.state_dict().items())
    assert again.ref_logprobs is None


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf"), 0.5, None])
def test_T25_impossible_or_missing_logprobs_raise(bad):
    with pytest.raises(EngineError, match=f"log-probability {bad} for token 3 of prompt p7"):
        Experience.from_rollouts([rollout([3, 4], [5, 1], [-1.0, bad])])


def test_T25_a_certain_token_may_be_a_rounding_above_zero():
    check_logprobs(rollout([3], [4], [1e-6]))
    check_logprobs(rollout([3], [4], [0.0]))


def test_T25_lengths_that_differ_raise():
    short = rollout([3], [4, 5])
    short.logprobs.pop()
    with pytest.raises(EngineError, match="3 tokens, 3 mask entries and 2 log-probabilities"):
        check_logprobs(short)


def test_T04_a_response_without_a_prompt_is_refused():
    with pytest.raises(EngineError, match="prompt p7 begins with a token of the policy"):
        check_logprobs(rollout([], [4, 5]))
