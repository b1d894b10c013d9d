from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model

from roll_lightning.callbacks.rollout import RolloutCallback, ValidationSampling
from roll_lightning.data.types import Rollout
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.functional.advantages import GroupRelative
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.optim import OptimizerConfig, ScheduleConfig
from roll_lightning.modules.rlvr import KLConfig, RLVRModule
from roll_lightning.rewards.base import RewardFunction

LIMIT = 6


class Even(RewardFunction):
    """Share of even digits; the prompts of ``flat`` get 1 whatever is answered."""

    in_process = True

    def __init__(self, flat: Sequence[str] = ()) -> None:
        self.flat = flat

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [
            1.0 if r.prompt.text in self.flat else sum(c in "02468" for c in r.text) / (1 + len(r.text))
            for r in rollouts
        ]


class Watch(Callback):
    """Keeps the metrics of every window, and what the batches held."""

    def __init__(self) -> None:
        self.windows: list[dict[str, float]] = []
        self.rows: list[list[list[int]]] = []
        self.training: list[bool] = []
        self.experience: Any = None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.training.append(pl_module.policy.training and pl_module.policy.hf.training)
        self.rows.append(batch.input_ids[:, :LIMIT].tolist())
        self.experience = trainer.datamodule.experience

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.windows.append({k: float(v) for k, v in pl_module.window_metrics.compute().items()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rlvr")
    write_model(folder / "model", weights=True, attention_dropout=0.3, initializer_range=0.3)
    write_jsonl(folder / "rows.jsonl", sorting_rows(8))
    return folder


def train(folder, root, *, data=None, rollout=None, epochs=1, accumulate=1, flat=(), **module):
    watch = Watch()
    data = RLVRDataModule(str(folder / "rows.jsonl"), **({"batch_size": 16, "seed": 0} | (data or {})))
    settings = {"max_new_tokens": LIMIT, "rewards": [Even(flat)]} | (rollout or {})
    made = RLVRModule(PolicyConfig(str(folder / "model")), **({"optimizer": OptimizerConfig(lr=1e-2)} | module))
    trainer = quiet_trainer(
        root,
        RolloutCallback(4, 4, **settings),
        watch,
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        enable_checkpointing=False,
    )
    trainer.fit(made, datamodule=data)
    return made, watch


def by_hand(module, experience, temperature=1.0) -> torch.Tensor:
    """Log-probabilities ``[rows, tokens]`` from the plain logits of the model."""
    with torch.no_grad():
        logits = module.policy.hf.eval()(input_ids=experience.input_ids).logits / temperature
    taken = logits.log_softmax(-1)[:, :-1].gather(-1, experience.input_ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(taken, (1, 0))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_T22_engine_and_trainer_agree(folder, tmp_path, temperature):
    settings = {"rollout": {"temperature": temperature}, "drop_zero_variance": False}
    module, watch = train(folder, tmp_path, optimizer=OptimizerConfig(lr=1e-12), **settings)
    mask = watch.experience.response_mask
    expected = by_hand(module, watch.experience, temperature)[mask]
    assert torch.allclose(watch.experience.behaviour_logprobs[mask], expected, atol=1e-5)
    assert watch.windows[0]["actor/train_infer_ratio_token_max"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("data", [{"batch_size": 16}, {"batch_size": 8}, {"batch_size": 4, "ppo_epochs": 2}])
def test_T24_T28_the_first_ratio_is_1_to_the_bit_and_later_ones_are_not(folder, tmp_path, data):
    _, watch = train(folder, tmp_path, data=data, accumulate=2, rollout={"temperature": 1.5})
    assert watch.windows[0]["actor/ratio_max"] == watch.windows[0]["actor/ratio_min"] == 1.0
    for window in watch.windows[1:]:
        assert window["actor/ratio_max"] > 1.001


def test_T24_LT_train_mode_without_dropout(folder, tmp_path):
    module, watch = train(folder, tmp_path)
    assert all(watch.training)
    assert module.policy.config.attention_dropout == 0


def test_T18_the_second_pass_has_the_same_rollouts_in_a_new_order(folder, tmp_path):
    settings = {"data": {"batch_size": 8, "ppo_epochs": 2}, "drop_zero_variance": False}
    _, watch = train(folder, tmp_path, **settings)
    first, second = watch.rows[:2], watch.rows[2:]
    assert sorted(chain.from_iterable(first)) == sorted(chain.from_iterable(second))
    assert sorted(first[0]) != sorted(second[0])


def test_T24_the_reference_is_apart(folder, tmp_path):
    module, watch = train(folder, tmp_path, kl=KLConfig("loss", "k2", 0.1), epochs=2)
    (reference,) = module._reference
    assert not reference.training
    assert not any(p.requires_grad for p in reference.parameters())
    assert len(module.state_dict()) == len(module.policy.state_dict())
    trained = {id(p) for group in module.trainer.optimizers[0].param_groups for p in group["params"]}
    assert not trained & {id(p) for p in reference.parameters()}
    assert watch.windows[0]["critic/kl"] == watch.windows[0]["actor/kl_loss"] == 0.0
    assert watch.windows[1]["actor/kl_loss"] > 0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_term_by_hand(folder, tmp_path, estimator):
    module, watch = train(folder, tmp_path, kl=KLConfig("loss", estimator, 0.5), epochs=2)
    window, experience = watch.windows[1], watch.experience
    mask = experience.response_mask
    reference = by_hand(type("M", (), {"policy": module._reference[0]}), experience)[mask]
    assert torch.allclose(experience.ref_logprobs[mask], reference, atol=1e-5)
    # With one update per iteration the policy that was trained is the one that sampled.
    d = (experience.behaviour_logprobs - experience.ref_logprobs)[mask].double()
    values = {"k1": d, "k2": d.square() / 2, "k3": (-d).exp() - 1 + d}[estimator]
    assert window["actor/kl_loss"] == pytest.approx(float(values.mean()), abs=1e-5)
    assert window["critic/kl"] == pytest.approx(float(d.mean()), abs=1e-5)
    assert window["actor/total_loss"] == pytest.approx(
        window["actor/pg_loss"] + 0.5 * window["actor/kl_loss"], abs=1e-6
    )


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_T07_aggregation_by_hand(folder, tmp_path, mode, accumulate):
    _, watch = train(folder, tmp_path, aggregation=mode, accumulate=accumulate)
    mask, loss = watch.experience.response_mask.double(), -watch.experience.advantages.double()
    sums, lengths = (loss * mask).sum(1), mask.sum(1)
    rows = lengths > 0
    expected = {
        "token-mean": sums.sum() / lengths.sum(),
        "seq-mean-token-sum": sums[rows].mean(),
        "seq-mean-token-mean": (sums[rows] / lengths[rows]).mean(),
        "seq-mean-token-sum-norm": sums[rows].mean() / LIMIT,
    }[mode]
    assert len(set(lengths.tolist())) > 1
    assert watch.windows[0]["actor/pg_loss"] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("drop", [True, False])
def test_T15_groups_without_variance(folder, tmp_path, drop):
    flat = [row["prompt"] for row in sorting_rows(8)][:4]
    module, watch = train(folder, tmp_path, flat=flat, drop_zero_variance=drop, epochs=2)
    experience = watch.experience
    trained = experience.response_mask.any(1)
    zero = experience.advantages.abs().sum(1) == 0
    assert zero.any()
    assert bool((trained[zero]).any()) is not drop
    assert module.trainer.callback_metrics["group/zero_variance_groups_ratio"] > 0
    loss = -(experience.advantages * experience.response_mask).double().sum() / experience.response_mask.sum()
    assert watch.windows[-1]["actor/pg_loss"] == pytest.approx(float(loss), abs=1e-6)


def test_an_iteration_that_teaches_nothing(folder, tmp_path):
    flat = [row["prompt"] for row in sorting_rows(8)]
    module, _ = train(folder, tmp_path, flat=flat, epochs=2, kl=KLConfig("loss"))
    assert module.trainer.callback_metrics["actor/valid_samples"] == 0
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_T23_a_filter_leaves_no_comparison(folder, tmp_path):
    _, watch = train(folder, tmp_path, rollout={"top_p": 0.9})
    assert watch.experience.behaviour_logprobs is None
    assert "actor/train_infer_ratio_token_mean" not in watch.windows[0]


def test_names_of_the_documentation_are_logged(folder, tmp_path):
    rows = str(folder / "rows.jsonl")
    rollout = {"validation": ValidationSampling(True, 2)}
    module, _ = train(folder, tmp_path, data={"val": rows}, rollout=rollout, kl=KLConfig("loss"))
    logged = set(module.trainer.logged_metrics) | set(module.trainer.callback_metrics)
    names = """critic/score/mean critic/score/max critic/rewards/min critic/correct/mean critic/unscored_samples
        critic/reward_component/even/mean group/correct_ratio/mean group/correct_ratio/std
        group/all_correct_groups_ratio
        group/all_incorrect_groups_ratio group/mixed_groups_ratio group/zero_variance_groups_ratio
        token/prompt_length/mean token/response_length/mean token/response_length/max token/error_response_length/mean
        token/total_response_length/clip actor/pg_loss actor/kl_loss actor/total_loss actor/ratio_mean actor/ratio_max
        actor/ratio_min actor/clipfrac actor/ppo_ratio_low_clipfrac actor/ppo_ratio_high_clipfrac
        actor/ppo_ratio_clipfrac actor/approxkl actor/policykl actor/grad_norm actor/lr actor/valid_samples
        actor/valid_sample_ratio critic/entropy/mean critic/kl critic/advantages/mean
        actor/train_infer_ratio_token_mean actor/train_infer_ratio_token_max system/actor_infer/response/tps
        time/step_generate time/make_experience val_correct/greedy/mean val_correct/sampled/mean
        val_correct/pass@2/mean val_score/greedy/mean val_response_length/mean val_correct/unscored"""
    assert not set(names.split()) - logged


def test_a_schedule_spans_all_updates(folder, tmp_path):
    settings = {"data": {"batch_size": 4, "ppo_epochs": 2}, "epochs": 3, "accumulate": 2}
    schedule = ScheduleConfig("linear", 0, 0.0)
    module, _ = train(folder, tmp_path, schedule=schedule, advantage=GroupRelative(std="none"), **settings)
    updates = 3 * 2 * 16 // 4
    assert module.trainer.global_step == updates
    assert module.trainer.callback_metrics["actor/lr"] == pytest.approx(1e-2 / updates, rel=1e-5)
