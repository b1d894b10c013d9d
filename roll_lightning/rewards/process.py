"""A reward worker as the trainer sees it: a process that answers in time or is killed."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

from roll_lightning.data.types import Rollout
from roll_lightning.errors import RewardError
from roll_lightning.rewards.channel import Channel
from roll_lightning.rewards.results import Fault, Outcome

_KILL_SECONDS = 10.0
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from roll_lightning.rewards.worker import main; main()"
)


class WorkerProcess:
    """A fresh Python interpreter that runs :func:`roll_lightning.rewards.worker.main`.

    It is neither forked (unsafe beside the threads of torch) nor started through ``multiprocessing`` (which would run
    the user's script again, and forbids a reward to start processes of its own). It leads its own process group, so
    that killing it takes along what a reward started. Linux ends it with the thread that started it.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        search_path = [*sys.path, os.getcwd()]
        command = [sys.executable, "-P", "-c", _BOOTSTRAP, json.dumps(search_path), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel = Channel(ours)
        self._killing = threading.Lock()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def prepare(self, setup: bytes, seconds: float) -> None:
        """Send the pickled :class:`~roll_lightning.rewards.worker.Setup` and wait until the rewards are loaded.

        Raises:
            RewardError: it died, needed longer, or could not load a reward.
        """
        outcome = self._exchange(setup, seconds)
        if isinstance(outcome, Fault):
            self.kill()
            raise RewardError(f"a reward worker did not start: {outcome.reason}; mend the module that it names, if any")

    def ask(self, reward: int, rollout: Rollout, seconds: float) -> Outcome:
        """What the reward with this number gives the rollout. A worker that hangs or dies is a fault, and is killed."""
        try:
            request = pickle.dumps((reward, rollout))
        except Exception as error:
            return Fault(f"cannot be sent its rollout ({error})")
        return self._exchange(request, seconds)

    def is_idle(self) -> bool:
        """Whether it is alive and waits for a request; to be asked between requests."""
        return not self._channel.readable()

    def terminate(self) -> str:
        """Kill the process and all of its group, wait until it is gone; returns how it ended.

        Raises:
            RewardError: the system did not end it.
        """
        with self._killing:
            if self._process.returncode is None:
                # The group first: once it has been waited for, its number can belong to someone else.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                try:
                    self._process.wait(_KILL_SECONDS)
                except subprocess.TimeoutExpired as error:
                    raise RewardError(f"reward worker {self.pid} cannot be killed: it hangs in the system") from error
        code = self._process.returncode
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def kill(self) -> str:
        """:meth:`terminate`, and close the connection. Not while another thread waits for an answer."""
        ending = self.terminate()
        self._channel.close()
        return ending

    def _exchange(self, request: bytes, seconds: float) -> Outcome:
        end = time.monotonic() + seconds
        try:
            self._channel.send(request, end)
            reply = json.loads(self._channel.receive(end))
        except TimeoutError:
            self.kill()
            return Fault(f"gave no result within {seconds:g} s", overrun=True)
        except (EOFError, OSError):
            return Fault(f"ended its worker process ({self.kill()})", overrun=True)
        return Fault(reply["fault"]) if "fault" in reply else reply["value"]
