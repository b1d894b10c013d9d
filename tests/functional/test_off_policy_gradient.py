"""Where the corrected policy gradient points, with behaviour weights four updates old.

Answers of one or two tokens over a vocabulary of five. All answers are enumerated and weighed with their probability,
so every expectation is exact and nothing is sampled.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roll_lightning.functional.off_policy import LEVELS, ImportanceWeight, OffPolicyCorrection, RejectionMask

UPDATES = 4
UNCORRECTED = OffPolicyCorrection()


class OneToken:
    """Softmax logits, one reward per token."""

    rewards = torch.tensor([0.9, 0.1, 0.4, 0.7, 0.0], dtype=torch.float64)
    start = torch.tensor([-0.6, 0.5, 0.2, -0.3, 0.4], dtype=torch.float64)
    step = 4.0

    def logprobs(self, theta: Tensor) -> Tensor:
        """``[5, 2]``: the prompt's token, then each of the five."""
        return torch.stack([torch.zeros_like(theta), theta.log_softmax(0)], 1)

    def exact_gradient(self, theta: Tensor) -> Tensor:
        """Of the expected reward, by hand: p (r - mean r)."""
        p = theta.softmax(0)
        return p * (self.rewards - (p * self.rewards).sum())


class TwoTokens:
    """Logits of the first token and, for each first token, of the second; one reward per pair."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rewards = torch.rand(25, generator=generator, dtype=torch.float64)
        self.start = 0.5 * torch.randn(30, generator=generator, dtype=torch.float64)
        self.step = 4.0

    def logprobs(self, theta: Tensor) -> Tensor:
        """``[25, 3]``: the prompt's token, then each pair."""
        first, second = torch.arange(5).repeat_interleave(5), torch.arange(5).repeat(5)
        of_first, of_second = theta[:5].log_softmax(0)[first], theta[5:].view(5, 5).log_softmax(1)[first, second]
        return torch.stack([torch.zeros_like(of_first), of_first, of_second], 1)

    def exact_gradient(self, theta: Tensor) -> Tensor:
        """Of the expected reward, by hand: of logits in a state, P(state) p (q - mean q), q the reward to expect."""
        p = theta[:5].softmax(0)
        second = theta[5:].view(5, 5).softmax(1)
        rewards = self.rewards.view(5, 5)
        value = (second * rewards).sum(1)
        of_first = p * (value - (p * value).sum())
        of_second = p[:, None] * second * (rewards - value[:, None])
        return torch.cat([of_first, of_second.flatten()])


def four_updates(problem) -> Tensor:
    theta = problem.start
    for _ in range(UPDATES):
        theta = theta + problem.step * problem.exact_gradient(theta)
    return theta


def cosine(problem, correction: OffPolicyCorrection) -> float:
    """Between the exact gradient and the expected one of the estimator, on answers of the starting weights."""
    now = four_updates(problem)
    old, behaviour = problem.logprobs(now), problem.logprobs(problem.start)
    mask = torch.ones_like(old).bool()
    mask[:, 0] = False
    out = correction(old, behaviour, mask)
    probability = behaviour.sum(1).exp()
    advantages = problem.rewards - (probability * problem.rewards).sum()  # the baseline that the answers have
    theta = now.clone().requires_grad_()
    per_token = -advantages[:, None] * out.weights * problem.logprobs(theta)
    (probability[:, None] * torch.where(out.keep, per_token, 0.0)).sum().backward()
    return torch.cosine_similarity(-theta.grad, problem.exact_gradient(now), 0).item()


@pytest.mark.parametrize("problem", [OneToken(), TwoTokens()])
def test_the_exact_gradient_by_autograd(problem):
    theta = four_updates(problem).requires_grad_()
    (problem.logprobs(theta).sum(1).exp() * problem.rewards).sum().backward()
    torch.testing.assert_close(theta.grad, problem.exact_gradient(theta.detach()), rtol=0, atol=1e-14)


@pytest.mark.parametrize("level", LEVELS)
def test_one_token_any_level_points_along_the_exact_gradient(level):
    uncorrected = cosine(OneToken(), UNCORRECTED)
    assert uncorrected < 0.9
    assert cosine(OneToken(), OffPolicyCorrection(ImportanceWeight(level, upper=None))) > 1 - 1e-12
    assert cosine(OneToken(), OffPolicyCorrection(ImportanceWeight(level))) > uncorrected + 0.05


def test_two_tokens_the_sequence_weight_points_along_the_exact_gradient():
    assert cosine(TwoTokens(), UNCORRECTED) < 0.9
    assert cosine(TwoTokens(), OffPolicyCorrection(ImportanceWeight("sequence", upper=None))) > 1 - 1e-12
    assert cosine(TwoTokens(), OffPolicyCorrection(ImportanceWeight("sequence"))) > 0.99


@pytest.mark.parametrize("level", ["token", "segment", "geometric"])
@pytest.mark.parametrize("upper", [None, 2.0])
def test_two_tokens_the_other_levels_are_biased_and_still_better_than_nothing(level, upper):
    corrected = cosine(TwoTokens(), OffPolicyCorrection(ImportanceWeight(level, upper)))
    assert cosine(TwoTokens(), UNCORRECTED) + 0.02 < corrected < 0.99


def test_rejection_of_what_drift_brought_can_be_worse_than_nothing():
    """Rows that became unlikely are no loss; those that the policy has learnt to prefer are its gradient."""

    def masked(**bounds: float) -> float:
        rejection = RejectionMask("sequence", **bounds)
        return cosine(TwoTokens(), OffPolicyCorrection(ImportanceWeight("sequence", None), [rejection]))

    assert masked(low=0.3) > 0.99
    assert masked(high=3.0) < cosine(TwoTokens(), UNCORRECTED) - 0.2  # the largest ratio is 3.1
    assert masked(high=3.2) > 1 - 1e-12


def test_a_cap_below_most_ratios_can_be_worse_than_no_weight():
    """Four large steps: the cap flattens the weights of just those answers that the policy now gives."""
    problem = TwoTokens()
    problem.step = 16.0
    capped = cosine(problem, OffPolicyCorrection(ImportanceWeight("sequence")))
    assert (
        capped < cosine(problem, UNCORRECTED) < cosine(problem, OffPolicyCorrection(ImportanceWeight("sequence", None)))
    )
