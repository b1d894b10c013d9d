"""What is printed is what is computed: every formula is read, computed on numbers, and held against the code."""

from __future__ import annotations

from copy import deepcopy
from typing import get_args

import pytest
import torch
from explain.formula_language import Formulas

from roll_lightning.explain.parts import advantage_formula, policy_loss_formula
from roll_lightning.explain.policies import GRADIENT
from roll_lightning.functional.advantages import (
    GAE,
    AdvantageInputs,
    AdvantageShaping,
    GroupRelative,
    LeaveOneOut,
    Reinforce,
    ReinforcePlusPlus,
    ReMax,
    SegmentReinforce,
)
from roll_lightning.functional.aggregation import aggregate, aggregation_formula
from roll_lightning.functional.kl import KLKind, kl_estimate, kl_formula
from roll_lightning.functional.kl_controller import AdaptiveKL
from roll_lightning.functional.off_policy import LEVELS, ImportanceWeight, Mismatch, OffPolicyCorrection, RejectionMask
from roll_lightning.functional.policy_losses import CISPO, TIS, TOPR, Kimi15, PolicyLoss, PPOClip, Vanilla
from roll_lightning.functional.ratios import ratio_formula
from roll_lightning.functional.sample_masks import DifficultyWeight, LengthWeight, SampleFacts

ROWS, TOKENS = 6, 9
# Two turns in most rows: places 4 and 5 are of somebody else.
MASK = torch.ones(ROWS, TOKENS, dtype=torch.bool)
MASK[:, 4:6] = False
MASK[1, 7:] = False
MASK[2, 3:] = False
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
REWARDS = torch.tensor([1.0, 0.0, 0.5, 0.25, 1.0, 0.0], dtype=torch.float64)


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, TOKENS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logprobs(seed: int) -> torch.Tensor:
    return -numbers(seed).abs() - 0.05


def last_tokens() -> torch.Tensor:
    last = torch.zeros_like(MASK)
    for row in range(ROWS):
        last[row, int(MASK[row].nonzero().max())] = True
    return last.double()


LOSSES = [
    Vanilla(),
    PPOClip(0.2, 0.28),
    PPOClip(1.0, 0.05),
    PPOClip(0.1, 0.1, dual_clip=1.5),
    PPOClip(0.01, 0.02, ratio="sequence"),
    PPOClip(0.01, 0.02, dual_clip=3, ratio="segment"),
    TIS(0.5, 1.2),
    TIS(0.0, 1.0, ratio="sequence"),
    TOPR(),
    TOPR(0.5, 2.0, ratio="segment"),
    CISPO(0.1, 0.2),
    CISPO(1.0, 0.28, ratio="sequence"),
    CISPO(0.1, 0.2, unified_mask=True),
    CISPO(1.0, 0.2, unified_mask=True),
    Kimi15(0.1),
    Kimi15(0.3, ratio="sequence"),
]


def described(loss: PolicyLoss) -> str:
    return f"{loss.formula()} {getattr(loss, 'ratio', '')}"


@pytest.mark.parametrize("loss", LOSSES, ids=described)
def test_policy_losses_and_their_gradients(loss):
    advantages = numbers(3)
    policy = logprobs(1).requires_grad_()
    out = loss(policy, logprobs(2), advantages, MASK).per_token
    (gradient,) = torch.autograd.grad(out.sum(), policy)
    policy = policy.detach().requires_grad_()
    values = {"π": policy.exp(), "π_old": logprobs(2).exp(), "A": advantages}
    printed = Formulas({"ρ": ratio_formula(getattr(loss, "ratio", "token"))}, values, MASK)
    read = torch.where(MASK, printed.compute(policy_loss_formula(loss)), 0.0)
    assert torch.allclose(read, out, rtol=1e-10)
    assert torch.allclose(torch.autograd.grad(read.sum(), policy)[0], gradient, rtol=1e-10)


