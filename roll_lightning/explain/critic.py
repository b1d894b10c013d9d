"""Who says what reward is to be expected, and how it learns."""

from __future__ import annotations

from collections.abc import Iterator

from roll_lightning.explain.numbers import IterationNumbers
from roll_lightning.explain.sources import policy_state
from roll_lightning.explain.text import Line, Section, count
from roll_lightning.modules.rlvr import RLVRModule


def critic(module: RLVRModule, numbers: IterationNumbers) -> Section:
    """Nothing without one."""
    return Section("critic", tuple(_critic(module, numbers)))


def _critic(module: RLVRModule, numbers: IterationNumbers) -> Iterator[Line]:
    config = module.critic_config
    if config is None:
        return
    own = f"a model of its own from {policy_state(config.model(module.policy_config))}; trained: all weights"
    yield Line("V", "a head on the body of π, which the critic's loss moves as well" if config.shared else own)
    head = " of the head" if config.shared else ""
    yield Line("learning rate", f"{config.lr:g}{head}; of π {module.optimizer_config.lr:g} (model.optimizer.lr)")
    if config.warmup_iterations:
        first = "iteration" if config.warmup_iterations == 1 else count(config.warmup_iterations, "iteration")
        steps = count(config.warmup_iterations * numbers.trained_updates, "optimizer step")
        yield Line("warm-up", f"in the first {first} ({steps}) L is the critic's sum alone, and π stands still")
