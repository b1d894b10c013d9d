"""Rows, and reading them from JSON Lines. Every row remembers its line, so that an error can point at it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from roll_lightning.data.readers.content import read_content
from roll_lightning.errors import DataError


@dataclass(frozen=True)
class Row:
    """One row of a dataset.

    Args:
        line: its line in a text file of one row per line, its number elsewhere (in JSON, Parquet, a ``datasets`` folder
            or the hub); from 1.
        values: the columns by name.
        file: the name of the file or dataset, without its folder.
    """

    line: int
    values: dict[str, Any]
    file: str = "rows"

    @property
    def where(self) -> str:
        """The row for an error message and for the default id of a prompt: ``file:line``, or ``name:number``."""
        return f"{self.file}:{self.line}"


def read_jsonl(path: str | Path) -> list[Row]:
    r"""Read a file of one JSON object per line.

    Lines end with ``\n`` or ``\r\n`` and nothing else (U+2028 may stand in a string); blank lines are skipped, and so
    is a byte order mark at the start. A file that ends with ``.gz`` is unpacked.

    Raises:
        DataError: the file is missing or has no rows, or a line is not UTF-8, not JSON or not an object.
    """
    path = Path(path).expanduser()
    lines = read_content(path).split(b"\n")
    rows = [_parse(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise DataError(f"{path} is empty; it needs one JSON object per line")
    return rows


def require_column(rows: Sequence[Row], name: str, way_out: str = "") -> None:
    """Check that every row has a column.

    Args:
        rows: the rows of a file.
        name: the column.
        way_out: what else the user could do, appended to the message.

    Raises:
        DataError: names the first row without it, and the nearest column that this row has.
    """
    for row in rows:
        if name not in row.values:
            near = get_close_matches(name, row.values, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, row.values)) or 'none'}"
            raise DataError(f"{row.where} has no column {name!r}; {hint}" + (f" ({way_out})" if way_out else ""))


def _parse(line: bytes, path: Path, number: int) -> Row:
    try:
        values = json.loads(line.decode("utf-8"), parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number} is not UTF-8 (byte {error.object[error.start]:#04x} at column {error.start + 1}); "
            "convert the file to UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{number} is not valid JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{number} is not valid JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise DataError(
            f'{path}:{number} is a JSON {json_type(values)}; every line must be an object, e.g. {{"prompt": "…"}}'
        )
    return Row(number, values, path.name)


def json_type(value: Any) -> str:
    """What JSON calls a value."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | dict):
        return "array" if isinstance(value, list) else "object"
    return "string" if isinstance(value, str) else "number"


def refuse_constant(name: str) -> NoReturn:
    """For ``json.loads(parse_constant=…)``: NaN and the infinities are no JSON."""
    raise ValueError(f"{name} is no JSON value; write null or a number")
