"""From a string to rows: a file, a folder, or a dataset on the hub."""

from __future__ import annotations

from pathlib import Path

from roll_lightning.data.jsonl import Row
from roll_lightning.data.readers.content import similar_path
from roll_lightning.data.readers.files import file_suffix, read_file
from roll_lightning.data.readers.folder import is_saved_dataset, read_folder, read_saved
from roll_lightning.data.readers.hub import read_hub
from roll_lightning.errors import DataError
from roll_lightning.hub import is_hub_name


def is_local(source: str) -> bool:
    """Whether a string means a file or folder: one that is there, or that by its form can be nothing else."""
    path = Path(source).expanduser()
    return path.exists() or file_suffix(path) is not None or not is_hub_name(source)


def read_path(
    source: str, split: str | None = None, name: str | None = None, revision: str | None = None
) -> tuple[list[Row], bool]:
    """The rows of a file, folder or hub name, and whether it has splits.

    Args:
        source: what is there as a file or folder is read as such; other names are looked for on the hub.
        split: which to read of a source that has splits; ``None`` takes the only one.
        name: configuration, for a dataset on the hub.
        revision: branch, tag or commit, for a dataset on the hub.

    Raises:
        DataError: it cannot be read.
    """
    path = Path(source).expanduser()
    if "://" in source:
        raise DataError(f"{source} is a URL; download it, and give the file or folder (or the name of a hub dataset)")
    if not is_local(source):
        return read_hub(source, name, split, revision), True
    if not path.exists():
        raise DataError(f"{path} does not exist{similar_path(path)}")
    if not path.is_dir():
        return read_file(path), False
    return read_saved(path, split) if is_saved_dataset(path) else read_folder(path, split)
