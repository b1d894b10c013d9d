"""Warnings of libraries that would say the same at every run and ask nothing of the user."""

from __future__ import annotations

import warnings

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
