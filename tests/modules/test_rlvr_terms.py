"""Further terms of the objective, sample masks and weights, off-policy corrections: in real runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from runs.run_ends import assert_same_state, last_state, logged
from runs.tiny_run import SGDModule, make_task, rlvr_module, run_rlvr

from roll_lightning.errors import ConfigError
from roll_lightning.functional.off_policy import ImportanceWeight, OffPolicyCorrection, RejectionMask
from roll_lightning.functional.sample_masks import LengthWeight, OverlongMask, SampleSelection, WrongAndLongMask
from roll_lightning.modules.kl_term import KLConfig


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


class Watched(SGDModule):
    """Keeps its experience, and the first gradient."""

    gradient: torch.Tensor | None = None
    shift = 0.0

    def make_experience(self, rollouts, iteration):
        for rollout in rollouts:
            rollout.logprobs = [
                min(0.0, value - self.shift * (place % 3)) if trained else value
                for place, (value, trained) in enumerate(zip(rollout.logprobs, rollout.loss_mask, strict=True))
            ]
        self.experience, self.rollouts = super().make_experience(rollouts, iteration), rollouts
        return self.experience

    def on_before_optimizer_step(self, optimizer):
        super().on_before_optimizer_step(optimizer)
        if self.gradient is None:
            self.gradient = torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None]).clone()


def train(task: Path, root: Path, epochs: int = 1, attempt: int = 0, shift: float = 0.0, **settings):
    rollout, data = settings.pop("rollout", {}), settings.pop("data", {"ppo_epochs": 1, "batch_size": 16})
    module = rlvr_module(task, Watched, **({"kl": KLConfig(), "drop_zero_variance": False} | settings))
    module.shift = shift
    run_rlvr(
        task,
        root,
        module=module,
        max_epochs=epochs,
        attempt=attempt,
        rollout=rollout,
        data=data,
        gradient_clip_val=None,
    )
    return module


def test_entropy_bonus_pulls_along_the_gradient_of_the_entropy(task, tmp_path):
    plain = train(task, tmp_path / "plain")
    bonus = train(task, tmp_path / "bonus", entropy_coefficient=0.5)
    difference = plain.gradient - bonus.gradient  # 0.5 times the gradient of the mean entropy
    policy, experience = rlvr_start(task), bonus.experience
    out = policy(experience.input_ids, experience.response_mask, 1.0, entropy=True)
    (0.5 * out.entropy.sum() / experience.response_mask.sum()).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert torch.allclose(difference, expected, atol=1e-6)
    assert expected.abs().max() > 1e-3


def rlvr_start(task):
    from roll_lightning.models.loading import PolicyConfig, load_policy

    return load_policy(PolicyConfig(str(task / "model")), seed=0, dropout=False)


def test_positive_nll_pulls_up_tokens_of_good_answers_only(task, tmp_path):
    plain = train(task, tmp_path / "plain")
    extra = train(task, tmp_path / "extra", positive_nll_coefficient=0.3)
    policy, experience = rlvr_start(task), extra.experience
    out = policy(experience.input_ids, experience.response_mask)
    positive = experience.response_mask & (experience.advantages > 0)
    (-0.3 * out.logprobs[positive].sum() / experience.response_mask.sum()).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert torch.allclose(extra.gradient - plain.gradient, expected, atol=1e-6)
    assert logged(tmp_path / "extra")[0, "actor/positive_nll_loss"] > 0


def test_importance_weights_multiply_the_policy_loss(task, tmp_path):
    """The engine's log-probabilities are falsified, so that weights differ from 1."""
    correction = OffPolicyCorrection(ImportanceWeight("token", upper=1.4))
    weighted = train(task, tmp_path / "weighted", shift=0.3, off_policy=correction)
    policy, experience = rlvr_start(task), weighted.experience
    out, mask = policy(experience.input_ids, experience.response_mask), experience.response_mask
    weight = (out.logprobs.detach() - experience.behaviour_logprobs).exp().clamp(max=1.4)
    (-(weight * experience.advantages * out.logprobs)[mask].sum() / mask.sum()).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert torch.allclose(weighted.gradient, expected, atol=1e-6)
    values = logged(tmp_path / "weighted")
    assert 0 < values[0, "actor/is_weight_clipfrac"] < 1
    assert values[0, "actor/train_infer_ratio_token_max"] == pytest.approx(math.exp(0.6), rel=1e-3)


def test_rejected_tokens_leave_numerator_and_denominator(task, tmp_path):
    correction = OffPolicyCorrection(masks=[RejectionMask("token", high=1.2)])
    module = train(task, tmp_path, shift=0.3, off_policy=correction)
    experience = module.experience
    written = sum(rollout.response_length for rollout in module.rollouts)
    kept = int(experience.response_mask.sum())
    assert 0 < kept < written
    ratio = (experience.old_logprobs - experience.behaviour_logprobs).exp()
    assert ratio[experience.response_mask].max() <= 1.2
    assert logged(tmp_path)[0, "actor/train_infer_final_mask_mean"] == pytest.approx(kept / written)


