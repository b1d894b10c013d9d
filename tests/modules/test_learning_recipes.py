"""Every algorithm learns from the same start, through its shipped recipe and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from modules.test_learning_rlvr import THRESHOLD, warm_up, write_task
from spine.forked import run_forked
from tiny import quiet_trainer

from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.cli import main
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.rlvr import RLVRModule
from roll_lightning.rewards.exact_match import ExactMatch

RECIPES = Path(__file__).parents[2] / "configs/recipes"
# What a recipe needs beside: steps as large as its kind of loss allows on this model.
LEARNING_RATE = {"rloo": 1e-3, "remax": 1e-3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = write_task(tmp_path_factory.mktemp("recipes"))
    out = folder / "sft.txt"
    assert run_forked(lambda: warm_up(folder), out) == [0], out.read_text()[-3000:]
    return folder


def config_of(folder: Path, recipe: str) -> dict:
    return {
        "seed_everything": 0,
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": 80,
            "check_val_every_n_epoch": 1000,
            "gradient_clip_val": 1.0,
            "num_sanity_val_steps": 0,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": str(folder / recipe),
        },
        "model": {
            "class_path": "RLVRModule",
            "init_args": {
                "policy": {"path": str(folder / "sft/hf")},
                "optimizer": {"lr": LEARNING_RATE.get(recipe, 2e-3)},
                "schedule": {"name": "linear", "warmup_steps": 3, "min_ratio": 0.1},
            },
        },
        "data": {
            "class_path": "RLVRDataModule",
            "init_args": {"train": str(folder / "rl.jsonl"), "val": str(folder / "val.jsonl"), "batch_size": 128},
        },
        "rollout": {
            "prompts_per_iteration": 16,
            "num_generations": 8,
            "max_new_tokens": 5,
            "rewards": [{"class_path": "ExactMatch"}],
        },
    }


def sampled_accuracy(folder: Path, model: Path) -> float:
    data = RLVRDataModule(val=str(folder / "val.jsonl"), seed=0)
    rollout = RolloutCallback(16, 8, rewards=[ExactMatch()], max_new_tokens=5)
    trainer = quiet_trainer(folder / "validation", rollout)
    (values,) = trainer.validate(RLVRModule(PolicyConfig(str(model))), data, verbose=False)
    return values["val_correct/sampled/mean"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["grpo", "rloo", "reinforce_plus_plus", "gspo", "cispo", "topr", "lite_ppo", "kimi15", "remax", "ppo"]
)
def test_the_recipe_learns(folder, recipe):
    config = folder / f"{recipe}.yaml"
    config.write_text(yaml.safe_dump(config_of(folder, recipe)))
    assert sampled_accuracy(folder, folder / "sft/hf") < THRESHOLD - 0.05
    assert main(["fit", "--config", str(config), "--config", str(RECIPES / f"{recipe}.yaml")]) == 0
    assert sampled_accuracy(folder, folder / recipe / "hf") >= THRESHOLD
