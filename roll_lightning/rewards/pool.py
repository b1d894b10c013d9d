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
from roll_lightning.rewards.crew import Crew, Task
from roll_lightning.rewards.domains import serves
from roll_lightning.rewards.packing import pack, refuse_while_loading_main
from roll_lightning.rewards.results import Fault, Outcome, Verdict, evaluate, verdict
from roll_lightning.rewards.worker import Setup

OnError = Literal["raise", "none"]
_log = logging.getLogger(__name__)


class RewardPool:
    """Scores rollouts with each of several rewards that serves their domain.

    Rewards with ``in_process`` run here. All others run in worker processes, one rollout per call; a worker that has no
    answer by the deadline is killed and replaced, which costs that one item. A reward fails on a rollout when it
    raises, hangs, ends its process, or returns the wrong count, something that is no number, NaN or infinity; but one
    with a ``value_on_overrun`` gives that when it hangs or ends its process. Workers start on first use, ignore Ctrl-C,
    die with the trainer, and are gone after :meth:`close` or with the pool.

    Args:
        rewards: what to run; those that go to workers must be picklable.
        workers: processes at most, per rank.
        deadline: seconds for one rollout and one reward in a worker, where the reward has no deadline of its own.
        start_deadline: seconds for a worker to start, imports and ``warm_up`` of the rewards included.
        on_error: ``"raise"`` ends the run at the first failure; ``"none"`` makes the value ``None``, counts it in
            ``failures`` and logs it.

    Attributes:
        names: the rewards' names, in their order.
        failures: failed rollouts by name, since the pool was made; only under ``on_error="none"``.
        overruns: rollouts by name that were given ``value_on_overrun``, since the pool was made.

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
        _check_overruns(self.names, self.rewards)
        self.workers = workers
        self.deadline = deadline
        self.start_deadline = start_deadline
        self.on_error = on_error
        self.failures: Counter[str] = Counter()
        self.overruns: Counter[str] = Counter()
        self._remote = [n for n, reward in enumerate(self.rewards) if not getattr(reward, "in_process", False)]
        self._setup = Setup(*pack([self.names[n] for n in self._remote], [self.rewards[n] for n in self._remote]))
        self._crew: Crew | None = None

    def score(self, rollouts: Sequence[Rollout]) -> list[dict[str, Verdict]]:
        """For each rollout the verdict of each reward that serves its domain, by name.

        Raises:
            RewardError: under ``on_error="raise"``, the first failure; a worker that does not start, always.
        """
        places = [
            [place for place, rollout in enumerate(rollouts) if serves(reward, rollout.prompt.domain)]
            for reward in self.rewards
        ]
        outcomes: dict[tuple[int, int], Outcome] = {}  # by number of the reward and place of the rollout
        for number in set(range(len(self.rewards))) - set(self._remote):
            found = evaluate(self.rewards[number], [rollouts[place] for place in places[number]])
            outcomes |= {(number, place): outcome for place, outcome in zip(places[number], found, strict=True)}
        self._raise_first_failure(outcomes, rollouts)
        outcomes |= self._ask_workers(rollouts, places)
        self._raise_first_failure(outcomes, rollouts)
        verdicts: list[dict[str, Verdict]] = [{} for _ in rollouts]
        for number, name in enumerate(self.names):
            self._count_faults(name, [(rollouts[place], outcomes[number, place]) for place in places[number]])
            for place in places[number]:
                verdicts[place][name] = verdict(outcomes[number, place])
        return verdicts

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

    def _ask_workers(
        self, rollouts: Sequence[Rollout], places: Sequence[Sequence[int]]
    ) -> dict[tuple[int, int], Outcome]:
        keys = [(number, place) for number in self._remote for place in places[number]]
        if not keys:
            return {}
        if self._crew is None:
            self._crew = Crew(pickle.dumps(self._setup), self.workers, self.start_deadline)
        tasks = [self._task(number, rollouts[place]) for number, place in keys]
        outcomes = self._crew.run(tasks, stop_at_failure=self.on_error == "raise")
        return {keys[task]: outcome for task, outcome in outcomes.items()}

    def _task(self, number: int, rollout: Rollout) -> Task:
        reward = self.rewards[number]
        deadline = getattr(reward, "deadline", None)
        return Task(
            self._remote.index(number),
            rollout,
            self.deadline if deadline is None else deadline,
            getattr(reward, "value_on_overrun", None),
        )

    def _raise_first_failure(self, outcomes: dict[tuple[int, int], Outcome], rollouts: Sequence[Rollout]) -> None:
        if self.on_error != "raise":
            return
        for (number, place), outcome in sorted(outcomes.items(), key=lambda item: item[0]):
            if isinstance(outcome, Fault) and outcome.is_failure:
                raise RewardError(
                    f"{_describe(self.names[number], rollouts[place], outcome)}; mend the reward, give it more time "
                    "(deadline), or set on_error: none to count such rollouts as not scored"
                )

    def _count_faults(self, name: str, outcomes: Sequence[tuple[Rollout, Outcome]]) -> None:
        faults = [(rollout, outcome) for rollout, outcome in outcomes if isinstance(outcome, Fault)]
        for counter, value, what in ((self.failures, True, "not scored"), (self.overruns, False, "overran")):
            found = [(rollout, fault) for rollout, fault in faults if fault.is_failure is value]
            if found:
                counter[name] += len(found)
                _log.warning(
                    "%d of %d rollouts %s; the first: %s", len(found), len(outcomes), what, _describe(name, *found[0])
                )


def _describe(name: str, rollout: Rollout, fault: Fault) -> str:
    counted = "" if fault.is_failure else f", which counts as {fault.value:g}"
    return f"reward {name!r} {fault.reason}{counted}, on prompt {rollout.prompt.id!r} (sample {rollout.sample})"


def _check_names(names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(
                f"rewards has {count} entries named {name!r}; wrap them in WeightedReward and give each its own `name`"
            )


def _check_overruns(names: Sequence[str], rewards: Sequence[Reward]) -> None:
    for name, reward in zip(names, rewards, strict=True):
        seconds, value = getattr(reward, "deadline", None), getattr(reward, "value_on_overrun", None)
        if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
            raise ConfigError(
                f"reward {name!r} has deadline {seconds}; it must be a number of seconds above 0, or null"
            )
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"reward {name!r} has value_on_overrun {value}; it must be a finite number, or null")


def _check_settings(workers: int, deadline: float, start_deadline: float, on_error: str) -> None:
    if workers < 1:
        raise ConfigError(f"workers is {workers}; rewards need 1 or more")
    for key, seconds in {"deadline": deadline, "start_deadline": start_deadline}.items():
        if not (seconds > 0 and math.isfinite(seconds)):
            raise ConfigError(f"{key} is {seconds}; it must be a number of seconds above 0")
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error is {on_error!r}; it must be one of {', '.join(get_args(OnError))}")
