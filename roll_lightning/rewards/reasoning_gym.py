"""1 for an answer that reasoning-gym's scorer of the task accepts, else 0."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards.base import RewardFunction, RewardResult
from roll_lightning.rewards.harmless import ALGEBRA, ARITHMETIC, NO_CALL, is_harmless
from roll_lightning.rewards.regex import answer_pattern

COLUMN = "reasoning_gym"
"""The column of a prompt that holds its task: ``{"task": name, "entry": what reasoning-gym made}``."""

# Wrong answers get up to 0.25 from some scorers, and right ones 1 up to rounding.
_FULL_MARKS = 0.999
_NONSENSE = "nonsense"
# Their scorers evaluate the answer as Python.
EVALUATED = {
    "binary_matrix": NO_CALL,
    "countdown": ARITHMETIC,
    "intermediate_integration": ALGEBRA,
    "n_queens": NO_CALL,
    "polynomial_multiplication": ALGEBRA,
    "puzzle24": ARITHMETIC,
    "simple_integration": ALGEBRA,
    "spiral_matrix": NO_CALL,
    "string_insertion": NO_CALL,
}


class ReasoningGymReward(RewardFunction):
    """Scores the answer with the scorer of its reasoning-gym task: 1.0 for full marks (0.999 or more), else 0.0.

    The prompt's column ``reasoning_gym`` names the task and holds the entry, as
    :class:`~roll_lightning.data.reasoning_gym.ReasoningGymTasks` writes it. Partial marks count as wrong: most scorers
    give them for form alone. A scorer that raises on an answer makes it wrong, since several do on garbage; one that
    hangs does so, too (see ``value_on_overrun``). But the value is ``None`` where the scorer cannot tell right from
    wrong: without the column, where it does not give the entry's own answer full marks, and where it gives them to
    nonsense.

    Nine scorers evaluate the answer as Python code. There, an answer that is more than arithmetic, algebra, or a list
    without a call is wrong, and is not evaluated. (That also closes ways out: ``Integral(f, x)`` for an antiderivative,
    ``cos(0)`` for a number that the puzzle did not give.)

    Args:
        extract: a regular expression with one group; the group of its last match is the answer, e.g.
            ``'(?s)<answer>(.*?)</answer>'``; a response without a match scores 0.0. ``None`` takes the whole response.
            White space around the answer is dropped.
        deadline: seconds for one answer; ``None`` takes ``rollout.reward_deadline``.

    Raises:
        ConfigError: reasoning-gym is not installed, or ``extract`` is no regular expression with one group.
    """

    value_on_overrun = 0.0

    def __init__(self, extract: str | None = None, deadline: float | None = None) -> None:
        if find_spec("reasoning_gym") is None:
            raise ConfigError(
                "ReasoningGymReward needs reasoning-gym, which is not installed; pip install "
                "'roll-lightning[reasoning-gym]'"
            )
        self.extract: re.Pattern[str] | None = (
            None if extract is None else answer_pattern("ReasoningGymReward.extract", extract)
        )
        self.deadline = deadline

    def warm_up(self) -> None:
        """Import reasoning-gym."""
        import reasoning_gym  # noqa: F401

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """1.0, 0.0 or ``None`` for each rollout.

        Raises:
            RewardError: the column ``reasoning_gym`` holds something else than a known task and its entry.
        """
        return [RewardResult(self._score(rollout)) for rollout in rollouts]

    def _score(self, rollout: Rollout) -> float | None:
        held = rollout.prompt.columns.get(COLUMN)
        if held is None:
            return None
        task, entry = _task_and_entry(held)
        usable = _usable_entry(task, json.dumps(entry))
        if usable is None:
            return None
        answer: str | None = rollout.text
        if self.extract is not None:
            matches = list(self.extract.finditer(rollout.text))
            answer = matches[-1].group(1) if matches else None
        if answer is None or (task in EVALUATED and not is_harmless(answer, EVALUATED[task])):
            return 0.0
        return float(_has_full_marks(task, answer.strip(), usable))


def _task_and_entry(held: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(held, dict) or not isinstance(held.get("entry"), dict) or "task" not in held:
        raise RewardError(f"the column {COLUMN} must hold a task and its entry, not {str(held)[:80]}")
    from reasoning_gym.factory import DATASETS

    if held["task"] not in DATASETS:
        raise RewardError(f"the column {COLUMN} names the task {held['task']!r}, which reasoning-gym does not know")
    return held["task"], held["entry"]


@lru_cache(maxsize=512)
def _usable_entry(task: str, entry: str) -> dict[str, Any] | None:
    """The entry in a form that its scorer works with; ``None`` if it works with none. Kept: a group shares it."""
    plain = json.loads(entry)
    # JSON knows no tuples, and a scorer that compares with one does not take a list.
    for form in (plain, _with_tuples(plain)):
        if _has_full_marks(task, form.get("answer"), form) and not _has_full_marks(task, _NONSENSE, form):
            return form
    return None


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tuples(held) for key, held in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


@lru_cache(maxsize=128)
def _scorer(task: str) -> Callable[..., float]:
    from reasoning_gym import get_score_answer_fn

    return get_score_answer_fn(task)


def _has_full_marks(task: str, answer: str | None, entry: dict[str, Any]) -> bool:
    scorer = _scorer(task)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(scorer(answer, entry) >= _FULL_MARKS)
    # Each scorer fails on garbage in its own way; that the entry itself is sound has been seen before.
    except Exception:
        return False
