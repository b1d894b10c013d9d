from __future__ import annotations

import math

import pytest
import torch

from roll_lightning.errors import ConfigError
from roll_lightning.functional.policy_losses import PolicyLoss, PPOClip

CASES = [
    # ratio, advantage, loss, d loss / d logprob, clipfrac, low, high
    (1.0, 2.0, -2.0, -2.0, 0, 0, 0),
    (1.0, -2.0, 2.0, 2.0, 0, 0, 0),
    (1.1, 2.0, -2.2, -2.2, 0, 0, 0),
    (1.5, 2.0, -2.56, 0.0, 1, 0, 1),  # grew enough: cut at 1.28
    (1.5, -2.0, 3.0, 3.0, 0, 0, 1),  # grew and should not have: keeps its gradient
    (0.5, 2.0, -1.0, -1.0, 0, 1, 0),  # shrank and should not have: keeps its gradient
    (0.5, -2.0, 1.6, 0.0, 1, 1, 0),  # shrank enough: cut at 0.8
    (5.0, -2.0, 10.0, 10.0, 0, 0, 1),
]


def run(loss: PolicyLoss, ratio: float, advantage: float):
    old = torch.tensor([[-1.0]], dtype=torch.float64)
    logprobs = (old + math.log(ratio)).requires_grad_()
    out = loss(logprobs, old, torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 1))
    out.per_token.sum().backward()
    return out, logprobs.grad


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient", "clipped", "low", "high"), CASES)
def test_hand_computed(ratio, advantage, loss, gradient, clipped, low, high):
    out, grad = run(PPOClip(low=0.2, high=0.28), ratio, advantage)
    assert out.per_token.item() == pytest.approx(loss, abs=1e-12)
    assert grad.item() == pytest.approx(gradient, abs=1e-12)
    metrics = {name: value.item() for name, value in out.metrics.items()}
    assert metrics == pytest.approx(
        {
            "ratio": ratio,
            "clipfrac": clipped,
            "ppo_ratio_low_clipfrac": low,
            "ppo_ratio_high_clipfrac": high,
            "ppo_ratio_clipfrac": low + high,
            "approxkl": math.log(ratio) ** 2 / 2,
            "policykl": math.log(ratio),
        },
        abs=1e-12,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (5.0, -2.0, 6.0, 0.0),  # bounded by 3 A
        (2.9, -2.0, 5.8, 5.8),
        (0.5, -2.0, 1.6, 0.0),
        (5.0, 2.0, -2.56, 0.0),  # positive advantages are not touched
        (0.1, 2.0, -0.2, -0.2),
    ],
)
def test_dual_clip_hand_computed(ratio, advantage, loss, gradient):
    out, grad = run(PPOClip(low=0.2, high=0.28, dual_clip=3.0), ratio, advantage)
    assert out.per_token.item() == pytest.approx(loss, abs=1e-12)
    assert grad.item() == pytest.approx(gradient, abs=1e-12)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_step_of_descent_follows_the_advantage(advantage):
    """Descending makes a token likelier exactly if its advantage is positive."""
    theta = torch.zeros(4, requires_grad=True)
    old = theta.detach().log_softmax(0)[1].view(1, 1)
    out = PPOClip()(theta.log_softmax(0)[1].view(1, 1), old, torch.tensor([[advantage]]), torch.ones(1, 1))
    out.per_token.sum().backward()
    after = (theta.detach() - 0.1 * theta.grad).log_softmax(0)[1]
    assert (after - old).sign().item() == advantage


def test_T28_ratio_is_one_only_when_the_policy_has_not_moved():
    logprobs = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)) - 3
    mask, advantages = torch.ones(2, 5), torch.ones(2, 5)
    same = PPOClip()(logprobs, logprobs.clone(), advantages, mask)
    assert torch.equal(same.metrics["ratio"], torch.ones(2, 5))
    assert not same.metrics["clipfrac"].any()
    moved = PPOClip()(logprobs + 0.05, logprobs, advantages, mask)
    torch.testing.assert_close(moved.metrics["ratio"], torch.full((2, 5), math.exp(0.05)))


@pytest.mark.parametrize("difference", [1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_T21_finite_at_huge_differences(difference, advantage, dual_clip):
    logprobs = torch.tensor([[difference, -1.0]], requires_grad=True)
    advantages = torch.full((1, 2), advantage)
    out = PPOClip(dual_clip=dual_clip)(logprobs, torch.tensor([[0.0, -1.0]]), advantages, torch.ones(1, 2))
    out.per_token.sum().backward()
    assert out.per_token.isfinite().all()
    assert all(value.isfinite().all() for value in out.metrics.values())
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad[0, 1].item() == -advantage


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e4, -1e4])
@pytest.mark.parametrize("place", ["logprobs", "old_logprobs", "advantages"])
def test_T10_T21_masked_places_change_nothing(junk, place):
    mask = torch.tensor([[False, True, True, False]])

    def compute(filled: float):
        tensors = {
            "logprobs": torch.tensor([[0.0, -1.0, -2.0, 0.0]]),
            "old_logprobs": torch.tensor([[0.0, -1.1, -1.8, 0.0]]),
            "advantages": torch.tensor([[0.0, 0.5, -0.5, 0.0]]),
        }
        tensors[place] = torch.where(mask, tensors[place], filled)
        logprobs = tensors.pop("logprobs").requires_grad_()
        out = PPOClip(dual_clip=3.0)(logprobs, mask=mask, **tensors)
        out.per_token.sum().backward()
        return out, logprobs.grad

    (clean, clean_grad), (dirty, dirty_grad) = compute(0.0), compute(junk)
    assert torch.equal(clean.per_token, dirty.per_token)
    assert torch.equal(clean_grad, dirty_grad)
    assert not dirty.per_token[~mask].any()
    for name, value in dirty.metrics.items():
        assert torch.equal(torch.where(mask, value, 0.0), torch.where(mask, clean.metrics[name], 0.0))
        assert not value[~mask].any(), name


def test_metrics_and_old_logprobs_carry_no_gradient():
    old = torch.full((1, 2), -1.0, requires_grad=True)
    advantages = torch.ones(1, 2, requires_grad=True)
    out = PPOClip()(torch.full((1, 2), -0.9, requires_grad=True), old, advantages, torch.ones(1, 2))
    assert not any(value.requires_grad for value in out.metrics.values())
    out.per_token.sum().backward()
    assert old.grad is None
    assert advantages.grad is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 0.0}, "PPOClip.low is 0.0"),
        ({"low": 1.5}, "PPOClip.low is 1.5"),
        ({"low": float("nan")}, "PPOClip.low is nan"),
        ({"high": -0.1}, "PPOClip.high is -0.1"),
        ({"high": float("inf")}, "PPOClip.high is inf"),
        ({"dual_clip": 1.0}, "PPOClip.dual_clip is 1.0"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ConfigError, match=message):
        PPOClip(**arguments)
