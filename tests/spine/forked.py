"""Runs a function in forked processes, so that a run can be killed without paying for imports again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


def run_forked(
    function: Callable[[], object], log: Path, ranks: int = 1, timeout: float = 240, kill_after: float | None = None
) -> list[int]:
    """Run ``function`` on ``ranks`` forked processes with the environment of a launcher; their exit codes.

    A process killed by signal n gives -n. Output goes to ``log``. ``kill_after`` seconds all get SIGKILL.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    port = free_port()
    pids = [_fork(function, log, rank, ranks, port) for rank in range(ranks)]
    if kill_after is not None:
        time.sleep(kill_after)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    return [_wait(pid, timeout, log) for pid in pids]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _fork(function: Callable[[], object], log: Path, rank: int, ranks: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    with contextlib.suppress(BaseException):
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = os.fdopen(os.dup(file), "w", buffering=1)
        for name in ("lightning", "lightning.pytorch", "lightning.fabric", ""):
            for handler in logging.getLogger(name).handlers:
                if type(handler) is logging.StreamHandler:
                    handler.setStream(sys.stderr)
        if ranks > 1:
            os.environ |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(ranks),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "NODE_RANK": "0",
            }
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
    os._exit(code)


def _wait(pid: int, timeout: float, log: Path) -> int:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise TimeoutError(f"process did not end within {timeout} s:\n{log.read_text()[-3000:]}")
