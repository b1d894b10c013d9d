"""Reading what is held as Arrow: Parquet files and ``datasets`` objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_lightning.data.encode import first_line
from roll_lightning.data.jsonl import Row
from roll_lightning.data.readers.content import similar_path
from roll_lightning.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


def read_parquet(path: Path) -> list[Row]:
    """The rows of a Parquet file, numbered from 1.

    Raises:
        DataError: it is missing, no Parquet file, or has no rows.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    if not path.exists():
        raise DataError(f"{path} does not exist{similar_path(path)}")
    try:
        table = ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None
    return _rows(table.to_pylist(), path.name)


def dataset_rows(dataset: Dataset, name: str) -> list[Row]:
    """The rows of a ``datasets`` object, numbered from 1; ``name`` stands for them in messages.

    Raises:
        DataError: it has no rows.
    """
    return _rows(list(dataset), name)


def _rows(items: list[dict[str, Any]], name: str) -> list[Row]:
    if not items:
        raise DataError(f"{name} has no rows")
    return [
        Row(number, {key: without_nulls(value) for key, value in item.items()}, name)
        for number, item in enumerate(items, start=1)
    ]


def without_nulls(value: Any) -> Any:
    """The value without the null fields of objects in it, at any depth.

    Arrow gives every message of a column the fields of all messages; those that a message never had come back as null,
    and chat templates would print them.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
