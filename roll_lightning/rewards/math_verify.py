"""1 for a mathematically equal answer, else 0."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.rewards.base import RewardFunction, RewardResult
from roll_lightning.rewards.math_answer import end_of, gold_of, has_box, last_boxed, ordinary, other_base, tidy
from roll_lightning.rewards.regex import answer_pattern


class MathVerify(RewardFunction):
    r"""Compares the response with the prompt's answer as mathematics, by the library math-verify: 1.0 or 0.0.

    ``1/2``, ``0.5`` and ``\frac{1}{2}`` are equal, and so are ``x^2+2x+1`` and ``(x+1)^2``, ``1,000`` and ``1000``,
    ``\{1,2\}`` and ``2, 1``. Equal strings are right without any mathematics. The response's answer is what its last
    ``\boxed{…}`` holds; without a box it is what math-verify finds at the end: LaTeX between dollars, or a number, one
    that follows "answer is" before others, the last before earlier ones. The prompt's answer may be a number, a bare
    expression, LaTeX with or without dollars or a box, a solution of GSM8K (``… #### 18``), or a list of answers of
    which each is right. Where it is missing, or math-verify cannot read it, the value is ``None``.

    Some short texts (power towers, factorials, deep nesting) would take hours or all memory. The worker is killed at
    the deadline and the answer is wrong: 0.0, not ``None``, or a policy could escape being wrong by writing such texts.

    Words are products of letters to math-verify ("pairs" equals "Paris"): use :class:`ExactMatch` for them.

    Args:
        boxed_only: a response without ``\boxed{…}`` scores 0.0.
        after: a text behind whose last occurrence the answer must stand, e.g. ``</think>``; a response without it
            scores 0.0.
        extract: a regular expression with one group; the group of its last match holds the answer, e.g.
            ``'(?s)<answer>(.*?)</answer>'``, as a bare expression or with a box. A response without a match scores 0.0.
        max_length: longest answer in characters; a longer one scores 0.0. Without a box, this much of the response's
            end is searched.
        decimals: to how many decimals floating point numbers are rounded before they are compared. Small ones must
            also agree in half as many significant digits, or all below 0.0000005 would be equal.
        deadline: seconds for one answer; ``None`` takes ``rollout.reward_deadline``.

    Raises:
        ConfigError: an argument is out of its range, or ``extract`` is no regular expression with one group.
    """

    value_on_overrun = 0.0

    def __init__(
        self,
        boxed_only: bool = False,
        after: str | None = None,
        extract: str | None = None,
        max_length: int = 1000,
        decimals: int = 6,
        deadline: float | None = None,
    ) -> None:
        if after == "":
            raise ConfigError("MathVerify.after is empty; leave it out to search the whole response")
        if max_length < 1:
            raise ConfigError(f"MathVerify.max_length is {max_length}; it must be 1 or more characters")
        if decimals < 0:
            raise ConfigError(f"MathVerify.decimals is {decimals}; it must be 0 or more")
        self.boxed_only = boxed_only
        self.after = after
        self.extract: re.Pattern[str] | None = (
            None if extract is None else answer_pattern("MathVerify.extract", extract)
        )
        self.max_length = max_length
        self.decimals = decimals
        self.deadline = deadline

    def warm_up(self) -> None:
        """Import math-verify and let it build its grammars."""
        # It warns that it has no time limit of its own; the worker's deadline is the better one.
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        _equal(_read(r"\frac{1}{2}"), _read("0.5"), self.decimals)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """1.0, 0.0 or ``None`` for each rollout."""
        return [RewardResult(self._score(rollout.text, rollout.prompt.answer)) for rollout in rollouts]

    def _score(self, text: str, answer: Any) -> float | None:
        answers = answer if isinstance(answer, list | tuple) else [answer]
        golds = [
            gold_of(one)
            for one in answers
            if isinstance(one, str | int | float | Decimal) and not isinstance(one, bool)
        ]
        readable = [gold for gold in golds if gold and _read_gold(gold)]
        if not readable:
            return None
        found = self._find(text)
        if found is None:
            return 0.0
        if tidy(found.text) in readable:
            return 1.0
        read = _read(tidy(found.text)) if found.is_expression else _search(ordinary(found.text))
        candidates = [gold for gold in readable if not other_base(gold, found.text)]
        return float(any(_equal(_read_gold(gold), read, self.decimals) for gold in candidates))

    def _find(self, text: str) -> _Found | None:
        if self.after is not None:
            _, mark, text = text.rpartition(self.after)
            if not mark:
                return None
        if self.extract is not None:
            matches = list(self.extract.finditer(text))
            if not matches:
                return None
            text = matches[-1].group(1) or ""
        if has_box(text):
            text = last_boxed(text) or ""
        elif self.boxed_only:
            return None
        elif self.extract is None:
            return _Found(end_of(text, self.max_length), is_expression=False)
        return _Found(text, is_expression=True) if 0 < len(text) <= self.max_length else None


@dataclass(frozen=True)
class _Found:
    """The answer itself, or a text that has it at its end."""

    text: str
    is_expression: bool


@lru_cache(maxsize=1024)
def _read_gold(gold: str) -> tuple[Any, ...]:
    """The prompt's answer as math-verify reads it; empty if it cannot. Kept: the samples of a group share it."""
    read = _search(gold) if any(mark in gold for mark in ("$", r"\(", r"\[")) else _read(gold)
    return read if any(not isinstance(one, str) for one in read) else ()


def _read(expression: str) -> tuple[Any, ...]:
    return _search(rf"\boxed{{{expression}}}")


def _search(text: str) -> tuple[Any, ...]:
    """The answer in a text, as a SymPy expression and as a string; the former may be missing, or both."""
    from math_verify import parse

    return tuple(parse(text, parsing_timeout=None))


def _equal(gold: tuple[Any, ...], found: tuple[Any, ...], decimals: int) -> bool:
    from math_verify import verify

    equal = bool(verify(list(gold), list(found), float_rounding=decimals, timeout_seconds=None))
    return equal and not _differ_where_small(gold, found, decimals)


def _differ_where_small(gold: tuple[Any, ...], found: tuple[Any, ...], decimals: int) -> bool:
    """Whether two numbers are equal only because rounding leaves little or nothing of them."""
    numbers = [one for answer in (gold, found) for one in answer[:1] if getattr(one, "is_Number", False)]
    if len(numbers) < 2 or not any(number.is_Float for number in numbers):
        return False
    (first, second), size = numbers, max(map(abs, numbers))
    share = 10 ** (-decimals / 2)
    return bool(size < share and abs(first - second) > share * size)
