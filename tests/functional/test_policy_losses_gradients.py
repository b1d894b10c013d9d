"""Gradients of the policy losses: float64, against finite differences and against formulas written as loops."""

from __future__ import annotations

import math

import pytest
import torch

from roll_lightning.functional.aggregation import aggregate
from roll_lightning.functional.policy_losses import CISPO, TIS, TOPR, Kimi15, PPOClip, Vanilla

LEVELS = ["token", "sequence", "segment"]
LOW, HIGH, CAP, TAU = 0.2, 0.3, 1.6, 0.7


def random_case(seed: int = 0, rows: int = 4, tokens: int = 11):
    """Log-probabilities, old ones, advantages (of tokens), mask, and what each token's loss weighs in the total."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    old = -3 * torch.rand(rows, tokens, **draw)
    logprobs = old + 0.5 * torch.randn(rows, tokens, **draw)
    mask = torch.rand(rows, tokens, **draw) < 0.7
    return logprobs, old, torch.randn(rows, tokens, **draw), mask, torch.rand(rows, tokens, **draw)


def groups_of(mask: list[bool], level: str) -> list[list[int]]:
    places = [i for i, counts in enumerate(mask) if counts]
    if level == "sequence":
        return [places]
    groups = [[i] for i in places]
    if level == "segment":
        groups = []
        for i in places:
            if groups and groups[-1][-1] == i - 1:
                groups[-1].append(i)
            else:
                groups.append([i])
    return groups


def slope_of_ppo(r: float, a: float) -> float:
    """d/dr of -min(r A, clip(r) A), bounded at CAP for A < 0."""
    stopped = r > 1 + HIGH if a > 0 else r < 1 - LOW or r > CAP
    return 0.0 if stopped else -a


def weight_of(name: str, r: float, a: float) -> float:
    if name == "TIS":
        return min(max(r, 0.8), 1.2)
    if name == "TOPR":
        return 1.5 if a > 0 else 0.5 * min(r, 1)
    if name == "CISPO":
        return min(max(r, 1 - LOW), 1 + HIGH)
    dropped = (a > 0 and r > 1 + HIGH) or (a < 0 and r < 1 - LOW)
    return 0.0 if dropped else min(max(r, 1 - LOW), 1 + HIGH)


def expected_gradient(name: str, level: str, d, a, c, mask) -> list[float]:
    """Of ``sum c loss`` for one row, to the log-probabilities; ``d`` are the log-ratios of its tokens."""
    gradient = [0.0] * len(d)
    for group in groups_of(mask, level):
        n = len(group)
        mean = math.fsum(d[i] for i in group) / n
        r = math.exp(mean)
        if name == "PPOClip":
            total = math.fsum(c[i] * slope_of_ppo(r, a[i]) * r for i in group)
        elif name == "Kimi15":
            total = math.fsum(c[i] * TAU * mean for i in group)
        for i in group:
            if name == "PPOClip":
                gradient[i] = total / n
            elif name == "Kimi15":
                gradient[i] = -c[i] * a[i] + total / n
            else:
                gradient[i] = -c[i] * weight_of(name, r, a[i]) * a[i]
    return gradient


def make(name: str, level: str):
    if name == "PPOClip":
        return PPOClip(LOW, HIGH, dual_clip=CAP, ratio=level)
    if name == "TIS":
        return TIS(0.8, 1.2, ratio=level)
    if name == "TOPR":
        return TOPR(1.5, 0.5, ratio=level)
    if name == "Kimi15":
        return Kimi15(TAU, ratio=level)
    return CISPO(LOW, HIGH, unified_mask=name == "CISPO unified", ratio=level)


def gradient_of(loss, logprobs, old, advantages, mask, weights):
    logprobs = logprobs.clone().requires_grad_()
    (weights * loss(logprobs, old, advantages, mask).per_token).sum().backward()
    return logprobs.grad


@pytest.mark.parametrize("name", ["PPOClip", "TIS", "TOPR", "CISPO", "CISPO unified", "Kimi15"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_is_the_one_of_the_formula(name, level, seed):
    logprobs, old, advantages, mask, weights = random_case(seed)
    rows = zip(logprobs - old, advantages, weights, mask, strict=True)
    expected = [expected_gradient(name, level, *(x.tolist() for x in row)) for row in rows]
    gradient = gradient_of(make(name, level), logprobs, old, advantages, mask, weights)
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "make_loss",
    [
        lambda level: Vanilla(),
        lambda level: PPOClip(LOW, HIGH, ratio=level),
        lambda level: PPOClip(LOW, HIGH, dual_clip=CAP, ratio=level),
        lambda level: Kimi15(TAU, ratio=level),
    ],
)
def test_without_stop_gradient_it_is_that_of_finite_differences(make_loss, level):
    logprobs, old, advantages, mask, _ = random_case(3, rows=3, tokens=7)
    loss = make_loss(level)
    assert torch.autograd.gradcheck(lambda x: loss(x, old, advantages, mask).per_token, (logprobs.requires_grad_(),))


def test_importance_weights_without_bounds_give_the_gradient_of_the_ratio():
    """``r A`` times the gradient of logp is ``A`` times the gradient of r."""
    logprobs, old, advantages, mask, weights = random_case(4)
    unbounded = gradient_of(TIS(0, 1e6), logprobs, old, advantages, mask, weights)
    surrogate = gradient_of(PPOClip(low=1.0, high=1e6), logprobs, old, advantages, mask, weights)
    torch.testing.assert_close(unbounded, surrogate, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("level", LEVELS)
def test_on_policy_all_give_the_plain_policy_gradient(level):
    """With one advantage per row, and rows weighed by their tokens, the first update is the same with every loss."""
    logprobs, _, advantages, mask, _ = random_case(5)
    row = advantages[:, :1].expand_as(advantages)
    ones = torch.ones_like(logprobs)
    plain = gradient_of(Vanilla(), logprobs, logprobs, row, mask, ones)
    torch.testing.assert_close(plain, torch.where(mask, -row, 0.0), rtol=0, atol=0)
    for loss in (PPOClip(ratio=level), TIS(ratio=level), TOPR(ratio=level), CISPO(ratio=level), Kimi15(ratio=level)):
        gradient = gradient_of(loss, logprobs, logprobs, row, mask, ones)
        torch.testing.assert_close(gradient, plain, rtol=1e-14, atol=1e-15)


def gspo_objective(logprobs, old, advantages, mask, low, high):
    """Equation 5 of arXiv 2507.18071, row by row: the mean over answers of min(s A, clip(s) A)."""
    terms = []
    for row in range(len(logprobs)):
        kept = mask[row]
        s = ((logprobs[row][kept].sum() - old[row][kept].sum()) / kept.sum()).exp()
        a = advantages[row]
        terms.append(torch.min(s * a, s.clamp(1 - low, 1 + high) * a))
    return torch.stack(terms).mean()


@pytest.mark.parametrize("seed", range(4))
def test_gspo_is_the_objective_of_the_paper(seed):
    logprobs, old, advantages, mask, _ = random_case(seed, rows=8)
    mask[:, 0] = True
    row = advantages[:, 0]
    ours, theirs = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()
    out = PPOClip(0.1, 0.15, ratio="sequence")(ours, old, row[:, None].expand_as(old), mask)
    loss = aggregate(out.per_token, mask, "seq-mean-token-mean", tokens=int(mask.sum()), sequences=8)
    loss.backward()
    objective = gspo_objective(theirs, old, row, mask, 0.1, 0.15)
    (-objective).backward()
    assert loss.item() == pytest.approx(-objective.item(), rel=1e-13)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)


def test_gspo_is_not_gspo_token_when_advantages_differ_within_a_row():
    """GSPO shares the row's gradient out. GSPO-token, ``sg(s) π / sg(π)``, would give -3 and -1."""
    logprobs = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    ones = torch.ones(1, 2)
    advantages = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    gradient = gradient_of(PPOClip(ratio="sequence"), logprobs, logprobs, advantages, ones, ones)
    assert gradient.tolist() == [[-2.0, -2.0]]


