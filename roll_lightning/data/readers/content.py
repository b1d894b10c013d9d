"""The bytes and the text of a file, packed with gzip or not."""

from __future__ import annotations

import gzip
import zlib
from difflib import get_close_matches
from pathlib import Path

from roll_lightning.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_content(path: Path) -> bytes:
    """The bytes of a file without a UTF-8 byte order mark; a file that ends with ``.gz`` is unpacked.

    Raises:
        DataError: it is missing (names the nearest one), cannot be read, or is no gzip file although it is called so.
    """
    try:
        content = path.read_bytes()
        if path.suffix.lower() == ".gz":
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist{similar_path(path)}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is no whole gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    return content.removeprefix(_BYTE_ORDER_MARK)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        DataError: it cannot be read, or is not UTF-8 (names the line).
    """
    content = read_content(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line} is not UTF-8 (byte {content[error.start]:#04x}); convert the file to UTF-8"
        ) from None


def similar_path(path: Path) -> str:
    """The end of a message on a path that is not there: the nearest name beside it, or what else is missing."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    near = get_close_matches(path.name, sorted(entry.name for entry in path.parent.iterdir()), n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""
