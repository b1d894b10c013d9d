"""Tasks of reasoning-gym, made anew from a seed: endless, with a verifier for each."""

from __future__ import annotations

import io
import json
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import numpy as np

from roll_lightning.data.encode import first_line
from roll_lightning.data.jsonl import Row
from roll_lightning.data.sources import RowSource
from roll_lightning.engines.base import derive_seed
from roll_lightning.errors import ConfigError
from roll_lightning.rewards.reasoning_gym import COLUMN

_NO_ANSWER = "its entries have no answer, so nothing shows that its scorer accepts a right one"
DENIED = {
    "boxnet": _NO_ANSWER,
    "codeio": "it runs programs written by a model in the process that trains",
    "coin_flip": "its scorer gives 0 full marks for any probability",
    "complex_arithmetic": "its scorer gives nan full marks",
    "composite": "it is a mixture; name the tasks themselves",
    "game_of_life_halting": "its scorer gives any answer full marks",
    "graph_color": _NO_ANSWER,
    "propositional_logic": _NO_ANSWER,
    "puzzle24": "its scorer takes any four numbers that make 24, so one answer solves every puzzle",
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
}

HASH_ORDERED = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
"""Tasks made by going through sets of strings: the same seed gives other rows wherever Python's hashes differ."""


class ReasoningGymTasks(RowSource):
    """Rows of reasoning-gym's tasks, the same for the same arguments.

    Each row has the question as ``prompt``, its ``answer``, and in the column ``reasoning_gym`` what its scorer needs
    (see :class:`~roll_lightning.rewards.ReasoningGymReward`). ``gsm_symbolic`` gives word problems as in GSM8K.

    Args:
        tasks: their names, e.g. ``[chain_sum, gsm_symbolic]``.
        size: rows of each task.
        seed: of the questions; training and validation need different ones. Small tasks repeat questions under any
            seed: ``RLVRDataModule(overlap="drop")`` keeps those of the validation rows out of training.
        options: arguments of a task's generator by task, e.g. ``{chain_sum: {max_terms: 3}}``.
        weights: a task's rows are ``size`` times its weight, e.g. ``{gsm_symbolic: 2.5}``; 1 where none is given.
        domain: the rows' domain; ``None`` takes the name of the task.

    Raises:
        ConfigError: reasoning-gym is not installed; a task is unknown, denied because its scorer is broken, or not
            reproducible without ``PYTHONHASHSEED``; options or weights for a task that is not named; a weight that
            leaves it no row; options that its generator refuses.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        size: int = 1000,
        seed: int = 0,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        weights: Mapping[str, float] | None = None,
        domain: str | None = None,
    ) -> None:
        if find_spec("reasoning_gym") is None:
            raise ConfigError(
                "ReasoningGymTasks needs reasoning-gym, which is not installed; pip install "
                "'roll-lightning[reasoning-gym]'"
            )
        if size < 1:
            raise ConfigError(f"ReasoningGymTasks.size is {size}; it must be 1 or more")
        self.tasks, self.size, self.seed, self.domain = list(tasks), size, seed, domain
        self.options = {name: dict(given) for name, given in (options or {}).items()}
        self.name = f"reasoning-gym {'+'.join(self.tasks)} (seed {seed})"
        _check_tasks(self.tasks)
        for argument, given in (("options", self.options), ("weights", weights or {})):
            for name in given:
                if name not in self.tasks:
                    raise ConfigError(
                        f"ReasoningGymTasks.{argument} has {name}, which is not among its tasks; remove it"
                    )
        self.sizes = {name: _weighted(name, size, (weights or {}).get(name, 1.0)) for name in self.tasks}

    def rows(self) -> list[Row]:
        """The rows, task after task."""
        return [row for name in self.tasks for row in self._task_rows(name)]

    def _task_rows(self, name: str) -> list[Row]:
        import reasoning_gym

        # reasoning-gym seeds row n with seed + n: of two neighbouring seeds almost all rows would be the same.
        start = derive_seed("reasoning-gym", name, self.seed) % 2**31
        options = self.options.get(name, {})
        try:
            # Some print as they go.
            with _own_random_state(start), redirect_stdout(io.StringIO()):
                entries = list(reasoning_gym.create_dataset(name, size=self.sizes[name], seed=start, **options))
        # Each generator checks its options in its own way.
        except Exception as error:
            raise ConfigError(
                f"reasoning-gym cannot make {name} with the options {options}: {first_line(error)}"
            ) from error
        return [self._row(name, number, entry) for number, entry in enumerate(entries, start=1)]

    def _row(self, name: str, number: int, entry: Mapping[str, Any]) -> Row:
        # Through JSON: what a checkpoint, a recording or a worker gives back is then the same.
        plain = json.loads(json.dumps(dict(entry), default=str))
        values = {
            "id": f"{name}:{self.seed}:{number}",
            "prompt": entry["question"],
            "answer": entry["answer"],
            "domain": self.domain or name,
            COLUMN: {"task": name, "entry": plain},
        }
        return Row(number, values, self.name)


@contextmanager
def _own_random_state(seed: int) -> Iterator[None]:
    """Some generators draw from the global random states, and one seeds them: the run's own must not notice."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def _weighted(name: str, size: int, weight: float) -> int:
    rows = round(size * weight) if math.isfinite(weight) else 0
    if rows < 1:
        raise ConfigError(
            f"ReasoningGymTasks.weights has {name}: {weight:g}, which leaves no row of size {size}; raise it, or "
            "remove the task"
        )
    return rows


def _check_tasks(tasks: Sequence[str]) -> None:
    from reasoning_gym.factory import DATASETS

    if not tasks:
        raise ConfigError("ReasoningGymTasks.tasks is empty; name tasks such as chain_sum or gsm_symbolic")
    for name in tasks:
        if name in DENIED:
            raise ConfigError(f"ReasoningGymTasks.tasks has {name}, which is refused: {DENIED[name]}")
        if name not in DATASETS:
            near = get_close_matches(name, DATASETS, n=1)
            hint = f"did you mean {near[0]}?" if near else "see reasoning_gym.factory.DATASETS for all"
            raise ConfigError(f"ReasoningGymTasks.tasks has {name}, which reasoning-gym does not know; {hint}")
        if name in HASH_ORDERED and os.environ.get("PYTHONHASHSEED", "random") == "random":
            raise ConfigError(
                f"ReasoningGymTasks.tasks has {name}, whose rows depend on Python's hashes, so that a resumed run "
                "would get others; set the environment variable PYTHONHASHSEED=0 before Python starts"
            )
    if len(set(tasks)) < len(tasks):
        twice = next(name for name in tasks if list(tasks).count(name) > 1)
        raise ConfigError(f"ReasoningGymTasks.tasks names {twice} twice; name it once, and set size")
