"""The numbers of an iteration and of an optimizer step, known before any rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer

from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.modules.rlvr import RLVRModule
from roll_lightning.rewards.base import RewardFunction
from roll_lightning.strategies.scale import data_parallel_size


@dataclass(frozen=True)
class StepNumbers:
    """How one optimizer step is made up.

    Args:
        rows: of a window, over all ranks.
        ranks: that see different rows.
        accumulate: micro-batches of each rank.
        budget: padded tokens of a micro-batch at most; ``None`` for no limit.
    """

    rows: int
    ranks: int
    accumulate: int
    budget: int | None

    @classmethod
    def of(cls, trainer: Trainer, data: Any) -> StepNumbers:
        """From a trainer and a planned DataModule."""
        return cls(
            data.batch_size,
            data_parallel_size(trainer),
            trainer.accumulate_grad_batches,
            data.max_tokens_per_micro_batch,
        )

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a window, over all ranks."""
        return self.ranks * self.accumulate


@dataclass(frozen=True)
class IterationNumbers:
    """One iteration: rollouts, and the optimizer steps on them.

    Args:
        prompts: over all ranks.
        generations: answers to each prompt.
        passes: over the answers.
        updates: optimizer steps on the answers.
        trained_updates: those that ``trainer.limit_train_batches`` leaves.
        max_new_tokens: of an answer.
        max_prompt_length: of a prompt, in tokens.
        recomputes_old: whether old log-probabilities are computed before the first step.
        rewards: of the answers.
    """

    prompts: int
    generations: int
    passes: int
    updates: int
    trained_updates: int
    max_new_tokens: int
    max_prompt_length: int | None
    recomputes_old: bool
    rewards: Sequence[RewardFunction] = ()

    @classmethod
    def of(cls, trainer: Trainer, module: RLVRModule, data: RLVRDataModule) -> IterationNumbers:
        """From the parts of a run."""
        rollout, updates = data.rollout, data.windows_per_epoch()
        return cls(
            prompts=rollout.prompts_per_iteration,
            generations=rollout.num_generations,
            passes=data.ppo_epochs,
            updates=updates,
            trained_updates=limited(trainer, updates),
            max_new_tokens=rollout.max_new_tokens,
            max_prompt_length=data.prompt_settings.max_prompt_length,
            recomputes_old=module.maker.needs_old_logprobs(updates),
            rewards=rollout.rewards,
        )

    @property
    def samples(self) -> int:
        """Answers of an iteration, over all ranks."""
        return self.prompts * self.generations


def limited(trainer: Trainer, updates: int) -> int:
    """Optimizer steps of an epoch that ``trainer.limit_train_batches`` leaves."""
    limit = trainer.limit_train_batches
    return min(updates, limit // trainer.accumulate_grad_batches) if isinstance(limit, int) else updates


def run_steps(trainer: Trainer, updates: int) -> int | None:
    """Optimizer steps of the whole run; ``None`` where it has no end."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    ends = [steps] if steps >= 0 else []
    ends += [epochs * updates] if epochs is not None and epochs >= 0 else []
    return min(ends, default=None)
