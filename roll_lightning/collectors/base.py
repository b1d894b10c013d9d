"""What a collector is: it turns prompts into scored rollouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from roll_lightning.data.types import Prompt, Rollout

Purpose = Literal["train", "validate", "predict"]


@dataclass(frozen=True)
class RolloutTask:
    """A prompt of an iteration, to be answered several times.

    Args:
        prompt: what to answer.
        group: number of its group, unique within the iteration.
        samples: how many answers.
        greedy: take the most likely tokens instead of sampling.
    """

    prompt: Prompt
    group: int
    samples: int
    greedy: bool = False


class Collector(ABC):
    """Turns tasks into scored rollouts. A rank asks for its own tasks only."""

    @abstractmethod
    def collect(self, tasks: Sequence[RolloutTask], iteration: int, purpose: Purpose) -> list[Rollout]:
        """The rollouts of the tasks, group by group in the order of the tasks."""

    def close(self) -> None:  # noqa: B027
        """Free workers and engines, where there are any."""
