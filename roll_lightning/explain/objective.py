"""The objective of reinforcement learning, put together from its parts."""

from __future__ import annotations

from collections.abc import Iterator

from roll_lightning.explain.numbers import IterationNumbers
from roll_lightning.explain.parts import advantage_formula, policy_loss_formula, rewards_formula, weight_formula
from roll_lightning.explain.text import Definition, Line, Section
from roll_lightning.functional.aggregation import aggregation_formula
from roll_lightning.functional.kl import kl_formula
from roll_lightning.functional.ratios import MAX_LOG_RATIO, ratio_formula
from roll_lightning.functional.values import value_loss_formula
from roll_lightning.modules.rlvr import RLVRModule

# What the names in formulas of advantages mean.
STATISTICS = {
    "mean_group": "mean reward of the group: the scored answers to the same prompt, its own included",
    "std_group": "standard deviation of the group's rewards, by n - 1; where it is 0, A is 0",
    "mean_batch": "mean reward of all scored answers of the iteration",
    "std_batch": "standard deviation of the rewards of the iteration's scored answers, by n - 1; 0 does not divide",
    "mean_running": "mean reward of all scored answers so far, this iteration included",
    "std_running": "standard deviation of the rewards of all scored answers so far, by n - 1; 0 does not divide",
    "mean_others": "mean reward of the group's other scored answers; without any, A is 0",
    "r_greedy": "reward of a greedy answer to the same prompt; without a score it is r_i",
    "whiten": "whiten(x) = (x - mean(x)) / sqrt(var(x) + 1e-08) over the iteration's tokens in the loss",
    "[k is last]": "1 on the last token of the answer, else 0",
    "turn(": "number of the contiguous run of response tokens that a token is in",
    "V_old": "V at the iteration's start, 0 after the last token: what the critic expects before the token is written",
    "mean_row": "mean over the answer's tokens",
    "mean_turn": "mean over the tokens of a turn (a contiguous run of response tokens)",
}


def objective(module: RLVRModule, numbers: IterationNumbers) -> Section:
    """What an optimizer step minimises."""
    parts = (_loss, _policy_term, _kl_term, _advantage, _value_term)
    definitions = [definition for part in parts for definition in part(module, numbers)]
    formulas = " ".join(definition.formula for definition in definitions)
    where = [Line(name.strip("("), text) for name, text in STATISTICS.items() if name in formulas]
    return Section("objective: an optimizer step minimises L", [*definitions, *where])


def window_loss(module: RLVRModule, numbers: IterationNumbers) -> str:
    """The formula of L."""
    terms = list(_terms(module))
    norm = float(numbers.max_new_tokens) if module.aggregation == "seq-mean-token-sum-norm" else None
    loss = aggregation_formula(module.aggregation, terms[0] if terms == ["P"] else "l", norm)
    critic = module.critic_config
    if critic is None:
        return loss
    weight = "" if critic.coefficient == 1 else f"{critic.coefficient:g} "
    return f"{loss} + {weight}{aggregation_formula('token-mean', 'E')}"


def _loss(module: RLVRModule, numbers: IterationNumbers) -> Iterator[Definition]:
    yield Definition("L", window_loss(module, numbers), module.aggregation)
    terms = list(_terms(module))
    if terms != ["P"]:
        yield Definition("l", " + ".join(terms).replace("+ -", "- "), "of token t of answer i")


def _terms(module: RLVRModule) -> Iterator[str]:
    """The summands of a token's loss."""
    weights = ("w " if module.off_policy.weight is not None else "") + ("u " if module.maker.samples.weights else "")
    yield f"{weights}P"
    if module.kl.placement == "loss":
        yield "β K"
    if module.entropy_coefficient:
        yield f"{-module.entropy_coefficient:g} H"
    if module.positive_nll_coefficient:
        yield f"{module.positive_nll_coefficient:g} [A > 0] (-log π)"


def _policy_term(module: RLVRModule, numbers: IterationNumbers) -> Iterator[Definition]:
    loss = module.policy_loss
    formula = policy_loss_formula(loss)
    yield Definition("P", formula, type(loss).__name__)
    if "ρ" in formula:
        old = "π_old" if numbers.recomputes_old else "sg(π)"
        # A loss that takes the logarithm has it from the probabilities, not from their clamped ratio.
        clamped = "" if "log ρ" in formula else f"log ρ is clamped to ±{MAX_LOG_RATIO:g}"
        note = clamped if numbers.recomputes_old else "1, with a gradient"
        yield Definition("ρ", ratio_formula(getattr(loss, "ratio", "token"), old=old), note)
    if module.off_policy.weight is not None:
        yield Definition("w", module.off_policy.weight.formula(), f"of a {_unit(module.off_policy.weight.level)}")
    if module.maker.samples.weights:
        product = " ".join(f"({weight_formula(weight)})" for weight in module.maker.samples.weights)
        yield Definition("u", "v / mean(v)", "mean over the answers in the loss")
        yield Definition("v", product, "model.samples.weights")
    if module.entropy_coefficient:
        yield Definition("H", "-Σ_v π(v) log π(v)", "entropy over the vocabulary")


def _unit(level: str) -> str:
    return {"token": "token", "segment": "turn"}.get(level, "whole answer")


def _kl_term(module: RLVRModule, numbers: IterationNumbers) -> Iterator[Definition]:  # noqa: ARG001
    kl = module.kl
    if kl.placement == "none":
        return
    new = "π" if kl.placement == "loss" else "π_old"
    yield Definition("K", kl_formula(kl.estimator), f"{kl.estimator}, in the {kl.placement}")
    clamped = ", at least -20" if kl.estimator == "k3" else ""
    yield Definition("d", f"log {new} - log π_ref", f"of a token{clamped}")
    adapts = kl.target is not None
    note = "kl: nats per answer" if adapts else "fixed"
    yield Definition("β", module.maker.kl_controller.formula(), note)


def _advantage(module: RLVRModule, numbers: IterationNumbers) -> Iterator[Definition]:
    shaping, estimator = module.maker.shaping, module.advantage
    formula = advantage_formula(estimator, "β K_k" if module.kl.placement == "reward" else "")
    note = f"{type(estimator).__name__}, of token t of answer i"
    if module.critic_config is None:
        yield Definition("A", shaping.formula(formula), note)
    else:
        yield Definition("A", shaping.formula("a"), "of token t of answer i")
        yield Definition("a", formula, note)
    yield Definition("r_i", shaping.reward_formula(rewards_formula(numbers.rewards)), "of answer i")


def _value_term(module: RLVRModule, numbers: IterationNumbers) -> Iterator[Definition]:  # noqa: ARG001
    if module.critic_config is None:
        return
    yield Definition("E", value_loss_formula(module.critic_config.value_clip), "the critic's loss")
    yield Definition("R", "a + V_old", "without gradient")
