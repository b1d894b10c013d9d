from __future__ import annotations

import math

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser

from roll_lightning.commandline.resolve import Resolver
from roll_lightning.errors import ConfigError
from roll_lightning.functional.off_policy import (
    LEVELS,
    ImportanceWeight,
    OffPolicyCorrection,
    RejectionMask,
    pool_at_level,
)
from roll_lightning.metrics.weighted import WeightedMeans

# Row 0: a segment of two tokens, one token of a tool, a segment of one token; row 1: one token.
MASK = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0]]).bool()
BEHAVIOUR = torch.tensor([[1, 0.1, 0.05, 1, 0.8, 1], [1, 0.6, 1, 1, 1, 1]], dtype=torch.float64).log()
OLD = torch.tensor([[1, 0.2, 0.4, 1, 0.2, 1], [1, 0.3, 1, 1, 1, 1]], dtype=torch.float64).log()
# Of the four tokens of the mask. Token ratios are 2, 8, 1/4; 1/2.
RATIOS = {
    "token": [2, 8, 0.25, 0.5],
    "segment": [4, 4, 0.25, 0.5],  # sqrt(2 · 8)
    "geometric": [1.5874010519682, 1.5874010519682, 1.5874010519682, 0.5],  # (2 · 8 / 4) ** (1/3)
    "sequence": [4, 4, 4, 0.5],  # 2 · 8 / 4
}
# Of probabilities: 0.1, 0.35, -0.6; -0.3.
DIFFERENCES = {
    "token": [0.1, 0.35, -0.6, -0.3],
    "segment": [0.225, 0.225, -0.6, -0.3],
    "geometric": [-0.05, -0.05, -0.05, -0.3],
    "sequence": [-0.15, -0.15, -0.15, -0.3],
}


def on_mask(values: torch.Tensor) -> list[float]:
    assert not values[~MASK].any()
    return values[MASK].tolist()


@pytest.mark.parametrize("level", LEVELS)
def test_levels_hand_computed(level):
    correction = OffPolicyCorrection(ImportanceWeight(level, upper=None))
    out = correction(OLD, BEHAVIOUR, MASK)
    assert on_mask(out.weights) == pytest.approx(RATIOS[level], rel=1e-12)
    for name, values in {"ratio_{}_mean": RATIOS, "ratio_{}_max": RATIOS, "diff_{}_mean": DIFFERENCES}.items():
        for any_level in LEVELS:
            metric = out.metrics[f"actor/train_infer_{name.format(any_level)}"]
            assert on_mask(metric) == pytest.approx(values[any_level], rel=1e-12), name
    assert torch.equal(out.keep, MASK)
    assert not out.metrics["actor/is_weight_clipfrac"].any()
    assert torch.equal(out.metrics["actor/train_infer_final_mask_mean"], MASK.double())


@pytest.mark.parametrize(
    ("weight", "expected", "clipped"),
    [
        (ImportanceWeight(), [2, 2, 0.25, 0.5], [0, 1, 0, 0]),
        (ImportanceWeight("token", upper=1.5, lower=0.4), [1.5, 1.5, 0.4, 0.5], [1, 1, 1, 0]),
        (ImportanceWeight("segment", upper=3.0), [3, 3, 0.25, 0.5], [1, 1, 0, 0]),
        (ImportanceWeight("sequence", upper=3.0, lower=0.75), [3, 3, 3, 0.75], [1, 1, 1, 1]),
        (ImportanceWeight("geometric", upper=1.2), [1.2, 1.2, 1.2, 0.5], [1, 1, 1, 0]),
    ],
)
def test_truncation_hand_computed(weight, expected, clipped):
    # A hair below, so that rounding does not put the ratio of exactly 2 above the bound of 2.
    out = OffPolicyCorrection(weight)(OLD - 1e-12 * MASK, BEHAVIOUR, MASK)
    assert on_mask(out.weights) == pytest.approx(expected, rel=1e-9)
    assert on_mask(out.metrics["actor/is_weight_clipfrac"]) == clipped


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        (RejectionMask("token", 0.4, 3.0), [1, 0, 0, 1]),
        (RejectionMask("token", high=3.0), [1, 0, 1, 1]),
        (RejectionMask("token", low=0.4), [1, 1, 0, 1]),
        (RejectionMask("segment", 0.3, 3.0), [0, 0, 0, 1]),
        (RejectionMask("segment", 0.2, 3.0), [0, 0, 1, 1]),
        (RejectionMask("geometric", 0.4, 1.5), [0, 0, 0, 1]),
        (RejectionMask("geometric", 0.6, 1.6), [1, 1, 1, 0]),
        (RejectionMask("sequence", 0.4, 3.9), [0, 0, 0, 1]),
        (RejectionMask("sequence", 0.4, 4.1), [1, 1, 1, 1]),
        (RejectionMask("token", -0.4, 0.2, "difference"), [1, 0, 0, 1]),
        (RejectionMask("segment", -0.7, 0.2, "difference"), [0, 0, 1, 1]),
        (RejectionMask("geometric", low=-0.2, measure="difference"), [1, 1, 1, 0]),
        (RejectionMask("sequence", low=-0.2, measure="difference"), [1, 1, 1, 0]),
        (RejectionMask("sequence", low=-0.1, measure="difference"), [0, 0, 0, 0]),
    ],
)
def test_rejection_hand_computed(mask, kept):
    out = OffPolicyCorrection(masks=[mask])(OLD, BEHAVIOUR, MASK)
    assert on_mask(out.keep) == kept
    kind = {"ratio": "ratio", "difference": "diff"}[mask.measure]
    assert on_mask(out.metrics[f"actor/train_infer_{mask.level}_{kind}_mask_mean"]) == kept
    assert on_mask(out.metrics["actor/train_infer_final_mask_mean"]) == kept
    assert torch.equal(out.weights, MASK.double())  # a mask is no weight


