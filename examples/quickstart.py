"""The main job on a laptop: a tiny model is warmed up by SFT, then GRPO improves it on tasks with verifiable answers.

Writes ``runs/quickstart/summary.json`` and prints a table. Run by ``make quickstart``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from sorting_task import make_task

ROOT = Path("runs/quickstart")
COMMAND = [sys.executable, "-m", "roll_lightning.cli"]


def main() -> None:
    """Data, SFT, GRPO, evaluation, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and sampling")
    parser.add_argument("--only-data", action="store_true", help="write the data and the model config, then stop")
    parser.add_argument("overrides", nargs=argparse.REMAINDER, help="after --: passed on to the GRPO run")
    arguments = parser.parse_args()
    shutil.rmtree(ROOT, ignore_errors=True)
    phase(1, "data: model config, tokenizer, and disjoint tasks to warm up, train and evaluate on")
    make_task(ROOT, arguments.seed)
    if arguments.only_data:
        return
    started = time.perf_counter()
    seed = ["--seed_everything", str(arguments.seed)]
    phase(2, "SFT warm-up: 75 steps of 128 rows")
    fit("configs/sft.yaml", ROOT / "sft", *seed)
    phase(3, "GRPO: 200 iterations of 32 prompts x 8 samples")
    fit("configs/rlvr.yaml", ROOT / "rlvr", *seed, *[part for part in arguments.overrides if part != "--"])
    phase(4, "evaluation on 256 held-out tasks, 4 sampled answers each")
    stages = {"before": ROOT / "model", "after_sft": ROOT / "sft/hf", "after_rlvr": ROOT / "rlvr/hf"}
    results = {name: evaluate(path, arguments.seed, from_scratch=name == "before") for name, path in stages.items()}
    seconds = time.perf_counter() - started
    phase(5, "report")
    report(results, seconds)


def phase(number: int, text: str) -> None:
    """A headline."""
    print(f"\n=== {number}/5  {text}", flush=True)


def fit(config: str, folder: Path, *overrides: str) -> None:
    """Run ``roll-lightning fit`` as a user would."""
    overrides = ("--trainer.default_root_dir", str(folder), "--trainer.enable_model_summary", "false", *overrides)
    print(f"$ roll-lightning fit --config {config} {' '.join(overrides)}", flush=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*COMMAND, "fit", "--config", config, *overrides], env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def evaluate(policy: Path, seed: int, from_scratch: bool) -> dict[str, Any]:
    """Sampled and greedy accuracy of a model on the evaluation tasks, and a few of its answers."""
    from lightning.pytorch import Trainer, seed_everything

    from roll_lightning.callbacks.rollout import RolloutCallback
    from roll_lightning.datamodules.rlvr import RLVRDataModule
    from roll_lightning.models.loading import PolicyConfig
    from roll_lightning.modules.rlvr import RLVRModule
    from roll_lightning.rewards.exact_match import ExactMatch

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    seed_everything(seed, verbose=False)
    module = RLVRModule(PolicyConfig(str(policy), from_scratch=from_scratch))
    data = RLVRDataModule(val=str(ROOT / "data/eval.jsonl"), seed=seed)
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        callbacks=[RolloutCallback(num_generations=2, max_new_tokens=8, rewards=[ExactMatch()])],
    )
    (scores,) = trainer.validate(module, data, verbose=False)
    (rollouts,) = trainer.predict(module, data)
    answers = [(r.prompt.text, r.text, r.score) for r in rollouts[:12:2]]
    accuracy = {kind: scores[f"val_correct/{kind}/mean"] for kind in ("sampled", "greedy")}
    return {**accuracy, "answers": answers}


def report(results: dict[str, dict[str, Any]], seconds: float) -> None:
    """Write the summary and the picture, print the table."""
    curves = read_curves(ROOT / "rlvr/tensorboard")
    picture = draw(curves, ROOT / "learning_curve.png")
    tokens = curves["system/actor_infer/response/tps"]
    per_second = sum(value for _, value in tokens) / len(tokens)
    summary = {f"score_{name}": result["sampled"] for name, result in results.items()}
    summary |= {f"greedy_{name}": result["greedy"] for name, result in results.items()}
    summary |= {
        "seconds": round(seconds, 1),
        "tokens_per_second": round(per_second),
        "hf_model": str(ROOT / "rlvr/hf"),
        "curve": str(picture),
    }
    (ROOT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print("\n                    sampled   greedy")
    for name, result in results.items():
        print(f"  {name.replace('_', ' '):<16}  {result['sampled']:>7.3f}  {result['greedy']:>7.3f}")
    print(f"\n  {per_second:,.0f} generated tokens per second; {seconds:.0f} seconds of training and evaluation")
    print("\n  sampled answers after GRPO:")
    for question, answer, score in results["after_rlvr"]["answers"]:
        print(f"    {question}{answer:<10} score {score:g}")
    print(f"\n  learning curve      {picture}")
    print(f"  Hugging Face model  {summary['hf_model']}")
    print(f"  summary             {ROOT / 'summary.json'}")
    print(f"  look closer         {Path(sys.executable).parent / 'tensorboard'} --logdir {ROOT}")


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of a TensorBoard folder as (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def draw(curves: dict[str, list[tuple[int, float]]], path: Path) -> Path:
    """Accuracy of the training samples and of held-out samples over iterations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*zip(*curves["critic/score/mean"], strict=True), lw=1, label="training samples")
    axes.plot(*zip(*curves["val_correct/sampled/mean"], strict=True), "o-", label="held-out, sampled")
    axes.plot(*zip(*curves["val_correct/greedy/mean"], strict=True), "s--", label="held-out, greedy")
    axes.set(xlabel="optimizer steps", ylabel="accuracy", ylim=(0, 1), title="GRPO on sorting six digits")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
