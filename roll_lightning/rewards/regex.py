"""1 for a response of the wanted form, else 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.rewards.base import RewardFunction, RewardResult

MatchMode = Literal["fullmatch", "search"]


def compile_pattern(key: str, pattern: str) -> re.Pattern[str]:
    """``re.compile`` whose error names the key and the pattern.

    Raises:
        ConfigError: the pattern is no regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{key} is {pattern!r}, which is no regular expression: {error}; mend the pattern") from error


def answer_pattern(key: str, pattern: str) -> re.Pattern[str]:
    """The regular expression, compiled.

    Raises:
        ConfigError: it is none, or has not exactly one group.
    """
    compiled = compile_pattern(key, pattern)
    if compiled.groups != 1:
        raise ConfigError(
            f"{key} is {pattern!r} with {compiled.groups} groups; it needs exactly one, around the answer (write "
            "further ones as (?:…))"
        )
    return compiled


class RegexMatch(RewardFunction):
    """A format reward: 1.0 where the response matches a regular expression, else 0.0.

    Args:
        pattern: the regular expression, in Python's syntax; ``(?s)`` in front lets ``.`` match line breaks.
        mode: ``"fullmatch"`` (the whole response) or ``"search"`` (anywhere in it).

    Raises:
        ConfigError: ``pattern`` is no regular expression, or ``mode`` is unknown.
    """

    def __init__(self, pattern: str, mode: MatchMode = "fullmatch") -> None:
        if mode not in get_args(MatchMode):
            raise ConfigError(f"RegexMatch.mode is {mode!r}; it must be one of {', '.join(get_args(MatchMode))}")
        self.pattern = compile_pattern("RegexMatch.pattern", pattern)
        self.mode = mode

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """1.0 or 0.0 for each rollout."""
        match = self.pattern.fullmatch if self.mode == "fullmatch" else self.pattern.search
        return [RewardResult(float(match(rollout.text) is not None)) for rollout in rollouts]