@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "k3"])
def test_kl_estimates(kind):
    policy, reference = logprobs(1).requires_grad_(), logprobs(2)
    code = kl_estimate(policy, reference, kind, MASK)
    definitions = {"d": "log π - log π_ref"}
    read = Formulas(definitions, {"π": policy.exp(), "π_ref": reference.exp()}, MASK).compute(kl_formula(kind))
    read = torch.where(MASK, read, 0.0)
    assert torch.allclose(read, code, rtol=1e-10)
    gradients = [torch.autograd.grad(x.sum(), policy, retain_graph=True)[0] for x in (read, code)]
    assert torch.allclose(*gradients, rtol=1e-10)


def test_every_kl_estimate_has_a_formula_and_a_gradient():
    for kind in get_args(KLKind):
        assert kl_formula(kind)
        assert GRADIENT["loss", kind]
        assert GRADIENT["reward", kind]


def test_the_coefficient_of_adaptive_kl():
    controller = AdaptiveKL(0.2, 6.0, 1000)
    first, update = controller.formula().removesuffix(" after each iteration").split(", then ")
    for kl in (1.0, 6.5, 50.0):
        before = controller.coefficient
        controller.update(kl, 128)
        values = {"β": before, "kl": kl, "samples": 128}
        assert controller.coefficient == pytest.approx(float(Formulas({}, values, MASK).compute(update)), rel=1e-12)
    assert float(first) == 0.2


ESTIMATORS = [
    GroupRelative(),
    GroupRelative("group", "none"),
    GroupRelative("batch", "batch", eps=0.1),
    GroupRelative("group", "batch", gamma=0.9),
    GroupRelative("none", "running"),
    GroupRelative("running", "none"),
    LeaveOneOut(),
    LeaveOneOut(0.5),
    Reinforce(),
    Reinforce(0.8),
    ReinforcePlusPlus(),
    ReinforcePlusPlus(0.8),
    ReMax(),
    SegmentReinforce(),
    SegmentReinforce(0.7),
    GAE(0.9, 0.8),
    GAE(1.0, 0.95),
]


@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: f"{type(e).__name__} {e.formula()}")
def test_advantages(estimator, penalty):
    critic, divergence, baselines = numbers(5), numbers(6), torch.tensor([0.5, 0.5, 0.5, 0.1, 0.1, 0.1]).double()
    code = deepcopy(estimator)(  # "running" remembers
        AdvantageInputs(
            REWARDS,
            GROUPS,
            MASK,
            token_rewards=-0.3 * divergence if penalty else None,
            values=critic,
            baselines=baselines,
        )
    ).advantages
    read = Formulas({}, statistics(critic) | {"β": 0.3, "K": divergence, "r_greedy": baselines[:, None]}, MASK)
    values = read.compute(advantage_formula(estimator, "β K_k" if penalty else ""))
    assert torch.allclose(torch.where(MASK, values, 0.0), code, rtol=1e-9, atol=1e-12)


def statistics(critic: torch.Tensor) -> dict[str, torch.Tensor]:
    """By hand: groups are rows 0 to 2 and 3 to 5; nothing was before this iteration."""
    first, second = REWARDS[:3], REWARDS[3:]
    groups = {
        "mean_group": [first.mean()] * 3 + [second.mean()] * 3,
        "std_group": [first.std()] * 3 + [second.std()] * 3,
        "mean_others": [0.25, 0.75, 0.5, 0.5, 0.125, 0.625],
    }
    found = {name: torch.tensor(values, dtype=torch.float64)[:, None] for name, values in groups.items()}
    following = torch.zeros_like(critic)
    for row in range(ROWS):
        own = MASK[row].nonzero().flatten().tolist()
        following[row, own[:-1]] = critic[row, own[1:]]
    return found | {
        "r_i": REWARDS[:, None],
        "mean_batch": REWARDS.mean(),
        "std_batch": REWARDS.std(),
        "mean_running": REWARDS.mean(),
        "std_running": REWARDS.std(),
        "[k is last]": last_tokens(),
        "V_old(k)": critic,
        "V_old(k+1)": following,
    }


