"""Where rows come from: a file, a folder, a hub name, or an object that makes them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import replace

from roll_lightning.data.jsonl import Row
from roll_lightning.errors import DataError


class RowSource(ABC):
    """Gives the rows of a dataset; chosen in YAML by ``class_path`` where a plain string does not say enough.

    Attributes:
        name: for messages and logs.
    """

    name: str

    @abstractmethod
    def rows(self) -> list[Row]:
        """All rows, the same ones in the same order at every call."""


def read_rows(source: str | RowSource, split: str = "train") -> list[Row]:
    """The rows of a source.

    A string is a file (``.jsonl``, ``.json``, ``.csv``, ``.tsv``, ``.parquet``; text also packed, ``.jsonl.gz``), a
    folder of such files or one that ``datasets`` saved, or else the name of a dataset on the Hugging Face hub.

    Args:
        source: such a string, or an object.
        split: which split to read of a string's source where it has splits.

    Raises:
        DataError: they cannot be read.
    """
    from roll_lightning.data.readers.path import read_path

    rows = source.rows() if isinstance(source, RowSource) else read_path(source, split)[0]
    if not rows:
        raise DataError(f"{source_name(source)} has no rows")
    return [_with_messages(row) for row in rows]


def source_name(source: str | RowSource) -> str:
    """What a source is called in messages and logs."""
    return source.name if isinstance(source, RowSource) else source


def _with_messages(row: Row) -> Row:
    """The row with messages as a list, where a format without lists (CSV, say) holds them as JSON."""
    value = row.values.get("messages")
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return row
    try:
        messages = json.loads(value)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{row.where}: messages is a string that is not JSON: {error.msg} at character {error.pos + 1}; write it "
            "with json.dumps"
        ) from None
    return replace(row, values=row.values | {"messages": messages})
