"""GRPO on a pretrained model: SmolLM2-135M-Instruct, or another, learns to add two numbers of two digits.

Writes ``runs/real_model/full/summary.json`` (or ``lora``) and prints a table. Run by ``make example-real``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from report import Result, Task, evaluate, fit, phase, write_report
from sums_task import make_task

ROOT = Path("runs/real_model")
MODEL = "runs/models/SmolLM2-135M-Instruct"
CONFIG = "configs/examples/real_model.yaml"
LORA = ("--config", "configs/recipes/lora.yaml", "--model.optimizer.lr", "5.0e-4", "--export.merge", "true")


def main() -> None:
    """Data, evaluation before, GRPO, evaluation after, report."""
    arguments = parse()
    phase(1, 4, "data: disjoint sums to train, validate and evaluate on")
    make_task(ROOT / "data", arguments.seed)
    if arguments.only_data:
        return
    run = ROOT / ("lora" if arguments.lora else "full")
    shutil.rmtree(run, ignore_errors=True)
    started = time.perf_counter()
    phase(2, 4, f"how {arguments.model} does on 64 held-out sums, 4 sampled answers each")
    results = {"before": evaluate_model(arguments.model, arguments.seed)}
    print(f"sampled {results['before'].sampled:.3f}, greedy {results['before'].greedy:.3f}")
    phase(3, 4, f"GRPO: 8 prompts x 8 samples an iteration, {'LoRA adapters' if arguments.lora else 'all weights'}")
    fit(
        *("--config", CONFIG, *(LORA if arguments.lora else ()), "--model.policy.path", arguments.model),
        *("--trainer.default_root_dir", str(run), "--seed_everything", str(arguments.seed), *arguments.overrides),
        offline=Path(arguments.model).is_dir(),
    )
    memory = peak_memory_of_children()
    phase(4, 4, "the same held-out sums after it, and a report")
    results["after_rlvr"] = evaluate_model(str(run / "hf"), arguments.seed)
    facts = {"seconds": round(time.perf_counter() - started, 1), "peak_memory_gb": round(memory, 2)}
    write_report(run, run, f"GRPO on two-digit sums, {Path(arguments.model).name}", results, facts)


def parse() -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL, help="folder or hub name of an instruct model")
    parser.add_argument("--seed", type=int, default=0, help="of data and sampling")
    parser.add_argument("--lora", action="store_true", help="train LoRA adapters instead of all weights")
    parser.add_argument("--only-data", action="store_true", help="write the data, then stop")
    parser.add_argument("overrides", nargs=argparse.REMAINDER, help="after --: passed on to the GRPO run")
    arguments = parser.parse_args()
    arguments.overrides = [part for part in arguments.overrides if part != "--"]
    return arguments


def evaluate_model(path: str, seed: int) -> Result:
    """Accuracy on the held-out sums; a right answer ends with "= " and the sum."""
    from roll_lightning.models.loading import PolicyConfig
    from roll_lightning.rewards.exact_match import ExactMatch

    reward = ExactMatch(extract=r"=([^=]*)$")
    task = Task(ROOT / "data/eval.jsonl", reward, max_new_tokens=14, precision="bf16-mixed")
    return evaluate(PolicyConfig(path, attn_implementation="eager"), task, seed)


def peak_memory_of_children() -> float:
    """Most memory that a process started and waited for here had resident, in GB."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 1e9


if __name__ == "__main__":
    main()
