"""Every overlay in ``configs/recipes`` runs on the configs that it is for, shortened."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "configs/recipes"
STRATEGIES = ["ddp", "fsdp2", "deepspeed_1", "deepspeed_2", "deepspeed_3"]
ALGORITHMS = ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "lite_ppo", "gspo", "cispo", "tis", "topr", "kimi15"]
ALGORITHMS += ["remax", "vanilla", "ppo"]
RUNS = [(config, recipe) for recipe in [*STRATEGIES, "lora"] for config in ("sft", "rlvr")]
IN_PROCESS = [("rlvr", recipe) for recipe in ALGORITHMS]
SHORT = ["--trainer.max_steps", "2", "--trainer.max_epochs", "2", "--trainer.num_sanity_val_steps", "0"]
TESTED_ELSEWHERE = {"reasoning_gym"}  # needs a model that reads text: tests/datamodules/test_rlvr_domains.py


def test_every_recipe_is_tested():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {
        recipe for _, recipe in [*RUNS, *IN_PROCESS]
    } | TESTED_ELSEWHERE


def test_every_algorithm_is_in_the_table():
    page = (FOLDER.parents[1] / "docs/algorithms.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| [^|]* \| `(\w+)` \|", page, re.MULTILINE)) == set(ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "recipe"), RUNS)
def test_recipe_runs(config, recipe, quickstart_folder, tmp_path):
    """In a process of its own: two ranks start a second one."""
    script = Path(sys.executable).with_name("roll-lightning")
    configs = ["--config", f"configs/{config}.yaml", "--config", f"configs/recipes/{recipe}.yaml"]
    command = [script, "fit", *configs, *SHORT, "--trainer.default_root_dir", tmp_path / "run"]
    done = subprocess.run(command, cwd=quickstart_folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run/checkpoints/step=2.ckpt.complete").is_file()
    assert list((tmp_path / "run/hf").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(("config", "recipe"), IN_PROCESS)
def test_recipe_of_an_algorithm_runs(config, recipe, quickstart_folder, tmp_path, monkeypatch):
    from roll_lightning.cli import main

    monkeypatch.chdir(quickstart_folder)
    configs = ["--config", f"configs/{config}.yaml", "--config", f"configs/recipes/{recipe}.yaml"]
    assert main(["fit", *configs, *SHORT, "--trainer.default_root_dir", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/checkpoints/step=2.ckpt.complete").is_file()
