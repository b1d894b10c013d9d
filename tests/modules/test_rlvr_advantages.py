"""Estimators in real runs: what they need reaches them, and what they remember is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs.run_ends import assert_same_state, last_state, logged
from runs.tiny_run import make_task, rlvr_module, run_rlvr

from roll_lightning.collectors.replay import read_rollouts
from roll_lightning.functional.advantages import (
    AdvantageShaping,
    GroupRelative,
    LeaveOneOut,
    Reinforce,
    ReinforcePlusPlus,
    ReMax,
)
from roll_lightning.modules.rlvr import KLConfig, RLVRModule


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


class Watched(RLVRModule):
    """Keeps what the estimator got and gave."""

    def make_experience(self, rollouts, iteration):
        self.experience = super().make_experience(rollouts, iteration)
        self.rollouts = rollouts
        return self.experience


def train(task: Path, root: Path, epochs: int = 1, attempt: int = 0, rollout: dict | None = None, **settings):
    module = rlvr_module(task, Watched, **({"kl": KLConfig()} | settings))
    run_rlvr(task, root, module=module, max_epochs=epochs, attempt=attempt, rollout=rollout)
    return module


@pytest.mark.parametrize(
    "estimator", [LeaveOneOut(), Reinforce(0.9), ReinforcePlusPlus(), GroupRelative("batch", "batch")]
)
def test_estimators_run(task, tmp_path, estimator):
    module = train(task, tmp_path, advantage=estimator)
    assert module.experience.advantages.abs().max() > 0
    assert module.experience.advantages[~module.experience.response_mask].abs().max() == 0


def test_remax_answers_greedily_once_a_prompt(task, tmp_path):
    module = train(task, tmp_path, advantage=ReMax(), rollout={"record_dir": str(tmp_path / "rollouts")})
    rollouts = module.rollouts
    assert len(rollouts) == 16
    for group in range(4):
        (baseline,) = {r.baseline for r in rollouts if r.group == group}
        assert baseline is not None
    for rollout, row in zip(rollouts, module.experience.advantages, strict=True):
        assert row[module.experience.response_mask[rollouts.index(rollout)]].tolist() == pytest.approx(
            [rollout.reward - rollout.baseline] * rollout.response_length, abs=1e-6
        )
    assert [r.baseline for r in read_rollouts(str(tmp_path / "rollouts"), 0)] == [r.baseline for r in rollouts]


def test_a_kl_in_the_reward_is_taken_from_each_tokens_return(task, tmp_path):
    """In the first iteration policy and reference agree; in the second they do not."""
    kl = KLConfig("reward", "k1", 0.5)
    module = train(task, tmp_path, epochs=2, kl=kl, advantage=Reinforce(), drop_zero_variance=False)
    experience, mask = module.experience, module.experience.response_mask
    penalty = 0.5 * torch.where(mask, experience.old_logprobs - experience.ref_logprobs, 0.0)
    rewards = torch.tensor([r.reward for r in module.rollouts])
    expected = rewards[:, None] - penalty.flip(1).cumsum(1).flip(1)
    assert penalty.abs().max() > 1e-3
    assert torch.allclose(experience.advantages[mask], expected[mask], atol=1e-5)
    assert logged(tmp_path)[3, "critic/kl"] == 0
    assert logged(tmp_path)[7, "critic/kl"] == pytest.approx(float(2 * penalty[mask].mean()), abs=1e-6)


def test_shaping_is_logged(task, tmp_path):
    module = train(task, tmp_path, shaping=AdvantageShaping(clip_rewards=0.3, clip=0.5))
    assert module.experience.advantages.abs().max() == 0.5
    values = logged(tmp_path)
    assert 0 < values[3, "critic/reward_clip_frac"] < 1
    assert 0 < values[3, "critic/advantage_clip_frac"] < 1


def test_running_statistics_are_resumed(task, tmp_path):
    train(task, tmp_path / "whole", epochs=2, advantage=GroupRelative("running", "running"))
    train(task, tmp_path / "parts", epochs=1, advantage=GroupRelative("running", "running"))
    train(task, tmp_path / "parts", epochs=2, attempt=1, advantage=GroupRelative("running", "running"))
    assert last_state(tmp_path / "whole")["experience_maker"]["advantage"]["count"] == 32
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))


def test_one_answer_a_prompt_where_groups_are_not_compared(task, tmp_path):
    rollout = {"num_generations": 1, "prompts_per_iteration": 16}
    module = train(task, tmp_path, advantage=Reinforce(), rollout=rollout)
    assert len(module.rollouts) == 16
