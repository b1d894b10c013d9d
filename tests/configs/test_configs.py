"""Every shipped YAML runs, shortened."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll_lightning.cli import main

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted([*FOLDER.glob("*.yaml"), *(FOLDER / "examples").glob("*.yaml")])
SHORT = ["--trainer.max_steps", "2", "--trainer.max_epochs", "2", "--trainer.num_sanity_val_steps", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_config_runs_as_it_is(config, quickstart_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(quickstart_folder)
    root = tmp_path / "run"
    assert main(["fit", "--config", str(config), *SHORT, "--trainer.default_root_dir", str(root)]) == 0
    assert (root / "checkpoints" / "step=2.ckpt.complete").is_file()
    assert (root / "hf" / "config.json").is_file()
    assert (root / "config.yaml").is_file()
