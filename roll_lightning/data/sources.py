"""Where rows come from: a file, a folder, a hub name, or an object that makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from roll_lightning.data.jsonl import Row, read_jsonl


class RowSource(ABC):
    """Gives the rows of a dataset; chosen in YAML by ``class_path`` where a plain string does not say enough.

    Attributes:
        name: for messages and logs.
    """

    name: str

    @abstractmethod
    def rows(self) -> list[Row]:
        """All rows, the same ones in the same order at every call."""


def read_rows(source: str | RowSource) -> list[Row]:
    """The rows of a source.

    Raises:
        DataError: they cannot be read.
    """
    return source.rows() if isinstance(source, RowSource) else read_jsonl(source)
