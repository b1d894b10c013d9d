"""The main job, whole: three seeds from data to report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_quickstart(folder: Path, seed: int) -> tuple[dict, str]:
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "examples/quickstart.py", "--seed", str(seed)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "runs/quickstart/summary.json").read_text()), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_learning_quickstart(tmp_path, seed):
    summary, text = run_quickstart(tmp_path, seed)
    assert summary["score_before"] < 0.05
    assert 0.15 <= summary["score_after_sft"] <= 0.6
    assert summary["score_after_rlvr"] >= 0.80
    assert (tmp_path / summary["curve"]).stat().st_size > 10_000
    assert (tmp_path / summary["hf_model"] / "model.safetensors").is_file()
    for line in ("sampled", "tokens per second", "sampled answers after GRPO", "tensorboard --logdir"):
        assert line in text
    check_disjoint(tmp_path / "runs/quickstart/data")


def check_disjoint(data: Path) -> None:
    prompts = [json.loads(line)["prompt"] for file in data.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(prompts) == len(set(prompts)) > 10_000
