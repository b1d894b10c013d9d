from __future__ import annotations

import pytest
from reward_samples import rollout

from roll_lightning.errors import ConfigError
from roll_lightning.rewards import RegexMatch


@pytest.mark.parametrize(
    ("pattern", "mode", "text", "expected"),
    [
        (r"\d+", "fullmatch", "42", 1.0),
        (r"\d+", "fullmatch", "42.", 0.0),
        (r"\d+", "fullmatch", "x42", 0.0),
        (r"\d+", "search", "x42.", 1.0),
        (r"\d+", "search", "none", 0.0),
        (r"<think>.*</think>.*", "fullmatch", "<think>a\nb</think>c", 0.0),
        (r"(?s)<think>.*</think>.*", "fullmatch", "<think>a\nb</think>c", 1.0),
        (r"", "fullmatch", "", 1.0),
    ],
)
def test_golden(pattern, mode, text, expected):
    (result,) = RegexMatch(pattern, mode)([rollout(text)])
    assert result.value == expected


def test_bad_pattern_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"RegexMatch\.pattern is '\[a'.*no regular expression"):
        RegexMatch("[a")


def test_bad_mode_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"RegexMatch\.mode is 'match'.*fullmatch, search"):
        RegexMatch("a", "match")  # type: ignore[arg-type]
