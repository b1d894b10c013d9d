from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.kl import full_kl, kl_estimate

KINDS = ["k1", "abs", "k2", "k3"]
THETA = torch.tensor([0.3, -1.2, 0.8, 0.0, 1.1], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 1.0, -0.2, 0.1], dtype=torch.float64).log_softmax(0)
SAMPLES = 200_000


def exact_kl_gradients() -> tuple[Tensor, Tensor]:
    """By hand for softmax logits: of KL(p||q) it is p (log p/q - KL), of KL(q||p) it is p - q."""
    p, q = THETA.softmax(0), REFERENCE.exp()
    ratio = (p / q).log()
    return p * (ratio - (p * ratio).sum()), p - q


def total_variation_gradient() -> Tensor:
    """Of sum |p - q|, by hand: p (s - sum p s) with s = sign(p - q)."""
    p = THETA.softmax(0)
    sign = torch.sign(p - REFERENCE.exp())
    return p * (sign - (p * sign).sum())


def expected_in_loss(kind: str) -> Tensor:
    reverse, forward = exact_kl_gradients()
    nothing = torch.zeros(5, dtype=torch.float64)
    return {"k1": nothing, "abs": total_variation_gradient(), "k2": reverse, "k3": forward}[kind]


def expected_in_reward(kind: str) -> Tensor:
    reverse, forward = exact_kl_gradients()
    p = THETA.softmax(0)
    square = 0.5 * (p.log() - REFERENCE) ** 2
    size = (p.log() - REFERENCE).abs()
    blind = {"abs": p * (size - (p * size).sum()), "k2": p * (square - (p * square).sum())}
    return {"k1": reverse, "k3": reverse - forward, **blind}[kind]


def per_token_terms(theta: Tensor, kind: str, placement: str) -> Tensor:
    """The term that each of the 5 tokens would bring, had it been sampled."""
    logprobs = theta.log_softmax(0)
    estimate = kl_estimate(logprobs, REFERENCE, kind)  # type: ignore[arg-type]
    return estimate if placement == "loss" else estimate.detach() * logprobs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("placement", "expected"), [("loss", expected_in_loss), ("reward", expected_in_reward)])
def test_T20_expected_gradient_is_what_the_docstring_says(kind, placement, expected):
    theta = THETA.clone().requires_grad_()
    (theta.softmax(0).detach() * per_token_terms(theta, kind, placement)).sum().backward()
    torch.testing.assert_close(theta.grad, expected(kind), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("placement", "expected"), [("loss", expected_in_loss), ("reward", expected_in_reward)])
def test_T20_monte_carlo_gradient(kind, placement, expected):
    theta = THETA.clone().requires_grad_()
    tokens = torch.multinomial(THETA.softmax(0), SAMPLES, replacement=True, generator=torch.Generator().manual_seed(0))
    per_token_terms(theta, kind, placement)[tokens].mean().backward()
    jacobian = torch.autograd.functional.jacobian(lambda t: per_token_terms(t, kind, placement), THETA)
    p = THETA.softmax(0)[:, None]
    error = ((p * jacobian**2).sum(0) - (p * jacobian).sum(0) ** 2).sqrt() / SAMPLES**0.5
    assert ((theta.grad - expected(kind)).abs() < 4 * error).all()
    assert error.max() < 0.01


def test_T20_the_gradients_are_far_apart():
    """Four standard errors (below 0.04) tell the estimators from one another."""
    reverse, forward = exact_kl_gradients()
    variation = total_variation_gradient()
    assert min((variation - reverse).abs().max(), (variation - forward).abs().max(), variation.abs().max()) > 0.05
    assert (reverse - forward).abs().max() > 0.05
    assert reverse.abs().max() > 0.2
    assert forward.abs().max() > 0.2


