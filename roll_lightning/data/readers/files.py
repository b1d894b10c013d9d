"""Reading one file by its suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath

from roll_lightning.data.jsonl import Row, read_jsonl
from roll_lightning.data.readers.arrow import read_parquet
from roll_lightning.data.readers.csv_file import read_csv
from roll_lightning.data.readers.json_file import read_json
from roll_lightning.errors import DataError


def _read_tsv(path: Path) -> list[Row]:
    return read_csv(path, delimiter="\t")


_READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": _read_tsv,
    ".parquet": read_parquet,
}
SUFFIXES = tuple(_READERS)


def file_suffix(path: PurePath) -> str | None:
    """The suffix by which a file is read, ``.gz`` included; ``None`` for a file that is not read."""
    suffix = path.suffix.lower()
    if suffix != ".gz":
        return suffix if suffix in _READERS else None
    inner = PurePath(path.stem).suffix.lower()
    return inner + suffix if inner in _READERS and inner != ".parquet" else None


def read_file(path: Path) -> list[Row]:
    """The rows of a file.

    Raises:
        DataError: its suffix is none of :data:`SUFFIXES` (text formats also with ``.gz``), or its content is faulty.
    """
    suffix = file_suffix(path)
    if suffix is None:
        found = f"ends with {path.suffix!r}" if path.suffix else "has no suffix"
        raise DataError(f"{path} {found}; rows are read from {', '.join(SUFFIXES)} (text also packed, .jsonl.gz)")
    return _READERS[suffix.removesuffix(".gz")](path)
