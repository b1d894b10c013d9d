"""1 for the right answer, else 0."""

from __future__ import annotations

from collections.abc import Sequence

from roll_lightning.data.types import Rollout
from roll_lightning.rewards.base import RewardFunction, RewardResult
from roll_lightning.rewards.regex import answer_pattern


class ExactMatch(RewardFunction):
    r"""Compares the response with the prompt's answer as strings: 1.0 or 0.0, ``None`` without an answer.

    Where the answer is a list, each of its items is right; those that are null do not count.

    Args:
        strip: ignore white space around both.
        ignore_case: ignore upper and lower case.
        extract: a regular expression with one group; the group of its last match in the response is compared instead of
            the whole response, e.g. ``'=\s*(-?\d+)'``. A response without a match scores 0.0.

    Raises:
        ConfigError: ``extract`` is no regular expression, or has not exactly one group.
    """

    def __init__(self, strip: bool = True, ignore_case: bool = False, extract: str | None = None) -> None:
        self.strip = strip
        self.ignore_case = ignore_case
        self.extract = None if extract is None else answer_pattern("ExactMatch.extract", extract)
        # A user's pattern can take for ever on a model's text; plain comparison cannot.
        self.in_process = extract is None

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """1.0, 0.0 or ``None`` for each rollout."""
        return [RewardResult(self._score(rollout)) for rollout in rollouts]

    def _score(self, rollout: Rollout) -> float | None:
        answer = rollout.prompt.answer
        answers = [one for one in (answer if isinstance(answer, list | tuple) else [answer]) if one is not None]
        if not answers:
            return None
        found: str | None = rollout.text
        if self.extract is not None:
            matches = list(self.extract.finditer(rollout.text))
            found = matches[-1].group(1) if matches else None
        return float(found is not None and self._normal(found) in [self._normal(str(one)) for one in answers])

    def _normal(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text
