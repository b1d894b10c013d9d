from __future__ import annotations

import logging
import os
import pickle
import threading
import time

import pytest
from reward_samples import (
    HANG,
    BadInProcess,
    Stateful,
    alive,
    ignores_interrupt,
    on_command,
    rollout,
    rollouts,
    starts_processes,
    text_length,
    torch_is_loaded,
    values,
    wait_until_gone,
    worker_pid,
    writes_pid_then_hangs,
)

from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards import ExactMatch, FunctionReward, RegexMatch, RewardPool

FAULTS = [
    ("raise", "raised ValueError: boom second line"),
    ("exit", "raised SystemExit: 3"),
    ("die", r"ended its worker process \(exit code 3\)"),
    ("segfault", r"ended its worker process \(killed by SIGSEGV\)"),
    ("sleep", r"gave no result within 0\.6 s"),
    ("stop", r"gave no result within 0\.6 s"),
    ("two", "returned 2 results for 1 rollout,"),
    ("none", "returned 0 results for 1 rollout,"),
    ("nan", "returned nan, which is no finite number"),
    ("inf", "returned inf, which is no finite number"),
    ("huge", "returned inf, which is no finite number"),
    ("string", r"returned '0\.5' \(str\), which is no number"),
    ("bare", "returned a float in place of a list"),
    ("word", "returned a str in place of a list"),
    ("dict", "returned a dict in place of a list"),
]


HANGING = ("sleep", "stop")


@pytest.mark.parametrize(("command", "reason"), FAULTS)
def test_each_fault_raises_with_reward_prompt_and_way_out(make_pool, command, reason):
    pool = make_pool(on_command, deadline=0.6 if command in HANGING else 30.0)
    with pytest.raises(RewardError, match=rf"^reward 'on_command' {reason}") as error:
        pool.score(rollouts("abc", command))
    message = str(error.value)
    assert "on prompt 'p1' (sample 1)" in message
    assert "on_error: none" in message
    assert "\n" not in message


def test_each_fault_costs_one_item(make_pool, caplog):
    pool = make_pool(on_command, text_length, workers=2, deadline=1.0, on_error="none")
    texts = [part for command, _ in FAULTS for part in ("abc", command)]
    with caplog.at_level(logging.WARNING):
        found = values(pool, rollouts(*texts))
    assert found["on_command"] == [3.0, None] * len(FAULTS)
    assert found["text_length"] == [float(len(text)) for text in texts]
    assert pool.failures == {"on_command": len(FAULTS)}
    (record,) = caplog.records
    assert "15 of 30 rollouts not scored; the first: reward 'on_command' raised ValueError" in record.getMessage()


def test_none_and_bool_are_results_and_no_faults(make_pool):
    pool = make_pool(on_command)
    assert values(pool, rollouts("unscored", "true")) == {"on_command": [None, 1.0]}
    assert not pool.failures


def test_T47_a_pattern_that_hangs_in_c_is_killed_and_costs_one_item(make_pool):
    pool = make_pool(RegexMatch("(a+)+$"), workers=2, deadline=1.0, on_error="none")
    assert values(pool, rollouts("aa", "b")) == {"regex_match": [1.0, 0.0]}
    first = pool.pids()
    assert values(pool, rollouts("aa", HANG, "b", "a", HANG)) == {"regex_match": [1.0, None, 0.0, 1.0, None]}
    assert len([pid for pid in first if alive(pid)]) < len(first)
    assert pool.failures == {"regex_match": 2}


def test_T47_killing_a_worker_takes_along_what_it_started(make_pool, tmp_path):
    path = f"{writes_pid_then_hangs.__module__}.{writes_pid_then_hangs.__name__}"
    pool = make_pool(FunctionReward(path, {"folder": str(tmp_path)}), deadline=2.0, on_error="none")
    assert values(pool, rollouts("x")) == {"writes_pid_then_hangs": [None]}
    assert not alive(int((tmp_path / "worker").read_text()))
    assert wait_until_gone(int((tmp_path / "child").read_text()))


def test_T48_a_worker_that_died_between_batches_is_replaced(make_pool):
    pool = make_pool(text_length)
    pool.score(rollouts("a"))
    (pid,) = pool.pids()
    os.kill(pid, 9)
    assert wait_until_gone(pid)
    assert values(pool, rollouts("abc", "")) == {"text_length": [3.0, 0.0]}
    assert pool.pids() != [pid]


def test_order_is_that_of_the_rollouts_and_of_the_rewards(make_pool):
    pool = make_pool(Stateful(2.0), ExactMatch(), text_length, workers=3)
    texts = ["x" * n for n in (5, 1, 4, 0, 3, 2)] + ["42"]
    found = values(pool, rollouts(*texts))
    assert list(found) == ["stateful", "exact_match", "text_length"]
    assert found["stateful"] == [10.0, 2.0, 8.0, 0.0, 6.0, 4.0, 4.0]
    assert found["exact_match"] == [0.0] * 6 + [1.0]
    assert found["text_length"] == [5.0, 1.0, 4.0, 0.0, 3.0, 2.0, 2.0]


