from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser

from roll_lightning.commandline.resolve import Resolver
from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.errors import ConfigError, DataError
from roll_lightning.functional.sample_masks import (
    DifficultyMask,
    DifficultyWeight,
    LengthWeight,
    OverlongMask,
    SampleFacts,
    SampleSelection,
    SampleWeight,
    WrongAndLongMask,
)

# Groups 7 (mean 0.5), 3 (all right), 9 (all wrong), 4 (one fraction, one without a score), rows mixed up.
FACTS = SampleFacts(
    scores=torch.tensor([1.0, 1.0, 0.0, 0.5, 0.0, 1.0, 0.0, math.nan], dtype=torch.float64),
    group_ids=torch.tensor([7, 3, 9, 4, 7, 3, 9, 4]),
    lengths=torch.tensor([10, 50, 20, 30, 30, 50, 40, 50]),
    finished=torch.tensor([True, False, True, True, True, True, False, True]),
    difficulty=torch.tensor([0.0, 1.0, 0.5, 0.2, 0.0, 1.0, 0.5, 0.2], dtype=torch.float64),
)


def test_overlong_is_what_was_cut_not_what_is_long():
    """Row 5 is as long as row 1, the longest there is, and ended by itself: it stays."""
    assert OverlongMask()(FACTS).tolist() == [True, False, True, True, True, True, False, True]


@pytest.mark.parametrize(
    ("bounds", "groups"),
    [
        ((0.0, 1.0), {7, 4}),  # strictly: neither all wrong nor all right
        ((0.5, 1.0), set()),
        ((0.0, 0.5), set()),
        ((0.49, 0.51), {7, 4}),
        ((-0.1, 0.4), {9}),
        ((0.6, 1.1), {3}),
    ],
)
def test_difficulty_band_hand_computed(bounds, groups):
    assert DifficultyMask(*bounds)(FACTS).tolist() == [group in groups for group in FACTS.group_ids.tolist()]


def test_a_group_without_a_score_has_no_difficulty():
    facts = replace(FACTS, scores=torch.where(FACTS.group_ids == 4, math.nan, FACTS.scores))
    assert DifficultyMask(-9, 9)(facts).tolist() == (FACTS.group_ids != 4).tolist()


def test_T12_groups_by_id_in_any_order():
    order = torch.tensor([6, 0, 3, 7, 1, 5, 2, 4])
    shuffled = SampleFacts(*(getattr(FACTS, name)[order] for name in FACTS.__dataclass_fields__))
    for mask in (DifficultyMask(), OverlongMask(), WrongAndLongMask(25)):
        assert torch.equal(mask(shuffled), mask(FACTS)[order])


@pytest.mark.parametrize(
    ("threshold", "dropped"),
    [(19, [2, 3, 4, 6]), (20, [3, 4, 6]), (29, [3, 4, 6]), (30, [6]), (40, [])],
)
def test_wrong_and_long_hand_computed(threshold, dropped):
    """Row 3 has half a point, which is wrong; rows 1 and 5 are right and long; row 7 has no score."""
    kept = WrongAndLongMask(threshold)(FACTS)
    assert (~kept).nonzero().flatten().tolist() == dropped


def test_difficulty_weights_hand_computed():
    """0.5 + 1.5 d: 0.5, 2, 1.25, 0.8 for the four groups, of mean 9.1 / 8 over the rows."""
    out = SampleSelection(weights=[DifficultyWeight()])(FACTS)
    raw = [0.5, 2.0, 1.25, 0.8, 0.5, 2.0, 1.25, 0.8]
    assert out.weights.tolist() == pytest.approx([value / (9.1 / 8) for value in raw], rel=1e-12)


def test_length_weights_hand_computed():
    """From 10 to 50 tokens: 1.5 - (length - 10) / 40, of mean 7 / 8 over the eight rows."""
    raw = [1.5, 0.5, 1.25, 1.0, 1.0, 0.5, 0.75, 0.5]
    counts = torch.ones(8, dtype=torch.bool)
    assert LengthWeight()(FACTS, counts).tolist() == raw
    out = SampleSelection(weights=[LengthWeight()])(FACTS)
    assert out.weights.tolist() == pytest.approx([value / (7 / 8) for value in raw], rel=1e-12)


