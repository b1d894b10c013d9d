"""What the examples share: running a command, evaluating a model, and a report with table, picture and summary."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roll_lightning.data.types import Prompt
    from roll_lightning.models.loading import PolicyConfig
    from roll_lightning.rewards.base import RewardFunction

COMMAND = [sys.executable, "-m", "roll_lightning.cli"]
Curves = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True)
class Task:
    """How held-out tasks are answered and scored.

    Args:
        file: rows with a prompt (or messages) and an answer.
        reward: scores an answer, 1 is correct.
        max_new_tokens: longest answer.
        precision: the trainer's.
        num_samples: sampled answers to each prompt.
    """

    file: Path
    reward: RewardFunction
    max_new_tokens: int
    precision: str = "32-true"
    num_samples: int = 4


@dataclass(frozen=True)
class Result:
    """How a model does on held-out tasks.

    Args:
        sampled: share of right answers when sampling, 0 to 1.
        greedy: the same when always taking the likeliest token.
        answers: some questions with a sampled answer and its score.
    """

    sampled: float
    greedy: float
    answers: list[tuple[str, str, float]]


def phase(number: int, of: int, text: str) -> None:
    """A headline."""
    print(f"\n=== {number}/{of}  {text}", flush=True)


def fit(*arguments: str, offline: bool = True) -> None:
    """Run ``roll-lightning fit`` as a user would; end this process where it fails.

    Args:
        arguments: of the command.
        offline: keep ``transformers`` from asking the hub about files that are here.
    """
    arguments = (*arguments, "--trainer.enable_model_summary", "false")
    print(f"$ roll-lightning fit {' '.join(arguments)}", flush=True)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run([*COMMAND, "fit", *arguments], env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def evaluate(policy: PolicyConfig, task: Task, seed: int, shown: int = 6) -> Result:
    """Sampled and greedy accuracy of a model on held-out tasks, and ``shown`` of its answers."""
    from lightning.pytorch import Trainer, seed_everything

    from roll_lightning.callbacks.rollout import RolloutCallback, ValidationSampling
    from roll_lightning.datamodules.rlvr import RLVRDataModule
    from roll_lightning.modules.rlvr import RLVRModule

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    seed_everything(seed, verbose=False)
    rollout = RolloutCallback(
        num_generations=2,
        max_new_tokens=task.max_new_tokens,
        rewards=[task.reward],
        validation=ValidationSampling(num_samples=task.num_samples),
    )
    trainer: Any = Trainer(
        accelerator="cpu",
        precision=task.precision,
        limit_predict_batches=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        callbacks=[rollout],
    )
    module = RLVRModule(policy)
    (scores,) = trainer.validate(module, RLVRDataModule(val=str(task.file), seed=seed), verbose=False)
    first = RLVRDataModule(predict=str(task.file), seed=seed, val_batch_size=shown)
    (rollouts,) = trainer.predict(module, first)
    answers = [(_question(r.prompt), r.text, r.score) for r in rollouts if r.sample == 0]
    del trainer, module, first, rollouts
    gc.collect()  # They refer to each other; without this the model would stay in memory while the next one trains.
    return Result(scores["val_correct/sampled/mean"], scores["val_correct/greedy/mean"], answers)


def _question(prompt: Prompt) -> str:
    return prompt.messages[-1]["content"] + " " if prompt.messages else prompt.text


def write_report(folder: Path, run: Path, title: str, results: dict[str, Result], facts: dict[str, Any]) -> None:
    """Write ``summary.json`` and ``learning_curve.png``, and print the table.

    Args:
        folder: gets the files.
        run: folder of the GRPO run (its ``trainer.default_root_dir``).
        title: of the picture.
        results: stages of the model in their order; the last one is after GRPO.
        facts: further entries of the summary, ``seconds`` among them.
    """
    curves = read_curves(run / "tensorboard")
    picture = draw(curves, title, folder / "learning_curve.png")
    rates = [value for _, value in curves["system/actor_infer/response/tps"]]
    per_second = sum(rates) / len(rates)
    summary: dict[str, Any] = {f"score_{stage}": result.sampled for stage, result in results.items()}
    summary |= {f"greedy_{stage}": result.greedy for stage, result in results.items()}
    summary |= facts | {"tokens_per_second": round(per_second), "hf_model": str(run / "hf"), "curve": str(picture)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print("\n                    sampled   greedy")
    for stage, result in results.items():
        print(f"  {stage.replace('_', ' '):<16}  {result.sampled:>7.3f}  {result.greedy:>7.3f}")
    seconds = f"{facts['seconds']:.0f} seconds of training and evaluation"
    print(f"\n  {per_second:,.0f} generated tokens per second; {seconds}")
    if "peak_memory_gb" in facts:
        print(f"  {facts['peak_memory_gb']:.1f} GB of memory at most while training")
    print("\n  sampled answers after GRPO:")
    for question, answer, score in list(results.values())[-1].answers:
        print(f"    {question}{' '.join(answer.split()):<10} score {score:g}")
    print(f"\n  learning curve      {picture}")
    print(f"  Hugging Face model  {summary['hf_model']}")
    print(f"  summary             {folder / 'summary.json'}")
    print(f"  look closer         {Path(sys.executable).parent / 'tensorboard'} --logdir {folder}")


def read_curves(folder: Path) -> Curves:
    """Every scalar of a TensorBoard folder as (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def draw(curves: Curves, title: str, path: Path) -> Path:
    """Accuracy of the training samples and of held-out samples over optimizer steps; the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = {
        "critic/score/mean": ("-", "training samples"),
        "val_correct/sampled/mean": ("o-", "held-out, sampled"),
        "val_correct/greedy/mean": ("s--", "held-out, greedy"),
    }
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for tag, (style, label) in lines.items():
        if tag not in curves:  # a short run, or one without data.val, validates nothing
            continue
        axes.plot(*zip(*curves[tag], strict=True), style, lw=1, label=label)
    axes.set(xlabel="optimizer steps", ylabel="accuracy", ylim=(0, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