@pytest.mark.parametrize("shaping", [AdvantageShaping(0.4, True, 0.5), AdvantageShaping(None, False, 0.3)])
def test_shaping(shaping):
    plain = numbers(4)
    read = Formulas({}, {"A": plain, "reward": REWARDS}, MASK)
    advantages = torch.where(MASK, read.compute(shaping.formula("A")), 0.0)
    assert torch.allclose(advantages, shaping.advantages(torch.where(MASK, plain, 0.0), MASK)[0], rtol=1e-9)
    assert torch.equal(read.compute(shaping.reward_formula("reward")), shaping.rewards(REWARDS)[0])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_aggregation(mode):
    norm = 7.0 if mode.endswith("norm") else None
    totals = {"N": int(MASK.sum()), "S": ROWS, "n_i": MASK.sum(1, keepdim=True)}
    read = Formulas({}, {"l": numbers(1)} | totals, MASK).compute(aggregation_formula(mode, "l", norm))
    code = aggregate(numbers(1), MASK, mode, tokens=totals["N"], sequences=ROWS, norm_length=norm)
    assert float(read) == pytest.approx(float(code), rel=1e-12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("upper", "lower"), [(1.1, None), (None, None), (1.5, 0.9), (None, 0.8)])
def test_off_policy_weights(level, upper, lower):
    weight = ImportanceWeight(level, upper, lower)
    old, engine = 0.3 * logprobs(1), 0.3 * logprobs(2)
    code = OffPolicyCorrection(weight)(old, engine, MASK).weights
    read = Formulas({}, {"π_old": old.exp(), "π_engine": engine.exp()}, MASK).compute(weight.formula())
    assert torch.allclose(torch.where(MASK, read, 0.0), code, rtol=1e-10)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("measure", "low", "high"), [("ratio", 0.5, 1.5), ("ratio", None, 1.1), ("difference", -0.05, None)]
)
def test_rejection_masks(level, measure, low, high):
    mask = RejectionMask(level, low, high, measure)
    spread = torch.tensor([0.0, 0.1, 0.3, 1.0, 2.0, 0.5])[:, None]  # from row to row
    engine = logprobs(2) - 0.5
    old = (engine + spread * numbers(7).abs()).clamp(max=0)
    if low is not None:
        old[3:] = logprobs(1)[3:] - 3
    code = mask.keep(Mismatch.at(level, old, engine, MASK))[MASK]
    printed = Formulas({}, {"π_old": old.exp(), "π_engine": engine.exp()}, MASK)
    read = printed.holds(mask.formula()).expand_as(MASK)[MASK]
    assert code.any()
    assert not code.all()
    assert torch.equal(read, code)


def test_sample_weights():
    facts = SampleFacts(REWARDS, GROUPS, MASK.sum(1), torch.ones(ROWS, dtype=torch.bool), REWARDS)
    counts = torch.tensor([True, False, True, True, True, False])
    lengths = facts.lengths.double()
    values = {"length": lengths, "difficulty": REWARDS}
    values |= {"shortest": lengths[counts].min(), "longest": lengths[counts].max()}
    for weight in (LengthWeight(), DifficultyWeight()):
        read = Formulas({}, values, MASK).compute(weight.formula())
        assert torch.allclose(read, weight(facts, counts), rtol=1e-12)


class Halved(PPOClip):
    def __call__(self, *arguments):
        return super().__call__(*arguments)


class Cubed(GroupRelative):
    def outcomes(self, inputs):
        return super().outcomes(inputs) ** 3


class Said(Cubed):
    def outcome_formula(self):
        return "(r_i - mean_group)³"


def test_a_class_of_ones_own_that_says_nothing_is_named_instead_of_its_base_being_described():
    assert policy_loss_formula(Halved()) == "Halved(log π, log π_old, A)"
    assert advantage_formula(Cubed(), "") == "Cubed(rewards)"
    assert advantage_formula(Said(), "β K_k") == "(r_i - mean_group)³ - Σ_{k≥t} β K_k"
    renamed = type("Renamed", (PPOClip,), {})
    assert policy_loss_formula(renamed()) == PPOClip().formula()