def test_bounds_belong_to_what_is_kept():
    zeros, ones = torch.zeros(1, 3), torch.ones(1, 3)
    old = torch.tensor([[0.0, math.log(0.5), math.log(2.0)]])
    keep = RejectionMask("token", 0.5, 2.0)
    assert OffPolicyCorrection(masks=[keep])(old, zeros, ones).keep.all()
    assert OffPolicyCorrection(masks=[keep])(1.001 * old, zeros, ones).keep.tolist() == [[True, False, False]]


def test_masks_see_all_tokens_and_multiply():
    """The second mask judges the rows as they are, not what the first one left of them."""
    masks = [RejectionMask("token", 0.4, 3.0), RejectionMask("sequence", 0.6, 4.1)]
    for order in (masks, masks[::-1]):
        out = OffPolicyCorrection(masks=order)(OLD, BEHAVIOUR, MASK)
        assert on_mask(out.keep) == [1, 0, 0, 0]
        assert on_mask(out.metrics["actor/train_infer_token_ratio_mask_mean"]) == [1, 0, 0, 1]
        assert on_mask(out.metrics["actor/train_infer_sequence_ratio_mask_mean"]) == [1, 1, 1, 0]
        assert on_mask(out.metrics["actor/train_infer_final_mask_mean"]) == [1, 0, 0, 0]


FULL = OffPolicyCorrection(
    ImportanceWeight("segment", 1.7, 0.3),
    [RejectionMask(level, 0.4, 1.6) for level in LEVELS]
    + [RejectionMask(level, -0.2, 0.2, "difference") for level in LEVELS],
)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e4, -1e4])
@pytest.mark.parametrize("place", ["old", "behaviour", "both"])
def test_T21_masked_places_change_nothing(junk, place):
    old = torch.where(MASK | (place == "behaviour"), OLD, junk)
    behaviour = torch.where(MASK | (place == "old"), BEHAVIOUR, junk)
    clean, dirty = FULL(OLD, BEHAVIOUR, MASK), FULL(old, behaviour, MASK)
    assert torch.equal(clean.weights, dirty.weights)
    assert torch.equal(clean.keep, dirty.keep)
    for name, value in clean.metrics.items():
        assert torch.equal(value, dirty.metrics[name]), name


@pytest.mark.parametrize("extreme", [1e4, -1e4])
@pytest.mark.parametrize("level", LEVELS)
def test_T21_finite_at_extremes(extreme, level):
    old = torch.tensor([[0.0, extreme, extreme, -1.0]])
    for new, behaviour in ((old, torch.full((1, 4), -1.0)), (torch.full((1, 4), -1.0), old)):
        out = OffPolicyCorrection(ImportanceWeight(level, upper=None))(new, behaviour, torch.ones(1, 4))
        assert out.weights.isfinite().all()
        assert all(value.isfinite().all() for value in out.metrics.values())
        bounded = OffPolicyCorrection(masks=[RejectionMask(level, 1e-12, 1e12)])(new, behaviour, torch.ones(1, 4))
        assert not bounded.keep[0, 1]  # a bound beyond the clamp of the ratio still rejects