LOSSES = [PPOClip, Vanilla, TIS, TOPR, CISPO, Kimi15]


@pytest.mark.parametrize("cls", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_step_of_descent_follows_the_advantage(cls, advantage):
    """Descending makes a token likelier exactly if its advantage is positive."""
    theta = torch.zeros(4, requires_grad=True)
    old = theta.detach().log_softmax(0)[1].view(1, 1)
    out = cls()(theta.log_softmax(0)[1].view(1, 1), old, torch.tensor([[advantage]]), torch.ones(1, 1))
    out.per_token.sum().backward()
    after = (theta.detach() - 0.1 * theta.grad).log_softmax(0)[1]
    assert (after - old).sign().item() == advantage


LEVELLED = [(cls, level) for cls in LOSSES if cls is not Vanilla for level in LEVELS] + [(Vanilla, None)]


@pytest.mark.parametrize(("cls", "level"), LEVELLED)
def test_T28_the_second_update_on_the_same_rollouts_has_a_ratio_other_than_one(cls, level):
    """A softmax policy takes two steps on two answers; the old log-probabilities are kept from before the first."""
    loss = cls() if level is None else cls(ratio=level)
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tokens = torch.tensor([[0, 3, 1], [4, 2, 2]])
    advantages, mask = torch.tensor([[1.0], [-1.0]]).expand(2, 3), torch.tensor([[1, 1, 1], [1, 1, 0]])
    optimizer = torch.optim.SGD([logits], lr=0.5)

    def logprobs():
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    old, ratios = logprobs().detach(), []
    for _ in range(2):
        out = loss(logprobs(), old, advantages, mask)
        ratios.append(out.metrics["ratio"])
        optimizer.zero_grad()
        out.per_token.sum().backward()
        optimizer.step()
    first, second = ratios
    assert torch.equal(first, mask.float())
    assert (second[0] > 1.01).all()
    assert (second[1, :2] < 0.99).all()
