"""What runs in a reward worker: load the rewards once, then score one rollout after the other."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import runpy
import signal
import socket
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_lightning.rewards.base import Reward, RewardFunction
from roll_lightning.rewards.channel import Channel
from roll_lightning.rewards.packing import LOADING_MAIN, MAIN_NAMES, MainScript, PackedReward, Unpickler
from roll_lightning.rewards.results import Fault, evaluate, one_line

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Setup:
    """The first message to a worker.

    Args:
        rewards: what to load; requests name a reward by its number.
        main: the script in which functions of ``__main__`` are defined, if there is one.
    """

    rewards: tuple[PackedReward, ...]
    main: MainScript | None


def main() -> None:
    """Serve until the trainer closes the connection. Arguments: socket's file descriptor, trainer's process id."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle; it ends the workers
    _die_with(parent)
    _be_first_out_of_memory()
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    channel = Channel(connection)
    with contextlib.suppress(EOFError, ConnectionError):  # the trainer is gone, or has closed the pool
        setup: Setup = pickle.loads(channel.receive())
        rewards = _load(setup, channel)
        while rewards:
            number, rollout = pickle.loads(channel.receive())
            (outcome,) = evaluate(rewards[number], [rollout])
            reply = {"fault": outcome.reason} if isinstance(outcome, Fault) else {"value": outcome}
            channel.send(json.dumps(reply).encode())


def _load(setup: Setup, channel: Channel) -> list[Reward]:
    """The rewards, after telling the trainer that they are ready; none if one of them cannot be loaded."""
    rewards: list[Reward] = []
    for packed in setup.rewards:
        try:
            reward = _WorkerUnpickler(packed.data, setup.main).load()
            if isinstance(reward, RewardFunction):
                reward.warm_up()
            rewards.append(reward)
        except (Exception, SystemExit) as error:
            reason = f"reward {packed.name!r} cannot be loaded: {type(error).__name__}: {one_line(error)}"
            channel.send(json.dumps({"fault": reason}).encode())
            return []
    channel.send(json.dumps({"value": None}).encode())
    return rewards


def _die_with(parent: int) -> None:
    """Let Linux kill this process when the trainer dies, even while a reward hangs. Elsewhere it ends when idle."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


def _be_first_out_of_memory() -> None:
    """Let Linux end this process, and not the trainer, when what a model wrote takes all memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class _WorkerUnpickler(Unpickler):
    """Runs the user's script, without its ``__main__`` block, the first time that something of it is needed."""

    def __init__(self, data: bytes, script: MainScript | None) -> None:
        super().__init__(data)
        self._script = script

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name in MAIN_NAMES:
            if self._script is not None and "__mp_main__" not in sys.modules:
                _run_script(self._script)
            module_name = "__mp_main__"
        return super().find_class(module_name, global_name)


def _run_script(script: MainScript) -> None:
    os.environ[LOADING_MAIN] = "1"
    try:
        if script.module is not None:
            found = runpy.run_module(script.module, run_name="__mp_main__", alter_sys=True)
        else:
            found = runpy.run_path(script.path, run_name="__mp_main__")
    finally:
        del os.environ[LOADING_MAIN]
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
