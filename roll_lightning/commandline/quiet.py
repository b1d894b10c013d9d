"""Warnings of libraries that would say the same at every run and ask nothing of the user."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

_MESSAGES = (
    # What we log is merged over ranks before.
    r"It is recommended to use `self\.log\(.*sync_dist=True\)`",
    # BaseModule.on_train_start sets train mode, after this is said.
    r"Found \d+ module\(s\) in eval mode at the start of training",
    # Lightning and DeepSpeed call what torch renames.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"`torch\.distributed\.\w+` is deprecated",
)


def silence_known_warnings() -> None:
    """Ignore them in this process."""
    for message in _MESSAGES:
        warnings.filterwarnings("ignore", message=message)


@contextmanager
def no_remarks() -> Iterator[None]:
    """Keep Lightning from remarking on seeds and devices, and other libraries from greeting on stdout.

    For a command that uses neither seeds nor devices, and whose answer alone goes to stdout.
    """
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
