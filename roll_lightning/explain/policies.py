"""Sections on whose log-probabilities are compared: who wrote the tokens, and how far behind they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roll_lightning.engines.hf import HFEngine
from roll_lightning.explain.numbers import IterationNumbers
from roll_lightning.explain.parts import policy_loss_formula
from roll_lightning.explain.sources import policy_state, trained
from roll_lightning.explain.text import Line, Section
from roll_lightning.modules.rlvr import RLVRModule

# What the penalty's gradient is in the mean, for tokens of the policy itself: see functional.kl.kl_estimate.
GRADIENT = {
    ("loss", "k1"): "no gradient in the mean: no penalty at all",
    ("loss", "abs"): "gradient of twice the total variation, not of a KL",
    ("loss", "k2"): "exact gradient of KL(π ‖ π_ref) on tokens of π itself",
    ("loss", "k3"): "gradient of KL(π_ref ‖ π), the other direction, on tokens of π itself",
    ("reward", "k1"): "exact: its return has the gradient of KL(π ‖ π_ref); what A does to rewards it does to it",
    ("reward", "abs"): "not the gradient of a KL: it is blind to the sign of d",
    ("reward", "k2"): "not the gradient of a KL: it is blind to the sign of d",
    ("reward", "k3"): "gradient of KL(π ‖ π_ref) - KL(π_ref ‖ π): biased",
}


def policies(module: RLVRModule, rollout: Any, numbers: IterationNumbers) -> Section:
    """Which log-probabilities come from where."""
    return Section("policies: whose log-probabilities", tuple(_policies(module, rollout, numbers)))


def _policies(module: RLVRModule, rollout: Any, numbers: IterationNumbers) -> Iterator[Line]:
    tempered = f"; log-probabilities at temperature {rollout.temperature:g}" if rollout.temperature != 1 else ""
    yield Line("π", trained(module.policy_config) + tempered)
    yield Line("π_engine", _engine(rollout) + tempered)
    yield Line("π_old", _old(module, numbers))
    if module.kl.placement != "none":
        yield Line("π_ref", _reference(module))


def _engine(rollout: Any) -> str:
    if rollout.replay_dir:
        return f"the behaviour policy, as recorded in {rollout.replay_dir}"
    wrote = "the behaviour policy, which writes the tokens: "
    if rollout.collector is not None:
        return wrote + type(rollout.collector).__name__
    name = "HFEngine" if rollout.engine is None else type(rollout.engine).__name__
    return f"{wrote}{name}, with the weights at the iteration's start"


def _old(module: RLVRModule, numbers: IterationNumbers) -> str:
    if not numbers.recomputes_old:
        return "the forward pass of the only step itself, without its gradient; not computed beforehand"
    why = []
    if numbers.updates > 1:
        why.append(f"an iteration has {numbers.updates} optimizer steps")
    if module.kl.placement == "reward":
        why.append("the KL is in the reward")
    if module.kl.target is not None:
        why.append("the KL coefficient adapts")
    if module.off_policy.masks:
        why.append("tokens are left out by them before the first step")
    reasons = ", and ".join(why) or "the experience asks for them"
    return f"the weights at the iteration's start, computed by the trainer before the first step: {reasons}"


def _reference(module: RLVRModule) -> str:
    if module.reference_config is not None:
        return f"{policy_state(module.reference_config)}, frozen: a second model in memory (model.reference)"
    if module.policy_config.lora is not None:
        return "π with its adapter turned off: no second model"
    return "what π starts from (model.policy), frozen: a second model in memory"


def off_policy(module: RLVRModule, rollout: Any, numbers: IterationNumbers) -> Section:
    """By how much the policy that is trained is not the one that wrote the tokens."""
    return Section("off policy: by how much", tuple(_off_policy(module, rollout, numbers)))


def _off_policy(module: RLVRModule, rollout: Any, numbers: IterationNumbers) -> Iterator[Line]:
    last = numbers.trained_updates - 1
    behind = "0 optimizer steps: on policy" if last < 1 else f"0 optimizer steps at the first, {last} at the last"
    yield Line("π ahead of π_old", behind)
    formula, name = policy_loss_formula(module.policy_loss), type(module.policy_loss).__name__
    if last >= 1:
        yield Line("", f"{name} accounts for it by ρ" if "ρ" in formula else f"{name} has no ratio for it")
    if shares_weights(rollout):
        yield Line("π_old to π_engine", "the same weights in the same process: equal but for rounding")
    yield Line("" if shares_weights(rollout) else "π_old to π_engine", _correction(module, rollout))


def shares_weights(rollout: Any) -> bool:
    """Whether the engine generates with the trainer's own weights, without a copy."""
    own = rollout.collector is None and not rollout.replay_dir
    return own and (rollout.engine is None or type(rollout.engine) is HFEngine)


def _correction(module: RLVRModule, rollout: Any) -> str:
    if not (rollout.top_p == 1 and rollout.top_k == 0):
        return "cannot be compared: with top_p or top_k the engine's are of a filtered distribution"
    done = []
    if module.off_policy.weight is not None:
        done.append(f"weighted by w = {module.off_policy.weight.formula()}")
    if module.off_policy.masks:
        kept = " and ".join(mask.formula() for mask in module.off_policy.masks)
        done.append(f"only tokens with {kept} are kept")
    return "; ".join(done) or "watched only (actor/train_infer_ratio_token_mean and _max)"


def reference(module: RLVRModule) -> Section:
    """What the KL penalty pulls to, and with which gradient."""
    kl = module.kl
    if kl.placement == "none":
        return Section("reference", (Line("KL", "none (model.kl.placement); no reference is loaded"),))
    gradient = GRADIENT.get((kl.placement, kl.estimator), "")
    where = "added to the loss of each token" if kl.placement == "loss" else "taken from the reward of each token"
    lines = [Line("KL", f"{kl.estimator}, {where}" + (f"; {gradient}" if gradient else ""))]
    if kl.target is not None:
        lines.append(Line("coefficient", f"steered to {kl.target:g} nats per answer, from {kl.coefficient:g}"))
    return Section("reference", lines)
