"""The worker processes of a reward pool."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from roll_lightning.data.types import Rollout
from roll_lightning.rewards.process import WorkerProcess
from roll_lightning.rewards.results import Fault, Outcome


@dataclass(frozen=True)
class Task:
    """One rollout for one reward.

    Args:
        reward: the reward's number in the worker's :class:`~roll_lightning.rewards.worker.Setup`.
        rollout: what to score.
        deadline: seconds for it.
        value_on_overrun: see :class:`~roll_lightning.rewards.RewardFunction`.
    """

    reward: int
    rollout: Rollout
    deadline: float
    value_on_overrun: float | None = None


class Crew:
    """Up to ``size`` workers, started when they are first needed and replaced when they die.

    Args:
        setup: the pickled :class:`~roll_lightning.rewards.worker.Setup` of each worker.
        size: how many workers at most.
        start_deadline: seconds for a worker to start and load the rewards.
    """

    def __init__(self, setup: bytes, size: int, start_deadline: float) -> None:
        self._setup = setup
        self._start_deadline = start_deadline
        self._workers: list[WorkerProcess | None] = [None] * size
        # Linux kills a worker when the thread that started it ends, so one thread that lasts starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="reward-worker-starter")
        self._turn = threading.Lock()
        self.close = weakref.finalize(self, _close, self._workers, self._starter, os.getpid())

    def pids(self) -> list[int]:
        """Process ids of the workers that have been started and not replaced."""
        return [worker.pid for worker in self._workers if worker is not None]

    def run(self, tasks: Sequence[Task], stop_at_failure: bool) -> dict[int, Outcome]:
        """The outcome of each task by its place in ``tasks``.

        Args:
            tasks: the work; one call at a time, a second thread waits for its turn.
            stop_at_failure: begin no further task after a failure; outcomes are then missing.

        Raises:
            RewardError: a worker does not start.
        """
        outcomes: dict[int, Outcome] = {}
        waiting = deque(enumerate(tasks))
        stop = threading.Event()

        def work(slot: int) -> None:
            try:
                while waiting and not stop.is_set():
                    try:
                        place, task = waiting.popleft()
                    except IndexError:  # another thread took the last one
                        return
                    outcome = outcomes[place] = self._outcome(slot, task)
                    if stop_at_failure and isinstance(outcome, Fault) and outcome.is_failure:
                        stop.set()
            except BaseException:
                stop.set()
                raise

        slots = range(min(len(self._workers), len(tasks)))
        with self._turn, ThreadPoolExecutor(max(len(slots), 1), thread_name_prefix="reward-worker") as threads:
            futures = [threads.submit(work, slot) for slot in slots]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # Ctrl-C as well: let no thread wait for its deadline
                stop.set()
                for worker in filter(None, self._workers):
                    worker.terminate()
                raise
        return outcomes

    def _outcome(self, slot: int, task: Task) -> Outcome:
        outcome = self._worker(slot).ask(task.reward, task.rollout, task.deadline)
        if isinstance(outcome, Fault) and outcome.overrun:
            return replace(outcome, value=task.value_on_overrun)
        return outcome

    def _worker(self, slot: int) -> WorkerProcess:
        worker = self._workers[slot]
        if worker is not None and worker.is_idle():
            return worker
        if worker is not None:  # it died or was killed
            worker.kill()
        worker = self._workers[slot] = self._starter.submit(WorkerProcess).result(self._start_deadline)
        worker.prepare(self._setup, self._start_deadline)
        return worker


def _close(workers: list[WorkerProcess | None], starter: ThreadPoolExecutor, owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer does not own the workers
        return
    for slot, worker in enumerate(workers):
        if worker is not None:
            worker.kill()
        workers[slot] = None
    starter.shutdown(wait=False)
