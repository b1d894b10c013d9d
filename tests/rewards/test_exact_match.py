from __future__ import annotations

import pytest
from reward_samples import rollout

from roll_lightning.errors import ConfigError
from roll_lightning.rewards import ExactMatch, RewardResult


def value(text: str, answer: object = "42", **options: object) -> float | None:
    (result,) = ExactMatch(**options)([rollout(text, answer)])
    return result.value


@pytest.mark.parametrize(
    ("text", "answer", "options", "expected"),
    [
        ("42", "42", {}, 1.0),
        ("43", "42", {}, 0.0),
        ("", "42", {}, 0.0),
        ("", "", {}, 1.0),
        (" 42\n", "42", {}, 1.0),
        (" 42\n", "42", {"strip": False}, 0.0),
        ("42", " 42 ", {}, 1.0),
        ("42", 42, {}, 1.0),  # a number in the data set
        ("4 2", "42", {}, 0.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "paris", {"ignore_case": True}, 1.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),
        ("42", None, {}, None),
        ("None", None, {}, None),  # not the text of a missing answer
        ("41 = 41, so 6*7 = 42", "42", {"extract": r"= (\d+)"}, 1.0),  # the last match, not the first
        ("6*7 = 42, not 43 = 43", "42", {"extract": r"= (\d+)"}, 0.0),
        ("42", "42", {"extract": r"= (\d+)"}, 0.0),  # no match
        ("xb", "", {"extract": r"x(a)?b"}, 0.0),  # the group took no part in the match
        ("= 42 ", "42", {"extract": r"=(.*)"}, 1.0),
        ("= 42 ", "42", {"extract": r"=(.*)", "strip": False}, 0.0),
        ("42", None, {"extract": r"= (\d+)"}, None),
    ],
)
def test_golden(text, answer, options, expected):
    assert value(text, answer, **options) == expected


def test_order_is_that_of_the_rollouts():
    results = ExactMatch()([rollout("42"), rollout("1"), rollout("42", None), rollout("42")])
    assert [result.value for result in results] == [1.0, 0.0, None, 1.0]


@pytest.mark.parametrize(
    ("extract", "needle"),
    [("(", "no regular expression"), (r"\d+", "0 groups"), (r"(\d)(\d)", "2 groups")],
)
def test_bad_extract_is_refused_by_name(extract, needle):
    with pytest.raises(ConfigError, match=r"ExactMatch\.extract") as error:
        ExactMatch(extract=extract)
    assert needle in str(error.value)
    assert repr(extract) in str(error.value)


def test_only_a_users_pattern_needs_a_worker():
    assert ExactMatch().in_process
    assert not ExactMatch(extract="(a)").in_process


def test_each_answer_of_a_list_is_right():
    results = ExactMatch()([rollout(text, ["4", 42, None]) for text in ("42", "4", "41", "None", "['4', 42, None]")])
    assert [result.value for result in results] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert ExactMatch()([rollout("", []), rollout("None", [None])]) == [RewardResult(None)] * 2
