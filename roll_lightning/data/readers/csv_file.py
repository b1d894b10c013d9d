"""Reading CSV files. Cells are text, as they stand there: a library that guesses types would make 13 of 013."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roll_lightning.data.jsonl import Row
from roll_lightning.data.readers.content import read_text
from roll_lightning.errors import DataError


def read_csv(path: Path, delimiter: str = ",") -> list[Row]:
    """The rows below a header; every cell is a string, an empty one ``None``.

    Cells may stand in double quotes and then hold line breaks; a row is known by its first line.

    Raises:
        DataError: the file is not UTF-8 or has no rows, the header is faulty, or a line has another number of cells.
    """
    text = read_text(path)
    with _cells_of_any_size():
        rows = list(_rows(text, path, delimiter))
    if not rows:
        raise DataError(f"{path} is empty; it needs a header and at least one row")
    return rows


def _rows(text: str, path: Path, delimiter: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}:{line} is not valid CSV: {error}") from None
        if not cells:
            continue
        if not header:
            header = _check_header(cells, path)
        elif len(cells) != len(header):
            raise DataError(
                f"{path}:{line} has {len(cells)} cells, but the header has {len(header)}; put a cell that holds a "
                f"{delimiter!r} or a line break into double quotes"
            )
        else:
            yield Row(line, {name: cell or None for name, cell in zip(header, cells, strict=True)}, path.name)


def _check_header(names: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in names]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"{path} has {names.count(twice[0])} columns named {twice[0]!r}; names must be unique")
    return names


@contextmanager
def _cells_of_any_size() -> Iterator[None]:
    """Lift the limit of 131 072 characters, which a conversation can exceed."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)
