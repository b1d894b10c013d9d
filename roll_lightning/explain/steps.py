"""Sections on numbers: an iteration, an optimizer step, the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Trainer

from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.explain.numbers import IterationNumbers, StepNumbers, run_steps
from roll_lightning.explain.sources import counted_rows, source_state
from roll_lightning.explain.text import Line, Section, count, grouped
from roll_lightning.modules.rlvr import RLVRModule


def iteration(trainer: Trainer, module: RLVRModule, data: RLVRDataModule, numbers: IterationNumbers) -> Section:
    """What happens between two rollouts, and how often."""
    return Section("one iteration (an epoch of the trainer)", tuple(_iteration(trainer, module, data, numbers)))


def _iteration(trainer: Trainer, module: RLVRModule, data: Any, numbers: IterationNumbers) -> Iterator[Line]:
    prompts, samples = grouped(numbers.prompts), grouped(numbers.samples)
    yield Line("samples", f"{prompts} prompts x {grouped(numbers.generations)} answers = {samples}")
    if module.needs_greedy_baseline:
        yield Line("", "and a greedy answer to each prompt for its baseline, which is not trained on")
    if data.rollout.replay_dir:
        yield Line("", f"read from {data.rollout.replay_dir} (rollout.replay_dir); nothing is generated")
    yield Line("prompts", _prompts(data, numbers))
    shares = {name: domain.share for name, domain in data.domains.items() if domain.share is not None}
    if shares:
        yield Line("", "each iteration: " + ", ".join(f"{share:.4g} of {name}" for name, share in shares.items()))
    yield Line("passes", f"{numbers.passes} (data.ppo_epochs){', each in a new order' if numbers.passes > 1 else ''}")
    steps = f"{samples} samples / {grouped(data.batch_size)} per step x {numbers.passes} = {grouped(numbers.updates)}"
    yield Line("optimizer steps", steps)
    if numbers.trained_updates < numbers.updates:
        yield Line("", f"of which trainer.limit_train_batches leaves {numbers.trained_updates}")
    yield Line("the run", run_length(trainer, numbers.trained_updates, "iteration"))


def _prompts(data: RLVRDataModule, numbers: IterationNumbers) -> str:
    rows = counted_rows(data.train)
    if rows is None:
        return source_state(data.train)
    passes = f"a pass over them takes {rows / numbers.prompts:.4g} iterations" if rows >= numbers.prompts else "too few"
    return f"{source_state(data.train)}: {count(rows, 'row')}; {passes}"


def run_length(trainer: Trainer, updates: int, epoch: str) -> str:
    """Epochs and optimizer steps of a run."""
    steps, epochs = run_steps(trainer, updates), trainer.max_epochs
    if steps is None:
        return "no end (neither trainer.max_epochs nor trainer.max_steps)"
    if epochs is not None and epochs >= 0 and steps == epochs * updates:
        return f"{count(epochs, epoch)} (trainer.max_epochs), {count(steps, 'optimizer step')}"
    return f"{count(steps, 'optimizer step')} (trainer.max_steps), {steps / max(1, updates):.4g} {epoch}s"


def optimizer_step(numbers: StepNumbers, response: int | None, row: int | None) -> Section:
    """How the rows of a step are shared out, and how many tokens they have at most.

    Args:
        numbers: of the step.
        response: tokens with loss of a row at most; ``None`` where the row itself is the limit.
        row: tokens of a row at most.
    """
    return Section("one optimizer step", tuple(_step(numbers, response, row)))


def _step(numbers: StepNumbers, response: int | None, row: int | None) -> Iterator[Line]:
    thing = "row" if response is None else "sample"
    yield Line(f"{thing}s", f"{grouped(numbers.rows)} (data.batch_size), over all ranks and micro-batches")
    cut = f"{count(numbers.ranks, 'rank')} x {count(numbers.accumulate, 'micro-batch', 'micro-batches')}"
    share = numbers.rows / numbers.micro_batches
    yield Line("cut into", f"{cut}, of {share:.4g} {thing}s in the mean; the planner pads as little as it can")
    if numbers.budget is not None:
        yield Line("", f"of at most {grouped(numbers.budget)} padded tokens each (data.max_tokens_per_micro_batch)")
    if response is not None:
        yield Line("response tokens", f"at most {_product(numbers.rows, response)} (rollout.max_new_tokens)")
    if row is not None:
        key = "data.max_length" if response is None else "with prompts of data.max_prompt_length"
        yield Line("all tokens", f"at most {_product(numbers.rows, row)} ({key})")


def _product(rows: int, tokens: int) -> str:
    return f"{grouped(rows)} x {grouped(tokens)} = {grouped(rows * tokens)}"
