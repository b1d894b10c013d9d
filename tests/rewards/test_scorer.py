from __future__ import annotations

import pytest
from reward_samples import BadInProcess, rollout, rollouts

from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards import ExactMatch, LengthPenalty, RewardScorer, WeightedReward, reward_name


class Fixed:
    """Gives the values it was made with; runs in process."""

    in_process = True

    def __init__(self, name, *values):
        self.name = name
        self.values = list(values)

    def __call__(self, rollouts):
        return self.values


def test_sums_and_components():
    batch = rollouts("x", "y")
    scorer = RewardScorer(
        [
            Fixed("right", 1.0, 0.0),
            WeightedReward(Fixed("form", 0.5, 1.0), weight=0.2),
            WeightedReward(Fixed("short", -1.0, -0.5), weight=0.5, shaping=True),
        ]
    )
    assert scorer.score(batch) == 0
    # By hand: 1 + .2 * .5 = 1.1, less .5 → .6; 0 + .2 * 1 = .2, less .25 → -.05.
    assert batch[0].components == {"right": 1.0, "form": 0.5, "short": -1.0}
    assert batch[1].components == {"right": 0.0, "form": 1.0, "short": -0.5}
    assert [r.score for r in batch] == pytest.approx([1.1, 0.2], abs=1e-15)
    assert [r.reward for r in batch] == pytest.approx([0.6, -0.05], abs=1e-15)


def test_T14_shaping_leaves_the_raw_score_alone():
    batch = [rollout("42", tokens=20), rollout("42", tokens=1), rollout("1", tokens=20)]
    scorer = RewardScorer([ExactMatch(), LengthPenalty(max_length=20, buffer=4)])
    scorer.score(batch)
    assert [r.score for r in batch] == [1.0, 1.0, 0.0]
    assert [r.reward for r in batch] == [0.0, 1.0, -1.0]


def test_shaping_can_be_made_a_verifier_and_back():
    batch = [rollout("42", tokens=20)]
    RewardScorer([ExactMatch(), WeightedReward(LengthPenalty(20, 4), shaping=False)]).score(batch)
    assert (batch[0].score, batch[0].reward) == (0.0, 0.0)
    RewardScorer([Fixed("a", 2.0), WeightedReward(ExactMatch(), shaping=True)]).score(batch)
    assert (batch[0].score, batch[0].reward) == (2.0, 3.0)


def test_none_is_could_not_score():
    batch = rollouts("x", "y", "z")
    scorer = RewardScorer(
        [
            Fixed("a", None, 1.0, 1.0),
            Fixed("b", 1.0, 1.0, 1.0),
            WeightedReward(Fixed("s", 0.0, None, 0.0), shaping=True),
        ]
    )
    assert scorer.score(batch) == 2
    assert [r.score for r in batch] == [None, 2.0, 2.0]
    assert [r.reward for r in batch] == [None, None, 2.0]
    assert [r.components["a"] for r in batch] == [None, 1.0, 1.0]


def test_weight_zero_still_decides_whether_it_could_be_scored():
    batch = rollouts("x", "y")
    RewardScorer([Fixed("a", 1.0, 1.0), WeightedReward(Fixed("b", 7.0, None), weight=0.0)]).score(batch)
    assert [r.score for r in batch] == [1.0, None]
    assert batch[0].components["b"] == 7.0


def test_nothing_to_score():
    assert RewardScorer([ExactMatch()]).score([]) == 0


def test_failures_are_counted_and_cost_their_item_only():
    batch = rollouts("good", "bad", "good")
    scorer = RewardScorer([BadInProcess()], on_error="none")
    assert scorer.score(batch) == 1
    assert [r.reward for r in batch] == [1.0, None, 1.0]
    assert scorer.failures == {"bad_in_process": 1}


def test_a_failure_raises_by_default():
    with pytest.raises(
        RewardError, match=r"reward 'bad_in_process' raised KeyError: 'bad', on prompt 'p1' \(sample 1\)"
    ):
        RewardScorer([BadInProcess()]).score(rollouts("good", "bad"))


def test_names_must_differ():
    with pytest.raises(ConfigError, match="2 entries named 'exact_match'"):
        RewardScorer([ExactMatch(), ExactMatch(ignore_case=True)])
    scorer = RewardScorer([ExactMatch(), WeightedReward(ExactMatch(ignore_case=True), name="loose")])
    assert scorer.pool.names == ("exact_match", "loose")


@pytest.mark.parametrize("rewards", [[], [LengthPenalty(20, 4)], [WeightedReward(ExactMatch(), shaping=True)]])
def test_a_list_without_verifier_is_refused(rewards):
    with pytest.raises(ConfigError, match="without a reward that gives the raw score"):
        RewardScorer(rewards)


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weight_must_be_finite(weight):
    with pytest.raises(ConfigError, match=r"WeightedReward\.weight"):
        WeightedReward(ExactMatch(), weight=weight)


def test_names():
    def my_function(rollouts):
        return []

    assert reward_name(ExactMatch()) == "exact_match"
    assert reward_name(LengthPenalty(20, 4)) == "length_penalty"
    assert reward_name(my_function) == "my_function"
    assert reward_name(WeightedReward(my_function)) == "my_function"
    assert reward_name(WeightedReward(my_function, name="other")) == "other"