def test_T20_the_gradient_of_abs_is_that_of_the_total_variation():
    theta = THETA.clone().requires_grad_()
    (theta.softmax(0) - REFERENCE.exp()).abs().sum().backward()
    torch.testing.assert_close(theta.grad, total_variation_gradient(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["k1", "k3"])
@pytest.mark.parametrize("old", [THETA, torch.tensor([1.0, 0.2, -0.7, 0.4, -1.0], dtype=torch.float64)])
def test_T20_times_the_ratio_is_exact_in_the_loss_whoever_sampled(kind, old):
    theta = THETA.clone().requires_grad_()
    logprobs, old_logprobs = theta.log_softmax(0), old.log_softmax(0)
    ratio = (logprobs - old_logprobs).exp()
    (old_logprobs.exp() * ratio * kl_estimate(logprobs, REFERENCE, kind)).sum().backward()
    torch.testing.assert_close(theta.grad, exact_kl_gradients()[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_values(kind):
    p = THETA.softmax(0)
    expected = torch.nn.functional.kl_div(REFERENCE, p, reduction="sum")
    value = (p * kl_estimate(p.log(), REFERENCE, kind)).sum()
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_k3_is_the_low_variance_form():
    """Near the reference, where KL terms live; far from it the exponential has a large variance of its own."""
    p = (REFERENCE + 0.2 * torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0], dtype=torch.float64)).softmax(0)
    variance = {}
    for kind in ("k1", "k3"):
        values = kl_estimate(p.log(), REFERENCE, kind)
        variance[kind] = float((p * values**2).sum() - (p * values).sum() ** 2)
    assert variance["k3"] < 0.05 * variance["k1"]


def test_abs_and_k2_values_are_biased():
    p = THETA.softmax(0)
    exact = torch.nn.functional.kl_div(REFERENCE, p, reduction="sum")
    assert (p * kl_estimate(p.log(), REFERENCE, "abs")).sum() > exact + 0.1
    assert ((p * kl_estimate(p.log(), REFERENCE, "k2")).sum() - exact).abs() > 0.01


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", [0.0, 0.5, -2.0]),
        ("abs", [0.0, 0.5, 2.0]),
        ("k2", [0.0, 0.125, 2.0]),
        ("k3", [0.0, 0.1065307, 4.3890561]),
    ],
)
def test_hand_computed(kind, expected):
    logprobs = torch.tensor([[-1.0, -1.0, -3.0]])
    reference = torch.tensor([[-1.0, -1.5, -1.0]])
    torch.testing.assert_close(kl_estimate(logprobs, reference, kind), torch.tensor([expected]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", [1e4, -1e4, 50.0, -50.0])
def test_T21_finite_at_huge_differences(kind, difference):
    logprobs = torch.tensor([[difference]], requires_grad=True)
    value = kl_estimate(logprobs, torch.zeros(1, 1), kind)
    value.sum().backward()
    assert value.isfinite().all()
    assert logprobs.grad.isfinite().all()
    if kind != "k1":
        assert value.item() > 0
        assert logprobs.grad.item() * difference >= 0  # descent never drives the policy further away


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, -1e4])
def test_T21_masked_before_anything_else(kind, junk):
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    value = kl_estimate(logprobs, torch.tensor([[-1.5, junk]]), kind, torch.tensor([[1, 0]]))
    value.sum().backward()
    alone = torch.tensor([[-1.0]], requires_grad=True)
    kl_estimate(alone, torch.tensor([[-1.5]]), kind).sum().backward()
    assert value[0, 1] == 0
    assert torch.equal(logprobs.grad, torch.tensor([[alone.grad.item(), 0.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_reference_gets_no_gradient(kind):
    reference = torch.zeros(1, 2, requires_grad=True)
    kl_estimate(torch.ones(1, 2, requires_grad=True), reference, kind).sum().backward()
    assert reference.grad is None


def test_small_differences_keep_their_precision():
    """k3 of 1e-4 is 5e-9; exp(-d) - 1 in float32 would lose all of it."""
    value = kl_estimate(torch.tensor([1e-4], dtype=torch.float64), torch.zeros(1, dtype=torch.float64), "k3")
    torch.testing.assert_close(value.item(), 0.5e-8, rtol=1e-4, atol=0)
    assert kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.0]), "k3").item() == 0


def test_unknown_kind():
    with pytest.raises(ConfigError, match="'k4'; it must be k1, abs, k2 or k3"):
        kl_estimate(torch.zeros(1, 1), torch.zeros(1, 1), "k4")  # type: ignore[arg-type]


def test_full_kl_hand_computed():
    """p = (1/2, 1/2), q = (1/4, 3/4): ln 2 / 2 - ln 1.5 / 2 = 0.143841; equal distributions: 0."""
    logits = torch.tensor([[0.5, 0.5], [0.2, 0.8]], dtype=torch.float64).log()
    reference = torch.tensor([[0.25, 0.75], [0.2, 0.8]], dtype=torch.float64).log()
    value = full_kl(logits + 3.0, reference - 7.0)  # logits or log-probabilities: a constant changes nothing
    torch.testing.assert_close(value, torch.tensor([0.14384103622589045, 0.0], dtype=torch.float64), rtol=0, atol=1e-12)


def test_full_kl_against_torch_distributions():
    torch.manual_seed(0)
    logits, reference = torch.randn(2, 7, 11, dtype=torch.float64)
    policy, other = (torch.distributions.Categorical(logits=x) for x in (logits, reference))
    expected = torch.distributions.kl_divergence(policy, other)
    torch.testing.assert_close(full_kl(logits, reference), expected, rtol=0, atol=1e-12)


def test_T20_full_kl_in_the_loss_has_the_exact_gradient():
    theta = THETA.clone().requires_grad_()
    full_kl(theta[None], REFERENCE[None]).sum().backward()
    torch.testing.assert_close(theta.grad, exact_kl_gradients()[0], rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: full_kl(x, REFERENCE[None]), THETA.clone()[None].requires_grad_())


def test_T20_full_kl_in_the_reward_teaches_nothing_at_its_own_place():
    theta = THETA.clone().requires_grad_()
    reward = full_kl(theta[None], REFERENCE[None]).detach()
    (THETA.softmax(0) * reward * theta.log_softmax(0)).sum().backward()
    torch.testing.assert_close(theta.grad, torch.zeros_like(THETA), rtol=0, atol=1e-12)


def test_full_kl_in_chunks():
    logits, reference = torch.randn(2, 7, 11, generator=torch.Generator().manual_seed(0))
    parts = [full_kl(a, b) for a, b in zip(logits.split(3), reference.split(3), strict=True)]
    assert torch.equal(torch.cat(parts), full_kl(logits, reference))


def test_T21_full_kl_at_forbidden_tokens_and_huge_logits():
    """The forbidden token leaves the sum: what is left is (1/2, 1/2) against (1/4, 3/4)."""
    logits = torch.tensor([[0.0, 0.0, -torch.inf], [1e4, -1e4, 0.0]], requires_grad=True)
    value = full_kl(logits, torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.5, 0.25]]).log())
    value.sum().backward()
    torch.testing.assert_close(value, torch.tensor([0.1438410, 1.3862944]), rtol=0, atol=1e-6)
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] == 0
    assert full_kl(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]])).item() == torch.inf


def test_full_kl_precision_and_reference():
    """bfloat16 logits are widened before anything is computed of them."""
    reference = torch.zeros(1, 3, dtype=torch.bfloat16, requires_grad=True)
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16, requires_grad=True)
    value = full_kl(logits, reference)
    value.sum().backward()
    torch.testing.assert_close(value, full_kl(logits.float(), reference.float()), rtol=1e-6, atol=0)
    assert reference.grad is None


def test_full_kl_of_other_shapes_is_refused():
    with pytest.raises(ValueError, match=r"logits are \(2, 3\), the reference's \(1, 3\)"):
        full_kl(torch.zeros(2, 3), torch.zeros(1, 3))
