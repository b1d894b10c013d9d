"""Reading JSON files: an array of objects, or an object that holds one as ``data``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roll_lightning.data.jsonl import Row, json_type, read_jsonl, refuse_constant
from roll_lightning.data.readers.content import read_text
from roll_lightning.errors import DataError

_FORMS = 'it must be an array of objects, or {"data": [...]}'


def read_json(path: Path) -> list[Row]:
    """The objects of an array, numbered from 1.

    A file of one object per line, as many that are called ``.json`` are, is read as JSON Lines.

    Raises:
        DataError: the file is not UTF-8, not JSON or has no such array, or an item is no object.
    """
    text = read_text(path)
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        # A whole object, and then more: JSON Lines, or a fault that its reader names by line.
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            return read_jsonl(path)
        if not text.strip():
            raise DataError(f"{path} is empty; {_FORMS}") from None
        raise DataError(f"{path}:{error.lineno} is not valid JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {str(error).splitlines()[0]}") from None
    items = _items(value, path)
    if not items:
        raise DataError(f"{path} has no rows; {_FORMS}")
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise DataError(f"{path}: item {number} is a JSON {json_type(item)}; every item must be an object")
    return [Row(number, item, path.name) for number, item in enumerate(items, start=1)]


def _items(value: Any, path: Path) -> list[Any]:
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return value["data"]
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        keys = ", ".join(map(repr, list(value)[:5])) or "none"
        raise DataError(f"{path} is one JSON object with the keys {keys}; {_FORMS} (one row by itself: name it .jsonl)")
    raise DataError(f"{path} is a JSON {json_type(value)}; {_FORMS}")
