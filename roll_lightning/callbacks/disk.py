"""What a full disk looks like, whoever writes to it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roll_lightning.errors import CheckpointError

# torch's writer says only that its file is shorter than it should be.
_SHORT_FILE = ("file write failed", "unexpected pos")


@contextmanager
def room_on_disk(folder: Path, what: str) -> Iterator[None]:
    """Around writing ``what`` to ``folder``.

    Raises:
        CheckpointError: the disk was full.
    """
    try:
        yield
    except Exception as error:
        if not _no_space(error, folder):
            raise
        raise CheckpointError(
            f"no space left on the disk of {folder} for {what}; the earlier checkpoints are whole: free space and "
            f"resume with --ckpt_path last"
        ) from error


def _no_space(error: Exception, folder: Path) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error).lower()
    if "no space left" in text or "quota exceeded" in text:
        return True
    return any(hint in text for hint in _SHORT_FILE) and shutil.disk_usage(folder).free < 2**20
