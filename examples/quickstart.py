"""The main job on a laptop: a tiny model is warmed up by SFT, then GRPO improves it on tasks with verifiable answers.

Writes ``runs/quickstart/summary.json`` and prints a table. Run by ``make quickstart``.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from report import Result, Task, evaluate, fit, phase, write_report
from sorting_task import make_task

ROOT = Path("runs/quickstart")


def main() -> None:
    """Data, SFT, GRPO, evaluation, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and sampling")
    parser.add_argument("--only-data", action="store_true", help="write the data and the model config, then stop")
    parser.add_argument("overrides", nargs=argparse.REMAINDER, help="after --: passed on to the GRPO run")
    arguments = parser.parse_args()
    shutil.rmtree(ROOT, ignore_errors=True)
    phase(1, 5, "data: model config, tokenizer, and disjoint tasks to warm up, train and evaluate on")
    make_task(ROOT, arguments.seed)
    if arguments.only_data:
        return
    started = time.perf_counter()
    phase(2, 5, "SFT warm-up: 75 steps of 128 rows")
    train("configs/sft.yaml", ROOT / "sft", arguments.seed)
    phase(3, 5, "GRPO: 200 iterations of 32 prompts x 8 samples")
    train("configs/rlvr.yaml", ROOT / "rlvr", arguments.seed, *[part for part in arguments.overrides if part != "--"])
    phase(4, 5, "evaluation on 256 held-out tasks, 4 sampled answers each")
    results = evaluate_stages(arguments.seed)
    seconds = round(time.perf_counter() - started, 1)
    phase(5, 5, "report")
    write_report(ROOT, ROOT / "rlvr", "GRPO on sorting six digits", results, {"seconds": seconds})


def train(config: str, folder: Path, seed: int, *overrides: str) -> None:
    """Run one of the shipped configs."""
    root = ("--trainer.default_root_dir", str(folder))
    fit("--config", config, *root, "--seed_everything", str(seed), *overrides)


def evaluate_stages(seed: int) -> dict[str, Result]:
    """The random model, the one after SFT, and the one after GRPO."""
    from roll_lightning.models.loading import PolicyConfig
    from roll_lightning.rewards.exact_match import ExactMatch

    task = Task(ROOT / "data/eval.jsonl", ExactMatch(), max_new_tokens=8)
    stages = {
        "before": PolicyConfig(str(ROOT / "model"), from_scratch=True),
        "after_sft": PolicyConfig(str(ROOT / "sft/hf")),
        "after_rlvr": PolicyConfig(str(ROOT / "rlvr/hf")),
    }
    return {stage: evaluate(policy, task, seed) for stage, policy in stages.items()}


if __name__ == "__main__":
    main()
