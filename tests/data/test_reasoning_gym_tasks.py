"""Tasks of reasoning-gym as rows."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("reasoning_gym", reason="reasoning-gym is an extra")

from roll_lightning.data.reasoning_gym import DENIED, HASH_ORDERED, ReasoningGymTasks
from roll_lightning.data.sources import read_rows
from roll_lightning.errors import ConfigError


def test_rows():
    rows = read_rows(ReasoningGymTasks(["chain_sum", "leg_counting"], size=3, seed=1))
    assert [row.values["domain"] for row in rows] == ["chain_sum"] * 3 + ["leg_counting"] * 3
    assert [row.values["id"] for row in rows[:2]] == ["chain_sum:1:1", "chain_sum:1:2"]
    first = rows[0].values
    total = sum(int(part) for part in first["prompt"].split(":")[-1].split("=")[0].replace("- ", "+ -").split("+"))
    assert int(first["answer"]) == total
    held = first["reasoning_gym"]
    assert held["task"] == "chain_sum"
    assert held["entry"]["question"] == first["prompt"]
    assert json.loads(json.dumps(held)) == held


def test_same_seed_same_rows_and_options_reach_the_generator():
    def texts(seed: int, **options) -> list[str]:
        source = ReasoningGymTasks(["chain_sum"], size=20, seed=seed, options={"chain_sum": options}, domain="maths")
        rows = source.rows()
        assert {row.values["domain"] for row in rows} == {"maths"}
        return [row.values["prompt"] for row in rows]

    assert texts(1) == texts(1)
    # reasoning-gym's own seeds 1 and 2 share 19 of 20 rows.
    assert not set(texts(1)) & set(texts(2))
    assert all(text.count("+") + text.count("-") == 1 for text in texts(1, min_terms=2, max_terms=2, min_digits=2))


def test_weights_are_rows():
    source = ReasoningGymTasks(["chain_sum", "leg_counting"], size=4, weights={"leg_counting": 2.5})
    assert [row.values["domain"] for row in source.rows()] == ["chain_sum"] * 4 + ["leg_counting"] * 10


def test_the_runs_random_states_neither_steer_the_rows_nor_notice_them():
    """list_functions draws from Python's global state, and pool_matrix seeds NumPy's."""

    def texts(seed: int) -> tuple[list[str], float, float]:
        random.seed(seed)
        np.random.seed(seed)
        rows = ReasoningGymTasks(["list_functions", "pool_matrix"], size=30).rows()
        return [row.values["prompt"] for row in rows], random.random(), np.random.random()

    expected = {}
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        expected[seed] = (random.random(), np.random.random())
    first, second = texts(1), texts(2)
    assert first[0] == second[0]
    assert (first[1:], second[1:]) == (expected[1], expected[2])


def rows_digest(tasks: list[str], hash_seed: str) -> str:
    """What another Python makes of these tasks."""
    code = (
        "import hashlib, json, sys; from roll_lightning.data.reasoning_gym import ReasoningGymTasks\n"
        "for name in sys.argv[1:]:\n"
        "    rows = [row.values for row in ReasoningGymTasks([name], size=12, seed=3).rows()]\n"
        "    print('digest', name, hashlib.blake2b(json.dumps(rows, sort_keys=True).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *tasks],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_tasks_that_go_by_hashes_need_a_fixed_hash_seed(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ConfigError, match=r"ransom_note, whose rows depend on Python's hashes.*set the environment"):
        ReasoningGymTasks(["ransom_note"])
    assert rows_digest(["ransom_note"], "0") == rows_digest(["ransom_note"], "0") != rows_digest(["ransom_note"], "1")


@pytest.mark.slow
def test_T45_the_rows_of_all_other_tasks_are_the_same_in_every_process():
    """What a resumed run trains on is what the run would have trained on."""
    from reasoning_gym.factory import DATASETS

    tasks = sorted(DATASETS.keys() - DENIED.keys())
    first, second = (set(rows_digest(tasks, seed).splitlines()) for seed in ("1", "2"))
    assert len(first) == len(tasks)
    assert {line.split()[1] for line in first - second} == HASH_ORDERED


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"tasks": ["chain_sums"]}, "did you mean chain_sum"),
        ({"tasks": ["game_of_life_halting"]}, "which is refused: its scorer gives any answer full marks"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": ["chain_sum", "chain_sum"]}, "names chain_sum twice"),
        ({"tasks": ["chain_sum"], "size": 0}, "size is 0"),
        ({"tasks": ["chain_sum"], "options": {"gsm_symbolic": {}}}, "options has gsm_symbolic"),
        ({"tasks": ["chain_sum"], "weights": {"gsm_symbolic": 2}}, "weights has gsm_symbolic, which is not among"),
        ({"tasks": ["chain_sum"], "weights": {"chain_sum": 0}}, "weights has chain_sum: 0, which leaves no row"),
        ({"tasks": ["chain_sum"], "weights": {"chain_sum": float("nan")}}, "weights has chain_sum: nan"),
    ],
)
def test_refused(arguments, named):
    with pytest.raises(ConfigError, match=named):
        ReasoningGymTasks(**arguments)


@pytest.mark.parametrize("options", [{"max_terms": 0}, {"terms": 3}])
def test_options_that_the_generator_refuses(options):
    with pytest.raises(ConfigError, match="cannot make chain_sum with the options"):
        ReasoningGymTasks(["chain_sum"], options={"chain_sum": options}).rows()


def score(name: str, answer: str, entry) -> float:
    import reasoning_gym

    try:
        return reasoning_gym.get_score_answer_fn(name)(answer, entry)
    except Exception:
        return 0.0


@pytest.mark.slow
def test_every_task_that_is_not_denied_can_be_trusted():
    """The right answer gets full marks, nonsense never; a plain number or word, or another row's answer, seldom."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    def trusted(name: str) -> bool:
        entries = list(reasoning_gym.create_dataset(name, size=6, seed=5))
        right = all(e["answer"] is not None and score(name, e["answer"], e) >= 0.999 for e in entries)
        for text in ("banana", "-", "a b c", "[]", "nan", "0", "1", "yes", "no"):
            fooled = sum(score(name, text, e) >= 0.999 for e in entries if text != e["answer"])
            # A number can equal the answer ("0.0"), and "no" be the answer; words and brackets cannot.
            if fooled > (len(entries) // 2 if text in ("0", "1", "yes", "no") else 0):
                return False
        rotated = [(entry, other["answer"]) for entry, other in zip(entries, entries[1:] + entries[:1], strict=True)]
        taken = sum(score(name, answer, e) >= 0.999 for e, answer in rotated if answer != e["answer"])
        return right and taken <= len(entries) // 2

    otherwise = {"composite", "codeio"}
    assert {name for name in DATASETS.keys() - otherwise if not trusted(name)} == DENIED.keys() - otherwise
