"""What the benchmarks share: the model, the task, and how two ways are timed against each other."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

SIZES: dict[str, dict[str, int]] = {
    "0.4M": {},
    "11M": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
    },
}


@contextmanager
def sorting_task(size: str) -> Iterator[Path]:
    """A folder with the quickstart's data and a Llama of this size with random weights, as config and as weights."""
    import torch
    from sorting_task import make_task
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_task(folder, seed=0)
        config = AutoConfig.from_pretrained(folder / "model")
        config.update(SIZES[size])
        config.head_dim = config.hidden_size // config.num_attention_heads
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / "weights")
        AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "weights")
        yield folder


def one_thread() -> None:
    """Small models are slower with more."""
    import torch

    torch.set_num_threads(1)


def alternate(ours: Callable[[], float], bare: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Medians of what both return, run by turns so that a busy machine slows both; the first round warms up."""
    pairs = [(ours(), bare()) for _ in range(rounds + 1)][1:]
    return statistics.median(one for one, _ in pairs), statistics.median(two for _, two in pairs)


def row(*cells: Any) -> None:
    """Print a line of a Markdown table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
