"""The critic's values, loss and explained variance, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from roll_lightning.functional.values import explained_variance, token_values, value_loss


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_a_value_stands_at_the_token_that_is_to_be_written():
    head = nn.Linear(2, 1)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 10.0]]))
        head.bias.fill_(0.5)
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]])
    positions = torch.tensor([[True, True, True]])
    assert token_values(hidden, head, positions).tolist() == [[0.0, 1.5, 10.5]]
    assert token_values(hidden, head, torch.tensor([[False, False, True]])).tolist() == [[0.0, 0.0, 10.5]]


def test_values_are_not_rounded_by_autocast():
    head = nn.Linear(64, 1)
    hidden, positions = torch.randn(1, 3, 64), torch.ones(1, 3, dtype=torch.bool)
    plain = token_values(hidden, head, positions)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(token_values(hidden, head, positions), plain)


@pytest.mark.parametrize(
    ("value", "old", "returned", "clip", "loss", "clipped"),
    [
        (2.0, 0.0, 5.0, None, 4.5, False),
        (2.0, 0.0, 5.0, 0.5, 0.5 * 4.5**2, True),
        (2.0, 0.0, 1.0, 0.5, 0.5 * 1.0, False),
        (0.3, 0.0, 5.0, 0.5, 0.5 * 4.7**2, False),
        (-2.0, 1.0, 0.0, 1.0, 0.5 * 4.0, False),
        (-2.0, 1.0, -3.0, 1.0, 0.5 * 9.0, True),
    ],
)
def test_value_loss_by_hand(value, old, returned, clip, loss, clipped):
    found = value_loss(tensor([value]), tensor([old]), tensor([returned]), torch.ones(1, 1), clip)
    assert found.per_token.item() == pytest.approx(loss, abs=1e-12)
    assert found.clipped.item() is clipped


@pytest.mark.parametrize("clip", [None, 0.4])
def test_value_loss_gradients(clip):
    generator = torch.Generator().manual_seed(0)
    old, returns, start = torch.randn(3, 2, 5, dtype=torch.float64, generator=generator)
    mask = torch.ones(2, 5, dtype=torch.bool)
    values = start.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old, returns, mask, clip).per_token, values)
    # Where the clip bites there is none; elsewhere it is V - R.
    found = value_loss(values, old, returns, mask, clip)
    found.per_token.sum().backward()
    expected = torch.where(found.clipped, 0.0, start - returns)
    assert torch.allclose(values.grad, expected, atol=1e-12)
    assert found.clipped.any() == (clip is not None)


@pytest.mark.parametrize("clip", [None, 0.4])
def test_masked_places_change_nothing(clip):
    mask = torch.tensor([[True, False, True]])
    values = tensor([1.0, math.nan, 2.0]).requires_grad_()
    found = value_loss(values, tensor([0.9, math.inf, 2.5]), tensor([0.5, math.nan, 2.4]), mask, clip).per_token
    found.sum().backward()
    assert found[0, 1] == 0
    assert torch.isfinite(values.grad).all()
    assert values.grad[0, 1] == 0


def test_explained_variance():
    mask = torch.tensor([[True, True, True, False]])
    returns = tensor([1.0, 2.0, 3.0, math.nan])
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(returns + 7, returns, mask) == 1
    assert explained_variance(tensor([2.0, 2.0, 2.0, 9.0]), returns, mask) == 0
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3)
    # Half of each deviation: a quarter of the variance is left.
    assert explained_variance(tensor([1.5, 2.0, 2.5, 0.0]), returns, mask) == pytest.approx(0.75)
    assert explained_variance(returns, torch.ones_like(returns), mask) == 0
