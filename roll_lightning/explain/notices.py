"""Choices that are legal but odd. Each notice is a fact about the objective, not a matter of taste."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Trainer

from roll_lightning.explain.numbers import IterationNumbers, run_steps
from roll_lightning.explain.parts import policy_loss_formula, speaks_for
from roll_lightning.explain.policies import shares_weights
from roll_lightning.explain.text import Line, Section
from roll_lightning.functional.advantages import ReinforcePlusPlus
from roll_lightning.functional.advantages.base import OutcomeEstimator
from roll_lightning.functional.policy_losses import PolicyLoss, PPOClip
from roll_lightning.modules.optim import ScheduleConfig
from roll_lightning.modules.rlvr import RLVRModule


def notices(trainer: Trainer, module: RLVRModule, rollout: Any, numbers: IterationNumbers) -> Section:
    """All that apply."""
    found = [
        *_own_steps(module),
        *_ratio(module, numbers),
        *_kl(module),
        *_signs(module),
        *_off_policy(module, rollout),
        *_rest(trainer, module, numbers),
    ]
    return Section("notices", [Line("-", text) for text in found])


def _own_steps(module: RLVRModule) -> Iterator[str]:
    own = [n for n in ("training_step", "make_experience") if getattr(type(module), n) is not getattr(RLVRModule, n)]
    if own:
        names = " and ".join(own)
        yield f"{type(module).__name__} has its own {names}; what is printed here is RLVRModule's"


def _ratio(module: RLVRModule, numbers: IterationNumbers) -> Iterator[str]:
    loss, name = module.policy_loss, type(module.policy_loss).__name__
    formula = policy_loss_formula(loss)
    if numbers.updates == 1 and "ρ" in formula and is_vanilla_at_one(loss, one_per_row(module)):
        yield (
            f"with one optimizer step per iteration ρ is 1, and {name} gives just the gradient of -A\xa0log\xa0π (for "
            "more steps: data.batch_size below the samples, or data.ppo_epochs)"
        )
    if numbers.trained_updates > 1 and formula == "-A log π":
        yield f"{name} has no ratio: from the second optimizer step of an iteration on its gradient is biased"
    if isinstance(loss, PPOClip) and loss.ratio != "token" and 0.01 < loss.low < 1:
        unit = "answer" if loss.ratio == "sequence" else "turn"
        yield (
            f"ρ is that of the mean over the {unit}: it leaves the range only where log π falls by "
            f"{-math.log1p(-loss.low):.3g} per token in the mean (PPOClip.low {loss.low:g}; GSPO's paper has 3e-4)"
        )


def one_per_row(module: RLVRModule) -> bool:
    """Whether all tokens of an answer have the same advantage."""
    estimator = module.advantage
    if not isinstance(estimator, OutcomeEstimator) or module.kl.placement == "reward":
        return False
    return estimator.gamma == 1 and speaks_for(estimator, "formula", "__call__", "returns")


def is_vanilla_at_one(loss: PolicyLoss, per_row: bool) -> bool:
    """Whether a loss has the gradient of ``-A log π`` where the ratio is 1, tried on a hundred tokens.

    Args:
        loss: any.
        per_row: whether all tokens of a row have one advantage.
    """
    generator = torch.Generator().manual_seed(0)
    logprobs = torch.rand(4, 25, generator=generator, dtype=torch.float64).log().requires_grad_()
    advantages = torch.randn(4, 1 if per_row else 25, generator=generator, dtype=torch.float64).expand(4, 25)
    out = loss(logprobs, logprobs.detach(), advantages, torch.ones(4, 25, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(out.per_token.sum(), logprobs, allow_unused=True)
    return gradient is not None and bool(torch.allclose(gradient, -advantages))


def _kl(module: RLVRModule) -> Iterator[str]:
    kl = module.kl
    if kl.placement == "none":
        return
    if kl.coefficient == 0:
        yield "model.kl.coefficient is 0: the KL is measured only (model.kl.placement none spares the reference)"
    if kl.placement == "loss" and kl.estimator == "k1":
        yield "k1 in the loss has no gradient in the mean: it does not hold π near π_ref (k2 does, exactly)"
    if kl.placement == "loss" and kl.estimator in ("k3", "abs"):
        yield f"{kl.estimator} in the loss is biased: its gradient is not that of KL(π ‖ π_ref); k2's is"
    if kl.placement == "reward" and kl.estimator != "k1":
        yield f"{kl.estimator} in the reward is biased: its gradient is not that of KL(π ‖ π_ref); k1's is"


def _signs(module: RLVRModule) -> Iterator[str]:
    if module.entropy_coefficient < 0:
        yield f"model.entropy_coefficient is {module.entropy_coefficient:g}: below 0 it lowers the entropy"
    if module.positive_nll_coefficient < 0:
        yield f"model.positive_nll_coefficient is {module.positive_nll_coefficient:g}: below 0 it unlearns good answers"


def _off_policy(module: RLVRModule, rollout: Any) -> Iterator[str]:
    if not (rollout.top_p == 1 and rollout.top_k == 0):
        yield "top_p or top_k filters what is sampled, but π is of all tokens: log-probabilities cannot be compared"
    corrects = module.off_policy.weight is not None or module.off_policy.masks
    if corrects and shares_weights(rollout):
        yield "HFEngine generates with the trainer's own weights: π_old / π_engine is 1 but for rounding"


def _rest(trainer: Trainer, module: RLVRModule, numbers: IterationNumbers) -> Iterator[str]:
    estimator = module.advantage
    whitens = isinstance(estimator, ReinforcePlusPlus) and speaks_for(estimator, "formula", "__call__")
    if whitens and module.maker.shaping.whiten:
        yield "advantages are whitened twice, by the estimator and by model.shaping.whiten; the second changes nothing"
    steps, critic = run_steps(trainer, numbers.trained_updates), module.critic_config
    if steps is not None and critic is not None:
        # The policy's schedule begins when its critic has warmed up.
        steps = max(0, steps - critic.warmup_iterations * numbers.updates)
    yield from endless_warm_up(module.schedule_config, steps)


def endless_warm_up(schedule: ScheduleConfig, steps: int | None) -> Iterator[str]:
    """Whether the warm-up is longer than a run of so many optimizer steps; ``None`` or below 0 has no end."""
    if steps is not None and 0 <= steps <= schedule.warmup_steps:
        yield (
            f"model.schedule.warmup_steps {schedule.warmup_steps} is not less than the {steps} optimizer steps of the "
            "policy: the learning rate is never reached"
        )
