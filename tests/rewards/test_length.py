from __future__ import annotations

import pytest
from reward_samples import rollout

from roll_lightning.errors import ConfigError
from roll_lightning.rewards import LengthPenalty


@pytest.mark.parametrize(
    ("tokens", "expected"),
    # max_length 20, buffer 4: free up to 16, then a quarter per token.
    [(0, 0.0), (15, 0.0), (16, 0.0), (17, -0.25), (18, -0.5), (19, -0.75), (20, -1.0), (21, -1.0), (500, -1.0)],
)
def test_golden(tokens, expected):
    (result,) = LengthPenalty(max_length=20, buffer=4)([rollout("any", tokens=tokens)])
    assert result.value == expected


def test_counts_what_the_policy_wrote_only():
    two_turns = rollout("any", tokens=20)
    two_turns.loss_mask[-10:] = [0] * 10  # written by the environment
    (result,) = LengthPenalty(max_length=20, buffer=4)([two_turns])
    assert result.value == 0.0


@pytest.mark.parametrize("buffer", [0, -1, 21])
def test_bad_buffer_is_refused_by_name(buffer):
    with pytest.raises(ConfigError, match=rf"LengthPenalty\.buffer is {buffer} with max_length 20"):
        LengthPenalty(max_length=20, buffer=buffer)
