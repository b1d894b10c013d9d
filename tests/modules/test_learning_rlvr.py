"""GRPO learns, and three classic breakages do not pass for learning."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
from lightning.pytorch import seed_everything
from spine.forked import run_forked
from spine.toy import strategy_of
from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model

from roll_lightning.callbacks.checkpoint import RunCheckpoint
from roll_lightning.callbacks.hf_export import HFExport
from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.data.experience import Experience
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.engines.hf import HFEngine
from roll_lightning.functional.advantages import GroupRelative
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.optim import OptimizerConfig, ScheduleConfig
from roll_lightning.modules.rlvr import RLVRModule
from roll_lightning.modules.sft import SFTModule
from roll_lightning.rewards.exact_match import ExactMatch

THRESHOLD = 0.70


class FlippedSign(GroupRelative):
    def __call__(self, *arguments):
        output = super().__call__(*arguments)
        return type(output)(-output.advantages)


class FrozenEngine(HFEngine):
    """Samples from the weights of the start for ever."""

    def bind(self, policy, tokenizer):
        super().bind(copy.deepcopy(policy), tokenizer)


def shift_mask(monkeypatch) -> None:
    original = Experience.from_rollouts.__func__

    def shifted(cls, rollouts):
        experience = original(cls, rollouts)
        experience.response_mask = experience.response_mask.roll(1, dims=1)
        return experience

    monkeypatch.setattr(Experience, "from_rollouts", classmethod(shifted))


def warm_up(folder: Path) -> None:
    seed_everything(0)
    policy = PolicyConfig(str(folder / "model"), from_scratch=True)
    module = SFTModule(policy, OptimizerConfig(lr=3e-3), ScheduleConfig(warmup_steps=10))
    trainer = quiet_trainer(folder / "sft", RunCheckpoint(), HFExport(), max_steps=44)
    trainer.fit(module, datamodule=SFTDataModule(str(folder / "sft.jsonl"), batch_size=32, max_length=16))


def train(
    folder: Path, advantage: GroupRelative, engine: HFEngine, iterations: int = 80, **trainer_settings
) -> tuple[float, float]:
    """Sampled held-out accuracy before and after; all answers of validation come from the trained weights."""
    seed_everything(0)
    policy, schedule = PolicyConfig(str(folder / "sft/hf")), ScheduleConfig("linear", 3, 0.1)
    module = RLVRModule(policy, OptimizerConfig(lr=2e-3), schedule, advantage)
    data = RLVRDataModule(str(folder / "rl.jsonl"), str(folder / "val.jsonl"), batch_size=128, seed=0)
    rollout = RolloutCallback(16, 8, engine, [ExactMatch()], max_new_tokens=5)
    settings = {"check_val_every_n_epoch": 10**6, "enable_checkpointing": False, "gradient_clip_val": 1.0}
    settings |= trainer_settings
    trainer = quiet_trainer(folder / "rl", rollout, max_epochs=iterations, **settings)
    (before,) = trainer.validate(module, data, verbose=False)
    trainer.fit(module, datamodule=data)
    rollout.engine = HFEngine()
    (after,) = trainer.validate(module, data, verbose=False)
    return before["val_correct/sampled/mean"], after["val_correct/sampled/mean"]


def write_task(folder: Path) -> Path:
    write_model(folder / "model", hidden_size=64, intermediate_size=128, num_key_value_heads=4)
    write_jsonl(folder / "sft.jsonl", sorting_rows(600, answer="completion"))
    write_jsonl(folder / "rl.jsonl", sorting_rows(300, start=600))
    write_jsonl(folder / "val.jsonl", sorting_rows(100, start=900))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = write_task(tmp_path_factory.mktemp("learning"))
    out = folder / "sft.txt"
    assert run_forked(lambda: warm_up(folder), out) == [0], out.read_text()[-3000:]
    return folder


@pytest.mark.slow
def test_learning(folder):
    before, after = train(folder, GroupRelative(std="none"), HFEngine())
    assert 0.1 < before < THRESHOLD - 0.05
    assert after >= THRESHOLD


@pytest.mark.slow
@pytest.mark.parametrize("breakage", ["sign", "mask", "frozen engine"])
def test_learning_misses_the_threshold_when_broken(folder, monkeypatch, breakage):
    if breakage == "mask":
        shift_mask(monkeypatch)
    advantage = FlippedSign(std="none") if breakage == "sign" else GroupRelative(std="none")
    _, after = train(folder, advantage, FrozenEngine() if breakage == "frozen engine" else HFEngine())
    assert after < THRESHOLD - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
def test_learning_on_two_ranks(folder, tmp_path, strategy):
    """The same threshold under every strategy, live rollouts and all."""

    def learn() -> None:
        scores = train(folder, GroupRelative(std="none"), HFEngine(), strategy=strategy_of(strategy), devices=2)
        (tmp_path / f"rank{os.environ['RANK']}.json").write_text(json.dumps(scores))

    codes = run_forked(learn, tmp_path / "out.txt", 2, timeout=400)
    assert codes == [0, 0], (tmp_path / "out.txt").read_text()[-3000:]
    (before, after), other = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert [before, after] == other
    assert 0.1 < before < THRESHOLD - 0.05
    assert after >= THRESHOLD
