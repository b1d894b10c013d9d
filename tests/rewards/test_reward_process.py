"""Workers and the script around them: how they start, and that nothing is left when the trainer is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reward_samples import HANG, alive, wait_until_gone

ROOT = Path(__file__).parents[2]
TRAINER = """
import os, sys, threading, time
from reward_samples import rollouts, values
from roll_lightning.rewards import RegexMatch, RewardPool

pool = RewardPool([RegexMatch("(a+)+$")], workers=2, deadline=float(sys.argv[1]))
pool.score(rollouts("a", "b", "a", "b"))
print(*pool.pids(), flush=True)
if sys.argv[2] == "idle":
    time.sleep(60)
elif sys.argv[2] == "busy":
    pool.score(rollouts({hang!r}, {hang!r}))
elif sys.argv[2] == "interrupted":
    threading.Timer(0.5, os.kill, (os.getpid(), 2)).start()
    pool.score(rollouts({hang!r}, {hang!r}))
"""


def python(tmp_path: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def pids_of(trainer: subprocess.Popen[str]) -> list[int]:
    assert trainer.stdout is not None
    pids = [int(word) for word in trainer.stdout.readline().split()]
    assert pids
    assert all(alive(pid) for pid in pids)
    return pids


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_workers_die_with_a_trainer_that_is_killed(tmp_path, state):
    trainer = python(tmp_path, TRAINER.format(hang=HANG), "60", state)
    pids = pids_of(trainer)
    time.sleep(0.5)  # busy: both now hang in C
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate(timeout=30)
    assert all(wait_until_gone(pid) for pid in pids)


def test_workers_are_gone_after_a_trainer_that_ends(tmp_path):
    trainer = python(tmp_path, TRAINER.format(hang=HANG), "60", "end")
    pids = [int(word) for word in trainer.communicate(timeout=60)[0].split()]
    assert trainer.returncode == 0
    assert pids
    assert all(wait_until_gone(pid) for pid in pids)


def test_ctrl_c_does_not_wait_for_the_deadline(tmp_path):
    trainer = python(tmp_path, TRAINER.format(hang=HANG), "300", "interrupted")
    pids = pids_of(trainer)
    _, errors = trainer.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert all(wait_until_gone(pid) for pid in pids)


SCRIPT = """
from reward_samples import rollouts, values
from roll_lightning.rewards import RewardPool

def mine(rollouts):
    return [7.0 for _ in rollouts]

def train():
    pool = RewardPool([mine], workers=1)
    print(values(pool, rollouts("x")))
"""


def test_a_function_of_the_script_itself(tmp_path):
    out, errors = python(tmp_path, SCRIPT + "if __name__ == '__main__':\n    train()\n").communicate(timeout=60)
    assert out == "{'mine': [7.0]}\n", errors


def test_a_script_that_trains_on_import_gets_one_clear_line(tmp_path):
    out, errors = python(tmp_path, SCRIPT + "train()\n").communicate(timeout=60)
    assert out == ""
    assert "reward 'mine' cannot be loaded" in errors.splitlines()[-1]
    assert "if __name__ == '__main__':" in errors.splitlines()[-1]


def test_an_unguarded_script_runs_once_when_its_rewards_are_in_modules(tmp_path):
    code = """
print("begins")
from reward_samples import rollouts, text_length, values
from roll_lightning.rewards import RewardPool
print(values(RewardPool([text_length], workers=1), rollouts("abc")))
"""
    out, errors = python(tmp_path, code).communicate(timeout=60)
    assert out == "begins\n{'text_length': [3.0]}\n", errors


def test_a_function_of_an_interactive_session_is_refused(tmp_path):
    code = SCRIPT + "train()\n"
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path}
    )
    assert "ConfigError: reward 'mine' is defined in an interactive session" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "start_deadline", "needle"),
    [
        ("import os\nif os.getpid() != {pid}: raise ImportError('only here')\n", 60, "reward 'score' cannot be loaded"),
        ("import os, time\nif os.getpid() != {pid}: time.sleep(60)\n", 1, "gave no result within 1 s"),
        ("import os\nif os.getpid() != {pid}: os._exit(9)\n", 60, "ended its worker process (exit code 9)"),
    ],
)
def test_T47_a_worker_that_does_not_start_ends_the_run(tmp_path, module, start_deadline, needle):
    code = f"""
import os, pathlib
pathlib.Path("odd_module.py").write_text({module!r}.format(pid=os.getpid()) + "def score(rs): return [0.0]")
from reward_samples import rollouts, values
from roll_lightning.rewards import FunctionReward, RewardPool
pool = RewardPool([FunctionReward("odd_module.score")], workers=1, start_deadline={start_deadline}, on_error="none")
pool.score(rollouts("x"))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "RewardError: a reward worker did not start" in done.stderr.splitlines()[-1]
    assert needle in done.stderr.splitlines()[-1]
