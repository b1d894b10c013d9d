"""Reading JSON Lines files. Every row remembers its line, so that an error can point at it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from roll_lightning.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """One object of a JSON Lines file.

    Args:
        line: its line, from 1.
        values: the columns by name.
        file: the file's name without its folder.
    """

    line: int
    values: dict[str, Any]
    file: str = "rows"

    @property
    def where(self) -> str:
        """The row for an error message and for the default id of a prompt: ``file:line``."""
        return f"{self.file}:{self.line}"


def read_jsonl(path: str | Path) -> list[Row]:
    r"""Read a file of one JSON object per line.

    Lines end with ``\n`` or ``\r\n`` and nothing else (U+2028 may stand in a string); blank lines are skipped, and so
    is a byte order mark at the start.

    Raises:
        DataError: the file is missing or has no rows, or a line is not UTF-8, not JSON or not an object.
    """
    path = Path(path).expanduser()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist{_similar_file(path)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    lines = content.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
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


def _similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    near = get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _parse(line: bytes, path: Path, number: int) -> Row:
    try:
        values = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
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
            f'{path}:{number} is a JSON {_json_type(values)}; every line must be an object, e.g. {{"prompt": "…"}}'
        )
    return Row(number, values, path.name)


def _json_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "array" if isinstance(value, list) else "string" if isinstance(value, str) else "number"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value; write null or a number")