def test_length_weights_span_the_rows_that_count():
    """Rows 0, 2, 4 of 10, 20 and 30 tokens: 1.5, 1, 0.5, whatever the others have."""
    counts = torch.tensor([1, 0, 1, 0, 1, 0, 0, 0]).bool()
    out = SampleSelection(weights=[LengthWeight()])(FACTS, counts)
    assert out.weights.tolist() == pytest.approx([1.5, 0, 1, 0, 0.5, 0, 0, 0], rel=1e-12)


def test_answers_of_one_length_weigh_the_same():
    out = SampleSelection(weights=[LengthWeight()])(replace(FACTS, lengths=torch.full((8,), 12)))
    assert out.weights.tolist() == [1.0] * 8


def test_selection_hand_computed():
    """Masks leave rows 0, 3, 4; those weigh 0.5 · 1.5, 0.8 · 0.5, 0.5 · 0.5 before they are divided by 1.4 / 3."""
    counts = ~FACTS.scores.isnan()
    selection = SampleSelection(
        masks=[OverlongMask(), DifficultyMask(), WrongAndLongMask(35)], weights=[DifficultyWeight(), LengthWeight()]
    )
    out = selection(FACTS, counts)
    assert out.keep.tolist() == [True, False, False, True, True, False, False, False]
    expected = [0.75 * 3 / 1.4, 0, 0, 0.4 * 3 / 1.4, 0.25 * 3 / 1.4, 0, 0, 0]
    assert out.weights.tolist() == pytest.approx(expected, rel=1e-12)
    assert out.weights[out.keep].mean().item() == pytest.approx(1.0, rel=1e-12)
    assert out.metrics == pytest.approx(
        {
            "actor/max_len_mask_ratio": 6 / 8,
            "actor/difficulty_mask_ratio": 4 / 8,
            "actor/error_len_mask_ratio": 7 / 8,
            "actor/final_mask_ratio": 3 / 8,
            "actor/samples_used": 3,
            "actor/samples_total": 8,
            "actor/sample_weights_mean": 1.0,
            "actor/sample_weights_min": 0.25 * 3 / 1.4,
            "actor/sample_weights_max": 0.75 * 3 / 1.4,
        },
        rel=1e-12,
    )


def test_without_masks_and_weights_all_rows_count_the_same():
    out = SampleSelection()(FACTS)
    assert out.keep.all()
    assert out.weights.tolist() == [1.0] * 8
    assert out.metrics["actor/final_mask_ratio"] == 1


@pytest.mark.parametrize("weights", [[], [LengthWeight()], [DifficultyWeight(), LengthWeight()]])
def test_nothing_left(weights):
    out = SampleSelection([OverlongMask()], weights)(FACTS, torch.zeros(8, dtype=torch.bool))
    assert not out.keep.any()
    assert not out.weights.any()
    assert (out.metrics["actor/samples_used"], out.metrics["actor/final_mask_ratio"]) == (0, 0)
    assert "actor/sample_weights_mean" not in out.metrics


def test_T10_rows_that_do_not_count_change_nothing():
    counts = torch.tensor([1, 1, 1, 0, 1, 1, 1, 0]).bool()
    selection = SampleSelection([OverlongMask()], [DifficultyWeight(), LengthWeight()])
    junk = replace(
        FACTS,
        lengths=torch.where(counts, FACTS.lengths, 10**6),
        difficulty=torch.where(counts, FACTS.difficulty, math.nan),
    )
    clean, dirty = selection(FACTS, counts), selection(junk, counts)
    assert torch.equal(clean.weights, dirty.weights)
    assert clean.metrics == dirty.metrics


class Broken(SampleWeight):
    def __call__(self, facts: SampleFacts, counts: torch.Tensor) -> torch.Tensor:
        return facts.scores


