"""What a reward says of its own deadline, of hangs and crashes, and of its start."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from reward_samples import on_command, rollouts, text_length, values

from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards import RewardFunction, RewardPool, WeightedReward


class Patient:
    """Obeys the response; has a deadline of its own, and says what a hang or a crash is worth."""

    def __init__(self, deadline=None, value_on_overrun=None, name="patient"):
        self.deadline, self.value_on_overrun, self.name = deadline, value_on_overrun, name

    def __call__(self, rollouts):
        return on_command(rollouts)


@pytest.mark.parametrize("on_error", ["raise", "none"])
def test_T47_an_overrun_is_worth_what_the_reward_says(make_pool, caplog, on_error):
    pool = make_pool(Patient(1.0, -0.5), on_error=on_error)
    verdicts = pool.score(rollouts("abc", "sleep", "die", "segfault", "unscored"))
    assert [(v["patient"].value, v["patient"].fault) for v in verdicts] == [
        (3.0, None),
        (-0.5, "overrun"),
        (-0.5, "overrun"),
        (-0.5, "overrun"),
        (None, None),
    ]
    assert pool.overruns == {"patient": 3}
    assert not pool.failures
    (record,) = caplog.records
    assert record.getMessage() == (
        "3 of 5 rollouts overran; the first: reward 'patient' gave no result within 1 s, which counts as -0.5, on "
        "prompt 'p1' (sample 1)"
    )


def test_T47_what_the_reward_raises_or_returns_is_no_overrun(make_pool):
    for command in ("raise", "exit", "nan", "two"):
        with pytest.raises(RewardError, match="reward 'patient' r"):
            make_pool(Patient(1.0, -0.5)).score(rollouts(command))
    pool = make_pool(Patient(1.0, -0.5), on_error="none")
    assert [v["patient"].fault for v in pool.score(rollouts("raise", "nan"))] == ["failure", "failure"]
    assert pool.failures == {"patient": 2}
    assert not pool.overruns


def test_T47_a_worker_that_is_killed_from_outside_costs_its_item(make_pool):
    pool = make_pool(Patient(30.0, 0.0))
    pool.score(rollouts("abc"))
    (pid,) = pool.pids()
    timer = threading.Timer(0.5, os.kill, (pid, 9))
    timer.start()
    assert values(pool, rollouts("sleep", "abcd")) == {"patient": [0.0, 4.0]}
    assert pool.pids() != [pid]


def test_a_reward_has_its_own_deadline(make_pool):
    pool = make_pool(Patient(0.6, name="hasty"), Patient(name="other"), deadline=1.2, on_error="none")
    assert values(pool, rollouts("sleep")) == {"hasty": [None], "other": [None]}
    with pytest.raises(RewardError, match=r"reward 'other' gave no result within 1\.2 s"):
        make_pool(Patient(name="other"), deadline=1.2).score(rollouts("sleep"))
    with pytest.raises(RewardError, match=r"reward 'hasty' gave no result within 0\.6 s"):
        make_pool(Patient(0.6, name="hasty"), deadline=30.0).score(rollouts("sleep"))


class SlowStart(RewardFunction):
    """Takes longer to start than one rollout may take."""

    deadline = 1.0

    def warm_up(self):
        time.sleep(2.0)
        self.warm = True

    def __call__(self, rollouts):
        return [float(hasattr(self, "warm")) for _ in rollouts]


def test_warming_up_is_not_on_the_first_rollouts_account(make_pool):
    assert values(make_pool(SlowStart()), rollouts("x", "y")) == {"slow_start": [1.0, 1.0]}
    assert values(make_pool(WeightedReward(SlowStart())), rollouts("x")) == {"slow_start": [1.0]}
    with pytest.raises(RewardError, match=r"did not start: gave no result within 1 s"):
        make_pool(SlowStart(), start_deadline=1.0).score(rollouts("x"))


def test_weighing_keeps_what_a_reward_says_of_itself(make_pool):
    pool = make_pool(WeightedReward(Patient(0.6, -0.5)), deadline=30.0)
    assert values(pool, rollouts("sleep")) == {"patient": [-0.5]}


@pytest.mark.skipif(not os.path.exists("/proc/self/oom_score_adj"), reason="Linux ends processes by this score")
def test_the_system_ends_a_worker_first_when_memory_is_short(make_pool):
    pool = make_pool(text_length)
    pool.score(rollouts("a"))
    (pid,) = pool.pids()
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == 1000


@pytest.mark.parametrize(
    ("reward", "needle"),
    [
        (Patient(deadline=-1.0), r"reward 'patient' has deadline -1\.0"),
        (Patient(deadline=float("inf")), "reward 'patient' has deadline inf"),
        (Patient(value_on_overrun=float("nan")), "reward 'patient' has value_on_overrun nan"),
    ],
)
def test_what_a_reward_says_of_itself_is_checked(reward, needle):
    with pytest.raises(ConfigError, match=needle):
        RewardPool([reward])