def test_workers_share_the_work_and_stay(make_pool):
    pool = make_pool(worker_pid, workers=2)
    used = {int(value) for _ in range(2) for value in values(pool, rollouts(*"abcdefgh"))["worker_pid"]}
    assert used == set(pool.pids())
    assert len(used) == 2
    assert os.getpid() not in used


def test_trusted_rewards_start_no_worker(make_pool):
    pool = make_pool(ExactMatch(), BadInProcess())
    pool.score(rollouts("42", "1"))
    assert pool.pids() == []
    with pytest.raises(RewardError, match="on prompt 'p1'"):
        pool.score(rollouts("42", "bad"))


def test_no_rollouts_start_no_worker(make_pool):
    pool = make_pool(text_length)
    assert values(pool, []) == {}
    assert pool.pids() == []


def test_workers_do_without_torch(make_pool):
    assert values(make_pool(torch_is_loaded), rollouts("x")) == {"torch_is_loaded": [0.0]}


def test_workers_ignore_ctrl_c(make_pool):
    assert values(make_pool(ignores_interrupt), rollouts("x")) == {"ignores_interrupt": [1.0]}


def test_a_reward_may_start_processes(make_pool):
    pool = make_pool(starts_processes)
    assert values(pool, rollouts("x")) == {"starts_processes": [1.0]}


def test_large_rollouts_travel(make_pool):
    big = rollout("x" * 3_000_000, tokens=100_000)
    assert values(make_pool(text_length), [big]) == {"text_length": [3_000_000.0]}


def test_threads_take_turns(make_pool):
    pool = make_pool(text_length)
    results: dict[int, object] = {}

    def score(length):
        results[length] = values(pool, rollouts(*["x" * length] * 20))["text_length"]

    threads = [threading.Thread(target=score, args=(length,)) for length in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {length: [float(length)] * 20 for length in (1, 2, 3)}


def test_workers_outlive_the_thread_that_asked_first(make_pool):
    pool = make_pool(text_length)
    thread = threading.Thread(target=pool.score, args=(rollouts("a"),))
    thread.start()
    thread.join(60)
    (pid,) = pool.pids()
    time.sleep(0.2)  # Linux would have killed it by now
    assert alive(pid)
    assert values(pool, rollouts("ab")) == {"text_length": [2.0]}
    assert pool.pids() == [pid]


def test_close_leaves_nothing_and_the_pool_can_be_used_again(make_pool):
    pool = make_pool(text_length, workers=2)
    pool.score(rollouts("a", "b", "c"))
    pids = pool.pids()
    pool.close()
    pool.close()
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert values(pool, rollouts("abc")) == {"text_length": [3.0]}


def test_a_dropped_pool_leaves_nothing():
    pool = RewardPool([text_length], workers=1)
    pool.score(rollouts("a"))
    pids = pool.pids()
    del pool
    assert not any(alive(pid) for pid in pids)


def test_a_forked_copy_does_not_end_the_workers(make_pool):
    pool = make_pool(text_length)
    pool.score(rollouts("a"))
    (pid,) = pool.pids()
    child = os.fork()
    if child == 0:
        pool.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert alive(pid)
    assert values(pool, rollouts("ab")) == {"text_length": [2.0]}


def test_a_pickled_pool_starts_workers_of_its_own(make_pool):
    pool = make_pool(text_length)
    pool.score(rollouts("a"))
    copy = pickle.loads(pickle.dumps(pool))
    assert copy.pids() == []
    assert values(copy, rollouts("ab")) == {"text_length": [2.0]}
    assert copy.pids() != pool.pids()
    copy.close()


def test_what_cannot_be_pickled_is_refused_by_name(make_pool):
    with pytest.raises(
        ConfigError, match=r"reward '<lambda>' cannot be sent to a worker process.*top level of a module"
    ):
        make_pool(lambda rollouts: [1.0 for _ in rollouts])


def test_two_rewards_of_one_name_are_refused(make_pool):
    with pytest.raises(ConfigError, match="2 entries named 'text_length'"):
        make_pool(text_length, text_length)


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"deadline": 0.0}, "deadline is 0.0"),
        ({"deadline": float("inf")}, "deadline is inf"),
        ({"start_deadline": -1.0}, "start_deadline is -1.0"),
        ({"on_error": "zero"}, "on_error is 'zero'; it must be one of raise, none"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(options, needle):
    with pytest.raises(ConfigError) as error:
        RewardPool([ExactMatch()], **options)
    assert needle in str(error.value)


def test_a_rollout_that_cannot_be_sent_is_named(make_pool):
    bad = rollout("x", prompt="p7")
    bad.prompt.columns["handle"] = lambda: None
    with pytest.raises(RewardError, match=r"cannot be sent its rollout.*on prompt 'p7'"):
        make_pool(text_length).score([bad])