def test_T25_nan_on_a_token_that_counts_is_rejected_not_repaired():
    old = torch.where(torch.tensor([[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool(), torch.nan, OLD)
    out = OffPolicyCorrection(ImportanceWeight(), [RejectionMask("sequence", high=1e6)])(old, BEHAVIOUR, MASK)
    assert on_mask(out.keep) == [0, 0, 0, 1]
    assert out.weights[0, 1].isnan()


def test_T26_monitored_without_weight_or_mask_and_merged_exactly():
    """Each metric is what WeightedMeans makes of it, in one piece or row by row."""
    watch = OffPolicyCorrection()
    means = WeightedMeans(watch.mean_names, watch.max_names)
    for rows in (slice(0, 1), slice(1, 2)):
        out = watch(OLD[rows], BEHAVIOUR[rows], MASK[rows])
        assert sorted(out.metrics) == sorted((*watch.mean_names, *watch.max_names))
        for name, values in out.metrics.items():
            means.update_masked(name, values, MASK[rows])
    found = {name: float(value) for name, value in means.pop().items()}
    expected = {"actor/is_weight_clipfrac": 0.0, "actor/train_infer_final_mask_mean": 1.0}
    for level in LEVELS:
        expected[f"actor/train_infer_ratio_{level}_mean"] = sum(RATIOS[level]) / 4
        expected[f"actor/train_infer_ratio_{level}_max"] = max(RATIOS[level])
        expected[f"actor/train_infer_diff_{level}_mean"] = sum(DIFFERENCES[level]) / 4
    assert found == pytest.approx(expected, rel=1e-6)
    assert sorted(FULL(OLD, BEHAVIOUR, MASK).metrics) == sorted((*FULL.mean_names, *FULL.max_names))


def test_T27_the_geometric_level_does_not_grow_with_the_length():
    for length in (1, 10, 200):
        old = torch.full((1, length), 0.05, dtype=torch.float64)
        metrics = OffPolicyCorrection()(old, torch.zeros_like(old), torch.ones(1, length)).metrics
        assert metrics["actor/train_infer_ratio_geometric_mean"][0, 0].item() == pytest.approx(math.exp(0.05))
        sequence = metrics["actor/train_infer_ratio_sequence_mean"][0, 0].item()
        assert sequence == pytest.approx(math.exp(0.05 * length))


def test_equal_policies_change_nothing():
    out = FULL(OLD, OLD, MASK)
    assert torch.equal(out.weights, MASK.double())
    assert torch.equal(out.keep, MASK)


@pytest.mark.parametrize("level", LEVELS)
def test_wider_padding_and_other_rows_change_nothing(level):
    log_ratio = torch.where(MASK, OLD - BEHAVIOUR, 0.0)
    pooled = pool_at_level(log_ratio, MASK, level)
    wide = torch.nn.functional.pad(log_ratio, (0, 3)), torch.nn.functional.pad(MASK, (0, 3))
    assert torch.equal(pool_at_level(*wide, level)[:, :6], pooled)
    assert torch.equal(pool_at_level(log_ratio[:1], MASK[:1], level), pooled[:1])


def test_no_gradient_anywhere():
    old = OLD.clone().requires_grad_()
    out = FULL(old, BEHAVIOUR.clone().requires_grad_(), MASK)
    assert not out.weights.requires_grad
    assert not any(value.requires_grad for value in out.metrics.values())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ImportanceWeight("word"), "ImportanceWeight.level is 'word'; it must be one of token, segment"),
        (lambda: ImportanceWeight(upper=1.0), "ImportanceWeight.upper is 1.0; it must be a finite number above 1"),
        (lambda: ImportanceWeight(upper=math.inf), "ImportanceWeight.upper is inf"),
        (lambda: ImportanceWeight(upper=math.nan), "ImportanceWeight.upper is nan"),
        (lambda: ImportanceWeight(lower=1.0), "ImportanceWeight.lower is 1.0; it must be between 0 and 1"),
        (lambda: ImportanceWeight(lower=0.0), "ImportanceWeight.lower is 0.0"),
        (lambda: RejectionMask("token"), "neither low nor high"),
        (lambda: RejectionMask("word", 0.5, 2), "RejectionMask.level is 'word'"),
        (lambda: RejectionMask("token", 1.2, 0.8), "RejectionMask.low is 1.2"),
        (lambda: RejectionMask("token", 0.8, 0.9), "RejectionMask.high is 0.9"),
        (lambda: RejectionMask("token", -0.2, 0.2), "RejectionMask.low is -0.2"),
        (lambda: RejectionMask("token", 0.8, 1.2, "difference"), "RejectionMask.low is 0.8.* below 0"),
        (lambda: RejectionMask("token", high=0.0, measure="difference"), "RejectionMask.high is 0.0.* above 0"),
        (lambda: RejectionMask("token", 0.8, measure="kl"), "RejectionMask.measure is 'kl'"),
        (
            lambda: OffPolicyCorrection(masks=[RejectionMask("token", 0.5), RejectionMask("token", high=2)]),
            "OffPolicyCorrection.masks has two of level token on the ratio",
        ),
    ],
)
def test_bad_settings(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


class Owner:
    """Takes the correction as a module would."""

    def __init__(self, off_policy: OffPolicyCorrection = OffPolicyCorrection()) -> None:  # noqa: B008
        self.off_policy = off_policy


YAML = """
off_policy:
  weight: {level: sequence, upper: 3.0}
  masks:
  - {level: geometric, low: 0.99, high: 1.01}
  - {level: token, high: 0.2, measure: difference}
"""


def test_from_yaml():
    tree = Resolver(lambda name: None).arguments(yaml.safe_load(YAML), Owner, "model")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Owner, "model")
    made = parser.instantiate_classes(parser.parse_object({"model": tree})).model.off_policy
    masks = [RejectionMask("geometric", 0.99, 1.01), RejectionMask("token", high=0.2, measure="difference")]
    assert (made.weight, list(made.masks)) == (ImportanceWeight("sequence", 3.0), masks)
    with pytest.raises(ConfigError, match=r"model.off_policy.masks\[0\].hihg; did you mean .*high"):
        Resolver(lambda name: None).arguments({"off_policy": {"masks": [{"hihg": 2}]}}, Owner, "model")
