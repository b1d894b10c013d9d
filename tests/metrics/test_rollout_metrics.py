from __future__ import annotations

import pytest
import torch

from roll_lightning.data.experience import Experience
from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.metrics.rollouts import experience_metrics, rollout_metrics
from roll_lightning.metrics.validation import ValidationMetrics


def rollout(group: int, score: float | None, length: int, domain: str = "a", reason: str = "stop") -> Rollout:
    prompt = Prompt(id=f"p{group}", token_ids=(1, 2), text="", domain=domain)
    return Rollout(
        prompt=prompt,
        group=group,
        sample=0,
        token_ids=[1, 2, *[3] * length],
        loss_mask=[0, 0, *[1] * length],
        logprobs=[0.0, 0.0, *[-1.0] * length],
        text="",
        finish_reason=reason,
        weight_version=(0, 0),
        score=score,
        reward=None if score is None else score - 0.5,
        components={"exact": score},
    )


ROLLOUTS = [
    rollout(0, 1.0, 2),
    rollout(0, 0.0, 4),
    rollout(1, 1.0, 3, "b"),
    rollout(1, 1.0, 5, "b"),
    rollout(2, 0.0, 6, "b", "length"),
    rollout(2, None, 1, "b"),
]


def test_by_hand():
    metrics = rollout_metrics(ROLLOUTS)
    expected = {
        "system/samples": 6,
        "critic/unscored_samples": 1,
        "critic/score/mean": 3 / 5,
        "critic/rewards/mean": 1 / 10,
        "critic/rewards/max": 0.5,
        "critic/correct/mean": 3 / 5,
        "critic/reward_component/exact/mean": 3 / 5,
        "token/prompt_length/mean": 2,
        "token/response_length/mean": 21 / 6,
        "token/response_length/max": 6,
        "token/response_length/min": 1,
        "token/right_response_length/mean": 10 / 3,
        "token/error_response_length/mean": 5,
        "token/total_response_length/clip": 1 / 6,
        "group/correct_ratio/mean": (0.5 + 1 + 0) / 3,
        "group/all_correct_groups_ratio": 1 / 3,
        "group/all_incorrect_groups_ratio": 1 / 3,
        "group/mixed_groups_ratio": 1 / 3,
        "group/zero_variance_groups_ratio": 2 / 3,
        "a/critic/score/mean": 0.5,
        "b/critic/score/mean": 2 / 3,
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value), name


def routed(group, domain, components, faults=None, reward=1.0):
    made = rollout(group, 1.0, 2, domain)
    made.components, made.reward_faults, made.reward = components, faults or {}, reward
    return made


def test_components_by_hand_overall_and_by_domain():
    rollouts = [
        routed(0, "maths", {"verify": 1.0, "short": -0.5}),
        routed(0, "maths", {"verify": 0.0, "short": None}, {"verify": "overrun", "short": "failure"}, None),
        routed(1, "words", {"exact": None, "short": -1.0}),
        routed(1, "words", {"exact": None, "short": 0.0}),
    ]
    expected = {
        "verify/mean": 0.5,
        "verify/max": 1.0,
        "verify/min": 0.0,
        "verify/unscored": 0,
        "verify/overruns": 1,
        "verify/failures": 0,
        "short/mean": -0.5,
        "short/max": 0.0,
        "short/min": -1.0,
        "short/unscored": 1,
        "short/overruns": 0,
        "short/failures": 1,
        # None everywhere: no mean, but a count.
        "exact/unscored": 2,
        "exact/overruns": 0,
        "exact/failures": 0,
    }
    metrics = rollout_metrics(rollouts)
    prefix = "critic/reward_component/"
    assert {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)} == pytest.approx(expected)
    words = {
        name.removeprefix("words/" + prefix): value
        for name, value in metrics.items()
        if name.startswith("words/" + prefix)
    }
    # A reward that does not serve a domain has no metric there.
    assert words == pytest.approx(
        {name: expected[name] for name in ("exact/unscored", "exact/overruns", "exact/failures")}
        | {"short/mean": -0.5, "short/max": 0.0, "short/min": -1.0}
        | {"short/unscored": 0, "short/overruns": 0, "short/failures": 0}
    )
    assert metrics["maths/critic/reward_component/short/mean"] == -0.5


def test_what_has_a_score_but_no_reward_is_in_no_spread_of_rewards():
    # Scored by the verifier, not by a shaping reward.
    unshaped = [routed(0, "a", {}, reward=None), routed(0, "a", {}, reward=None)]
    assert "critic/rewards/mean" not in rollout_metrics(unshaped)
    assert rollout_metrics(unshaped)["group/zero_variance_groups_ratio"] == 1.0
    mixed = [routed(0, "a", {}, reward=0.5), routed(0, "a", {}, reward=None), routed(0, "a", {}, reward=0.5)]
    assert rollout_metrics(mixed)["critic/rewards/mean"] == 0.5
    assert rollout_metrics(mixed)["group/zero_variance_groups_ratio"] == 1.0
    mixed[2].reward = 0.25
    assert rollout_metrics(mixed)["group/zero_variance_groups_ratio"] == 0.0


def test_one_domain_is_not_named():
    assert not any(name.startswith("a/") for name in rollout_metrics(ROLLOUTS[:2]))


def test_experience_by_hand():
    experience = Experience.from_rollouts(ROLLOUTS[:2])
    experience.advantages = torch.tensor([[9.0] * 6, [1.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    experience.response_mask[0] = False
    assert experience_metrics(experience) == {
        "actor/valid_samples": 1,
        "actor/valid_sample_ratio": 0.5,
        "critic/advantages/mean": 3.5,
        "critic/advantages/max": 5,
        "critic/advantages/min": 2,
    }


def test_validation_by_hand():
    metrics = ValidationMetrics(2, ["a", "b"])
    metrics.add_greedy([ROLLOUTS[0], ROLLOUTS[4]])
    metrics.add_sampled(ROLLOUTS)
    found = {name: float(value) for name, value in metrics.pop().items()}
    assert found["val_correct/greedy/mean"] == 0.5
    assert found["val_correct/sampled/mean"] == pytest.approx(3 / 5)
    assert found["val_correct/pass@2/mean"] == pytest.approx(2 / 3)
    assert found["val_correct/b/sampled/mean"] == pytest.approx(2 / 3)
    assert found["val_correct/b/pass@2/mean"] == 0.5
    assert found["val_score/sampled/mean"] == pytest.approx(3 / 5)
    assert found["val_correct/unscored"] == pytest.approx(1 / 8)
