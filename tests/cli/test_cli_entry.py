"""The installed program itself, in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli_run import BASE

import roll_lightning

PROGRAM = Path(sys.executable).with_name("roll-lightning")


def start(folder, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["fit", "--config", "nowhere.yaml"], ["fti"]])
def test_what_needs_no_model_imports_neither_torch_nor_lightning(tmp_path, arguments):
    code = f"""
import sys
from roll_lightning.cli import main
main({arguments!r})
heavy = {{"torch", "lightning", "transformers", "jsonargparse", "numpy"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = start(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


def test_top_level(tmp_path):
    bare, asked = start(tmp_path, str(PROGRAM)), start(tmp_path, str(PROGRAM), "--help")
    assert bare.returncode == asked.returncode == 0
    assert bare.stdout == asked.stdout
    for name in ("fit", "validate", "test", "explain", "predict"):
        assert f"\n  {name} " in bare.stdout
    version = start(tmp_path, str(PROGRAM), "--version")
    assert version.stdout == f"roll-lightning {roll_lightning.__version__}\n"


def test_a_project_in_the_current_folder_and_a_fault_as_one_line(tmp_path):
    samples = (Path(__file__).parent / "cli_samples.py").read_text()
    (tmp_path / "my_project.py").write_text(samples)
    base = yaml.safe_dump(BASE).replace("cli_samples", "my_project")
    (tmp_path / "base.yaml").write_text(base)
    done = start(tmp_path, str(PROGRAM), "fit", "--config", "base.yaml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/checkpoints/step=2.ckpt").exists()
    done = start(tmp_path, str(PROGRAM), "fit", "--config", "base.yaml", "--model.size.widht", "3")
    assert done.returncode == 1
    assert done.stderr == "error: unknown key model.size.widht; did you mean model.size.width?\n"
    assert done.stdout == ""
