"""GRPO on a pretrained model: the example with a tiny one, and with SmolLM2-135M-Instruct itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import write_instruct_model

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "runs/models/SmolLM2-135M-Instruct"
SHORT = ["--trainer.max_epochs", "2", "--trainer.check_val_every_n_epoch", "1"]


def run_example(folder: Path, model: Path, *arguments: str) -> tuple[dict, str]:
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "examples/real_model.py", "--model", str(model), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = folder / "runs/real_model" / ("lora" if "--lora" in arguments else "full")
    return json.loads((run / "summary.json").read_text()), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--lora"]], ids=["full", "lora"])
def test_example_runs_with_a_model_of_ones_own(tmp_path, kind):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = write_instruct_model(tmp_path / "tiny")
    summary, text = run_example(tmp_path, model, *kind, "--", *SHORT)
    # A model that has learnt nothing writes no "=", so there is nothing to learn from either.
    assert summary["score_before"] == summary["score_after_rlvr"] == summary["greedy_after_rlvr"] == 0
    assert summary["tokens_per_second"] > 0
    assert summary["seconds"] > 0
    assert 0.2 < summary["peak_memory_gb"] < 3
    assert (tmp_path / summary["curve"]).stat().st_size > 10_000
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / summary["hf_model"]).state_dict()
    assert weights.keys() == AutoModelForCausalLM.from_pretrained(model).state_dict().keys()
    assert AutoTokenizer.from_pretrained(tmp_path / summary["hf_model"]).chat_template
    for line in ("sampled", "tokens per second", "sampled answers after GRPO", "What is ", "tensorboard --logdir"):
        assert line in text


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", [[], ["--lora"]], ids=["full", "lora"])
def test_learning_real_model(tmp_path, kind):
    if not MODEL.is_dir():
        pytest.skip(f"{MODEL} is not there; `make test-real` makes it")
    summary, _ = run_example(tmp_path, MODEL, *kind)
    assert 0.15 < summary["score_before"] < 0.4
    assert summary["score_after_rlvr"] >= 0.6
