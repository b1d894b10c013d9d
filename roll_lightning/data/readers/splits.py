"""Splits of a dataset: which one is read, and which one a file of a folder belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from roll_lightning.errors import DataError

# The words by which the `datasets` library knows a split in the name of a file or folder.
_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}


def split_of(path: PurePath) -> str | None:
    """The split that a file belongs to by its name (``train-00001.parquet``), else by its folder's; or ``None``.

    Args:
        path: relative to the folder of the dataset.
    """
    for name in reversed(path.parts):
        for word in re.split(r"[^a-z0-9]+", name.lower()):
            if word in _WORDS:
                return _WORDS[word]
    return None


def choose_split(name: str, splits: Iterable[str], wanted: str | None) -> str:
    """The split to read of a dataset that has some.

    Args:
        name: of the dataset.
        splits: those it has.
        wanted: the one asked for; ``None`` takes the only one.

    Raises:
        DataError: it is not there, or there are several and none was asked for; lists them.
    """
    splits = list(splits)
    if wanted in splits:
        return str(wanted)
    if wanted is None and len(splits) == 1:
        return splits[0]
    listed = " and ".join([", ".join(splits[:-1]), splits[-1]] if len(splits) > 1 else splits)
    fault = f"has the splits {listed}" if wanted is None else f"has no split {wanted!r}, only {listed}"
    raise DataError(
        f"{name} {fault}; choose with {{class_path: HubDataset, init_args: {{path: {name}, split: {splits[0]}}}}}"
    )
