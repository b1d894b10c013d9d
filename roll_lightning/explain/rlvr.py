"""Reinforcement learning explained."""

from __future__ import annotations

from roll_lightning.explain.critic import critic
from roll_lightning.explain.denominators import denominators
from roll_lightning.explain.notices import notices
from roll_lightning.explain.numbers import IterationNumbers, StepNumbers
from roll_lightning.explain.objective import objective
from roll_lightning.explain.policies import off_policy, policies, reference
from roll_lightning.explain.steps import iteration, optimizer_step
from roll_lightning.explain.text import Section
from roll_lightning.modules.rlvr import RLVRModule


def explain_rlvr(module: RLVRModule) -> list[Section]:
    """The sections of a module that has a trainer, which has data and a rollout callback."""
    trainer = module.trainer
    data = trainer.datamodule
    numbers, rollout = IterationNumbers.of(trainer, module, data), data.rollout
    prompt = numbers.max_prompt_length
    row = None if prompt is None else prompt + numbers.max_new_tokens
    return [
        iteration(trainer, module, data, numbers),
        optimizer_step(StepNumbers.of(trainer, data), numbers.max_new_tokens, row),
        policies(module, rollout, numbers),
        off_policy(module, rollout, numbers),
        objective(module, numbers),
        denominators(module, numbers),
        reference(module),
        critic(module, numbers),
        notices(trainer, module, rollout, numbers),
    ]