@pytest.mark.parametrize(("row", "value"), [(2, "0.0"), (7, "nan")])
def test_a_weight_that_is_none_is_refused(row, value):
    counts = torch.zeros(8, dtype=torch.bool)
    counts[[0, row]] = True
    with pytest.raises(DataError, match=f"Broken gave row {row} the weight {value}; it must be above 0"):
        SampleSelection(weights=[Broken()])(FACTS, counts)


def rollout(number: int, finish: str = "stop", score: float | None = 1.0, **columns: object) -> Rollout:
    prompt = Prompt(f"task-{number}", (1, 2), "?", columns=columns)
    mask = [0, 0, *[1] * number]
    return Rollout(prompt, number, 0, [1] * len(mask), mask, [0.0] * len(mask), "", finish, (0, 0), score=score)


def test_facts_from_rollouts():
    """All have the same width; only one was cut."""
    rollouts = [rollout(3, difficulty=0.25), rollout(3, "length", None, difficulty="1"), rollout(1, difficulty=0)]
    facts = SampleFacts.from_rollouts(rollouts, SampleSelection(weights=[DifficultyWeight()]).difficulty_column)
    assert facts.scores[[0, 2]].tolist() == [1, 1]
    assert facts.scores[1].isnan()
    assert facts.group_ids.tolist() == [3, 3, 1]
    assert facts.lengths.tolist() == [3, 3, 1]
    assert facts.finished.tolist() == [True, False, True]
    assert facts.difficulty.tolist() == [0.25, 1, 0]
    assert (
        SampleFacts.from_rollouts(rollouts, SampleSelection(weights=[LengthWeight()]).difficulty_column).difficulty
        is None
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "prompt task-2 has no column hardness"),
        ({"hardness": None}, "prompt task-2 has no column hardness"),
        ({"hardness": 1.5}, r"column hardness of prompt task-2 is 1.5; a difficulty is a number in \[0, 1\]"),
        ({"hardness": "hard"}, "column hardness of prompt task-2 is 'hard'"),
        ({"hardness": math.nan}, "column hardness of prompt task-2 is nan"),
    ],
)
def test_bad_difficulties(columns, message):
    with pytest.raises(DataError, match=message):
        SampleFacts.from_rollouts([rollout(1, hardness=0.5), rollout(2, **columns)], "hardness")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DifficultyMask(0.8, 0.2), "DifficultyMask.low is 0.8 and high is 0.2"),
        (lambda: DifficultyMask(math.nan), "DifficultyMask.low is nan"),
        (lambda: WrongAndLongMask(0), "WrongAndLongMask.threshold is 0"),
        (lambda: SampleSelection([OverlongMask(), OverlongMask()]), "OverlongMask twice"),
        (lambda: SampleSelection(weights=[DifficultyWeight("a"), DifficultyWeight("b")]), "from a and b"),
        (
            lambda: SampleSelection(weights=[DifficultyWeight()])(replace(FACTS, difficulty=None)),
            "DifficultyWeight needs the column difficulty",
        ),
    ],
)
def test_bad_settings(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


class Owner:
    """Takes the selection as a module would."""

    def __init__(self, samples: SampleSelection = SampleSelection()) -> None:  # noqa: B008
        self.samples = samples


YAML = """
samples:
  masks: [OverlongMask, {class_path: WrongAndLongMask, init_args: {threshold: 35}}]
  weights: [LengthWeight, {class_path: DifficultyWeight, init_args: {column: hardness}}]
"""


def test_from_yaml():
    tree = Resolver(lambda name: None).arguments(yaml.safe_load(YAML), Owner, "model")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Owner, "model")
    made = parser.instantiate_classes(parser.parse_object({"model": tree})).model.samples
    assert [type(part) for part in (*made.masks, *made.weights)] == [
        OverlongMask,
        WrongAndLongMask,
        LengthWeight,
        DifficultyWeight,
    ]
    assert (made.masks[1].threshold, made.difficulty_column) == (35, "hardness")
