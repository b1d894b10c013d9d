from __future__ import annotations

import math

import pytest
import torch

from roll_lightning.errors import ConfigError
from roll_lightning.functional.ratios import (
    check_ratio_level,
    importance_ratio,
    masked_log_ratio,
    pool_log_ratio,
    segment_ids,
)

LEVELS = ["token", "sequence", "segment"]

# Two turns of 2 and 1 tokens; one turn of 3 from the first place on; nothing at all.
MASK = torch.tensor([[0, 1, 1, 0, 0, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
LOG_RATIO = torch.tensor(
    [[0.0, 0.1, 0.3, 0.0, 0.0, -0.7], [0.5, -0.1, 0.2, 0.0, 0.0, 0.0], [0.0] * 6], dtype=torch.float64
)
POOLED = {
    "token": LOG_RATIO,
    "sequence": torch.tensor([[0, -0.1, -0.1, 0, 0, -0.1], [0.2, 0.2, 0.2, 0, 0, 0], [0] * 6], dtype=torch.float64),
    "segment": torch.tensor([[0, 0.2, 0.2, 0, 0, -0.7], [0.2, 0.2, 0.2, 0, 0, 0], [0] * 6], dtype=torch.float64),
}


def random_case(rows: int = 6, tokens: int = 17):
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(rows, tokens, generator=generator, dtype=torch.float64) * 3
    new = old + 0.3 * torch.randn(rows, tokens, generator=generator, dtype=torch.float64)
    return new, old, torch.rand(rows, tokens, generator=generator) < 0.6


def loop_over_tokens(log_ratio: list[float], mask: list[bool], level: str) -> list[float]:
    """The means, written token by token."""
    pooled = [0.0] * len(mask)
    groups: list[list[int]] = []
    for place, counts in enumerate(mask):
        if not counts:
            continue
        starts = level == "token" or not groups or (level == "segment" and not mask[place - 1])
        if starts:
            groups.append([])
        groups[-1].append(place)
    for group in groups:
        for place in group:
            pooled[place] = math.fsum(log_ratio[i] for i in group) / len(group)
    return pooled


@pytest.mark.parametrize("level", LEVELS)
def test_hand_computed(level):
    torch.testing.assert_close(pool_log_ratio(LOG_RATIO, MASK, level), POOLED[level], rtol=0, atol=1e-15)
    expected = torch.where(MASK, POOLED[level].exp(), 1.0)
    torch.testing.assert_close(importance_ratio(LOG_RATIO, MASK, level), expected, rtol=1e-15, atol=0)


def test_segments_are_numbered_from_one():
    assert segment_ids(MASK).tolist() == [[0, 1, 1, 0, 0, 2], [1, 1, 1, 0, 0, 0], [0] * 6]
    assert segment_ids(MASK[:, :0]).shape == (3, 0)


@pytest.mark.parametrize("level", LEVELS)
def test_against_a_loop_over_tokens(level):
    new, old, mask = random_case()
    log_ratio = masked_log_ratio(new, old, mask)
    pooled = [loop_over_tokens(d.tolist(), m.tolist(), level) for d, m in zip(log_ratio, mask, strict=True)]
    expected = torch.tensor(pooled, dtype=torch.float64)
    torch.testing.assert_close(pool_log_ratio(log_ratio, mask, level), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("level", LEVELS)
def test_gradient_is_that_of_finite_differences(level):
    new, old, mask = random_case(3, 7)
    new.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logprobs: importance_ratio(masked_log_ratio(logprobs, old, mask), mask, level), (new,)
    )


def test_gradient_of_a_sequence_goes_to_all_tokens_in_equal_parts():
    """d s / d logp_t = s / n, for the ratio seen at any place of the row."""
    log_ratio = LOG_RATIO[:1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(importance_ratio(log_ratio, MASK[:1], "sequence")[0, 5], log_ratio)
    share = math.exp(-0.1) / 3
    expected = torch.tensor([[0, share, share, 0, 0, share]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-14, atol=0)


def test_gradient_of_a_segment_stays_in_the_segment():
    log_ratio = LOG_RATIO[:1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(importance_ratio(log_ratio, MASK[:1], "segment")[0, 1], log_ratio)
    share = math.exp(0.2) / 2
    torch.testing.assert_close(
        gradient, torch.tensor([[0, share, share, 0, 0, 0]], dtype=torch.float64), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("level", LEVELS)
def test_T27_ratio_does_not_grow_with_length(level):
    """The product of 4000 ratios of 1.02 is 2.5e34."""
    ratio = importance_ratio(torch.full((1, 4000), math.log(1.02)), torch.ones(1, 4000), level)
    torch.testing.assert_close(ratio, torch.full((1, 4000), 1.02), rtol=1e-5, atol=0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("difference", [1e4, -1e4])
def test_T21_finite_at_huge_differences(level, difference):
    new = torch.full((2, 3), difference, requires_grad=True)
    ratio = importance_ratio(masked_log_ratio(new, torch.zeros(2, 3), MASK[:2, :3]), MASK[:2, :3], level)
    ratio.sum().backward()
    assert ratio.isfinite().all()
    assert new.grad.isfinite().all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e4])
def test_T21_masked_places_change_nothing(level, junk):
    def compute(filled: float):
        new, old, mask = random_case()
        new = torch.where(mask, new, filled).requires_grad_()
        ratio = importance_ratio(masked_log_ratio(new, torch.where(mask, old, -filled), mask), mask, level)
        ratio.sum().backward()
        assert not new.grad[~mask].any()
        assert torch.equal(ratio[~mask], torch.ones_like(ratio[~mask]))
        return ratio, new.grad

    for clean, dirty in zip(compute(0.0), compute(junk), strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("level", LEVELS)
def test_padding_and_row_order_change_nothing(level):
    new, old, mask = random_case()
    log_ratio = masked_log_ratio(new, old, mask)
    ratio = importance_ratio(log_ratio, mask, level)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.equal(importance_ratio(log_ratio[order], mask[order], level), ratio[order])
    wide, wide_mask = (torch.nn.functional.pad(x, (0, 4)) for x in (log_ratio, mask))
    torch.testing.assert_close(importance_ratio(wide, wide_mask, level)[:, :17], ratio, rtol=1e-14, atol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_T24_ratio_is_exactly_one_at_first(level):
    new, _, mask = random_case()
    ratio = importance_ratio(masked_log_ratio(new.float(), new.float(), mask), mask, level)
    assert torch.equal(ratio, torch.ones_like(ratio))


def test_a_masked_span_inside_splits_segments_only():
    """A tool's answer between two turns does not change the sequence's ratio."""
    together, apart = torch.tensor([[0.2, 0.4, -0.3]]), torch.tensor([[0.2, 0.4, 0.0, 0.0, -0.3]])
    gap = torch.tensor([[1, 1, 0, 0, 1]])
    sequence = importance_ratio(together, torch.ones(1, 3), "sequence")
    assert importance_ratio(apart, gap, "sequence")[0, 4].item() == pytest.approx(sequence[0, 0].item(), rel=1e-6)
    assert importance_ratio(apart, gap, "segment")[0, 4].item() == pytest.approx(math.exp(-0.3), rel=1e-6)


def test_no_such_level():
    with pytest.raises(ConfigError, match=r"TIS.ratio is 'seq'; it must be token, sequence or segment"):
        check_ratio_level("TIS.ratio", "seq")
