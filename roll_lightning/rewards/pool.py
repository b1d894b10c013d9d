"""Runs rewards with a deadline for each rollout, away from the trainer's process."""

from __future__ import annotations

import logging
import math
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards.base import Reward, reward_name
from roll_lightning.rewards.crew import Crew
from roll_lightning.rewards.packing import pack, refuse_while_loading_main
from roll_lightning.rewards.results import Fault, Outcome, evaluate
from roll_lightning.rewards.worker import Setup

OnError = Literal["raise", "none"]
_log = logging.getLogger(__name__)


class RewardPool:
    """Scores rollouts with each of several rewards.

    Rewards with ``in_process`` run here. All others run in worker processes, one rollout per call; a worker that has no
    answer by the deadline is killed and replaced, which costs that one item. A reward fails on a rollout when it
    raises, hangs, ends its process, or returns the wrong count, something that is no number, NaN or infinity. Workers
    start on first use, ignore Ctrl-C, die with the trainer, and are gone after :meth:`close` or with the pool.

    Args:
        rewards: what to run; those that go to workers must be picklable.
        workers: processes at most, per rank.
        deadline: seconds for one rollout and one reward in a worker.
        start_deadline: seconds for a worker to start, imports of the rewards' modules included.
        on_error: ``"raise"`` ends the run at the first failure; ``"none"`` makes the value ``None``, counts it in
            ``failures`` and logs it.

    Attributes:
        names: the rewards' names, in their order.
        failures: failed rollouts by name, since the pool was made; only under ``on_error="none"``.

    Raises:
        ConfigError: two rewards have one name, one cannot be sent to a worker, or a number is out of range.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        workers: int = 2,
        deadline: float = 10.0,
        start_deadline: float = 120.0,
        on_error: OnError = "raise",
    ) -> None:
        refuse_while_loading_main()
        _check_settings(workers, deadline, start_deadline, on_error)
        self.rewards = tuple(rewards)
        self.names = tuple(reward_name(reward) for reward in self.rewards)
        _check_names(self.names)
        self.workers = workers
        self.deadline = deadline
        self.start_deadline = start_deadline
        self.on_error = on_error
        self.failures: Counter[str] = Counter()
        self._remote = [n for n, reward in enumerate(self.rewards) if not getattr(reward, "in_process", False)]
        self._setup = Setup(*pack([self.names[n] for n in self._remote], [self.rewards[n] for n in self._remote]))
        self._crew: Crew | None = None

    def score(self, rollouts: Sequence[Rollout]) -> dict[str, list[float | None]]:
        """The values of each reward by name, in the order of the rollouts.

        Raises:
            RewardError: under ``on_error="raise"``, the first failure; a worker that does not start, always.
        """
        outcomes: dict[tuple[int, int], Outcome] = {}  # by number of the reward and place of the rollout
        for number in set(range(len(self.rewards))) - set(self._remote):
            for place, outcome in enumerate(evaluate(self.rewards[number], rollouts)):
                outcomes[number, place] = outcome
        self._raise_first_fault(outcomes, rollouts)
        outcomes |= self._ask_workers(rollouts)
        self._raise_first_fault(outcomes, rollouts)
        return {
            name: self._values(name, rollouts, [outcomes[number, place] for place in range(len(rollouts))])
            for number, name in enumerate(self.names)
        }

    def close(self) -> None:
        """End the worker processes; they start again if the pool is used again."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._crew.pids() if self._crew is not None else []

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the pool starts workers of its own.
        return {**self.__dict__, "_crew": None}

    def _ask_workers(self, rollouts: Sequence[Rollout]) -> dict[tuple[int, int], Outcome]:
        keys = [(number, place) for number in self._remote for place in range(len(rollouts))]
        if not keys:
            return {}
        if self._crew is None:
            self._crew = Crew(pickle.dumps(self._setup), self.workers, self.start_deadline)
        tasks = [(self._remote.index(number), rollouts[place]) for number, place in keys]
        outcomes = self._crew.run(tasks, self.deadline, stop_at_fault=self.on_error == "raise")
        return {keys[task]: outcome for task, outcome in outcomes.items()}

    def _raise_first_fault(self, outcomes: dict[tuple[int, int], Outcome], rollouts: Sequence[Rollout]) -> None:
        if self.on_error != "raise":
            return
        for (number, place), outcome in sorted(outcomes.items(), key=lambda item: item[0]):
            if isinstance(outcome, Fault):
                raise RewardError(
                    f"{_describe(self.names[number], rollouts[place], outcome)}; mend the reward, give it more time "
                    "(deadline), or set on_error: none to count such rollouts as not scored"
                )

    def _values(self, name: str, rollouts: Sequence[Rollout], outcomes: Sequence[Outcome]) -> list[float | None]:
        """Outcomes as values; faults become ``None``, are counted and logged."""
        faults = [
            (rollout, fault) for rollout, fault in zip(rollouts, outcomes, strict=True) if isinstance(fault, Fault)
        ]
        if faults:
            self.failures[name] += len(faults)
            _log.warning(
                "%d of %d rollouts not scored; the first: %s", len(faults), len(rollouts), _describe(name, *faults[0])
            )
        return [None if isinstance(outcome, Fault) else outcome for outcome in outcomes]


def _describe(name: str, rollout: Rollout, fault: Fault) -> str:
    return f"reward {name!r} {fault.reason}, on prompt {rollout.prompt.id!r} (sample {rollout.sample})"


def _check_names(names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(
                f"rewards has {count} entries named {name!r}; wrap them in WeightedReward and give each its own `name`"
            )


def _check_settings(workers: int, deadline: float, start_deadline: float, on_error: str) -> None:
    if workers < 1:
        raise ConfigError(f"workers is {workers}; rewards need 1 or more")
    for key, seconds in {"deadline": deadline, "start_deadline": start_deadline}.items():
        if not (seconds > 0 and math.isfinite(seconds)):
            raise ConfigError(f"{key} is {seconds}; it must be a number of seconds above 0")
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error is {on_error!r}; it must be one of {', '.join(get_args(OnError))}")