def test_weights_of_rows_are_taken_before_tokens_are_rejected(task, tmp_path):
    correction = OffPolicyCorrection(ImportanceWeight("sequence", upper=None), [RejectionMask("token", high=1.2)])
    experience = train(task, tmp_path, shift=0.3, off_policy=correction).experience
    for row, rollout in enumerate(train(task, tmp_path / "again", shift=0.3).rollouts):
        places = torch.tensor(rollout.loss_mask, dtype=torch.bool).nonzero().flatten()
        whole = (experience.old_logprobs - experience.behaviour_logprobs)[row, places].sum().exp()
        kept = experience.response_mask[row]
        assert torch.allclose(experience.policy_weights[row][kept], whole.float(), rtol=1e-5)
    assert experience.response_mask.sum() > 0


def test_a_horizon_that_is_too_short_is_found_before_a_model_loads(task, tmp_path):
    with pytest.raises(ConfigError, match=r"model.kl.horizon is 3, but an iteration has 16 samples"):
        train(task, tmp_path, kl=KLConfig("loss", "k2", 0.1, target=1.0, horizon=3))


def test_T23_a_correction_is_refused_where_log_probabilities_are_of_a_filtered_distribution(task, tmp_path):
    with pytest.raises(ConfigError, match=r"model.off_policy corrects by log-probabilities, but with rollout.top_p"):
        train(task, tmp_path, off_policy=OffPolicyCorrection(ImportanceWeight()), rollout={"top_p": 0.9})


def test_masked_samples_cost_no_compute_and_weights_average_to_one(task, tmp_path):
    selection = SampleSelection([OverlongMask(), WrongAndLongMask(3)], [LengthWeight()])
    module = train(task, tmp_path, samples=selection)
    experience = module.experience
    kept = experience.response_mask.any(1)
    for rollout, keep in zip(module.rollouts, kept.tolist(), strict=True):
        good = rollout.finish_reason == "stop" and not (rollout.score < 1 and rollout.response_length > 3)
        assert keep is good
    assert 0 < kept.sum() < 16
    (window,) = module.trainer.datamodule.plan_experience(experience, 0)
    planned = sorted(row for rank in window.micro_batches for rows in rank for row in rows)
    assert planned == kept.nonzero().flatten().tolist()
    weights = [
        float(row[mask][0])
        for row, mask in zip(experience.policy_weights, experience.response_mask, strict=True)
        if mask.any()
    ]
    assert sum(weights) / len(weights) == pytest.approx(1, abs=1e-6)
    assert logged(tmp_path)[0, "actor/samples_used"] == int(kept.sum())


def test_an_adaptive_kl_coefficient_moves_and_is_resumed(task, tmp_path):
    kl = KLConfig("loss", "k2", 0.1, target=1e-6, horizon=20)
    train(task, tmp_path / "whole", epochs=3, kl=kl)
    train(task, tmp_path / "parts", epochs=1, kl=kl)
    train(task, tmp_path / "parts", epochs=3, attempt=1, kl=kl)
    values = logged(tmp_path / "whole")
    coefficients = [values[step, "critic/kl_coef"] for step in range(3)]
    # The first iteration has no KL: a full error down, 16 samples over a horizon of 20; then full errors up.
    assert coefficients[:2] == pytest.approx([0.1, 0.1 * (1 - 0.2 * 16 / 20)])
    assert coefficients[2] == pytest.approx(coefficients[1] * (1 + 0.2 * 16 / 20))
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))


def test_settings_from_yaml(task, tmp_path, capsys):
    import yaml

    from roll_lightning.cli import main

    config = {
        "model": {
            "class_path": "RLVRModule",
            "init_args": {
                "policy": {"path": str(task / "model")},
                "policy_loss": {"class_path": "PPOClip", "init_args": {"ratio": "sequence"}},
                "off_policy": {
                    "weight": {"level": "token", "upper": 2.0},
                    "masks": [{"level": "sequence", "high": 5.0}],
                },
                "samples": {"masks": [{"class_path": "OverlongMask"}], "weights": [{"class_path": "LengthWeight"}]},
                "shaping": {"whiten": True},
                "kl": {"placement": "reward", "estimator": "k1", "target": 6.0},
            },
        },
        "data": {"class_path": "RLVRDataModule", "init_args": {"train": str(task / "rl.jsonl"), "batch_size": 8}},
        "rollout": {
            "prompts_per_iteration": 4,
            "num_generations": 2,
            "max_new_tokens": 4,
            "rewards": [{"class_path": "ExactMatch"}],
        },
        "trainer": {"accelerator": "cpu", "max_epochs": 1, "default_root_dir": str(tmp_path / "run")},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "--config", str(tmp_path / "config.yaml")]) == 0
    capsys.readouterr()
    wrong = ["--model.off_policy.weight.uper", "3"]
    assert main(["fit", "--config", str(tmp_path / "config.yaml"), *wrong]) == 1
    assert "did you mean model.off_policy.weight.upper?" in capsys.readouterr().err
