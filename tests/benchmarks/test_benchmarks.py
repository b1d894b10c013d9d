"""The benchmarks run. Their numbers are in ``benchmarks/README.md``, measured on a machine that did nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(scope="module")
def folder():
    from benchmarks.setting import sorting_task

    with sorting_task("0.4M") as folder:
        yield folder


@pytest.mark.parametrize("name", ["sft_step", "grpo_iteration"])
def test_both_ways_run(folder, name):
    import importlib

    module = importlib.import_module(f"benchmarks.{name}")
    assert module.ours(folder, 2) > 0
    assert module.bare(folder, 2) > 0


def test_both_engines_write_as_many_tokens(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.engine_tokens import ours, theirs
    from roll_lightning.engines.hf import HFEngine
    from roll_lightning.models.causal_lm import CausalPolicy

    model = AutoModelForCausalLM.from_pretrained(folder / "weights").eval()
    engine = HFEngine()
    engine.bind(CausalPolicy(model), AutoTokenizer.from_pretrained(folder / "weights"))
    prompts = [[3, 4, 5], [4, 5, 6]]
    assert ours(engine, prompts, 4) > 0
    assert theirs(model, prompts, 4) > 0


@pytest.mark.parametrize("way", ["plain", "chunked"])
def test_memory_is_measured(way):
    from benchmarks.logprob_memory import measure

    peak, seconds = measure(way, vocabulary=5000)
    assert peak >= 0
    assert seconds > 0
