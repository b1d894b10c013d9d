from __future__ import annotations

import pytest

from roll_lightning.data.jsonl import Row, read_jsonl, require_column
from roll_lightning.errors import DataError


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def error_of(call, *args):
    with pytest.raises(DataError) as info:
        call(*args)
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


def test_rows_keep_their_line_and_blank_lines_are_skipped(tmp_path):
    rows = read_jsonl(write(tmp_path / "a.jsonl", '{"a": 1}\n\n  \n{"a": 2}'))
    assert rows == [Row(1, {"a": 1}, "a.jsonl"), Row(4, {"a": 2}, "a.jsonl")]
    assert rows[1].where == "a.jsonl:4"


def test_crlf_and_byte_order_mark(tmp_path):
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": "x"}\r\n\r\n{"a": "y"}\r\n')
    assert [(row.line, row.values["a"]) for row in read_jsonl(path)] == [(1, "x"), (3, "y")]


def test_unicode_comes_through(tmp_path):
    text = "naïve 😀👩‍👩‍👧 שלום \u202eabc مرحبا"
    assert read_jsonl(write(tmp_path / "a.jsonl", f'{{"a": "{text}"}}'))[0].values["a"] == text


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_only_line_feeds_end_a_line(tmp_path, separator):
    rows = read_jsonl(write(tmp_path / "a.jsonl", f'{{"a": "x{separator}y"}}\n{{"a": "z"}}'))
    assert [(row.line, row.values["a"]) for row in rows] == [(1, f"x{separator}y"), (2, "z")]


def test_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "train.jsonl", "{}")
    message = error_of(read_jsonl, tmp_path / "trian.jsonl")
    assert message == f"{tmp_path}/trian.jsonl does not exist; did you mean {tmp_path}/train.jsonl?"
    assert error_of(read_jsonl, tmp_path / "zzz") == f"{tmp_path}/zzz does not exist"
    assert f"no folder {tmp_path}/x either" in error_of(read_jsonl, tmp_path / "x" / "train.jsonl")
    assert "cannot be read" in error_of(read_jsonl, tmp_path)


@pytest.mark.parametrize("content", ["", "\n \r\n", b"\xef\xbb\xbf"])
def test_empty_file(tmp_path, content):
    assert "is empty" in error_of(read_jsonl, write(tmp_path / "a.jsonl", content))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"a": 1', "not valid JSON: Expecting ',' delimiter at column 8"),
        ("{'a': 1}", "not valid JSON: Expecting property name"),
        ('{"a": 1} {"b": 2}', "not valid JSON: Extra data at column 10"),
        ('{"a": NaN}', "not valid JSON: NaN is no JSON value"),
        ("[" * 100_000, "not valid JSON"),
        ("[1, 2]", "is a JSON array; every line must be an object"),
        ('"x"', "is a JSON string"),
        ("null", "is a JSON null"),
        ("3.5", "is a JSON number"),
        ("true", "is a JSON true"),
        (b'{"a": "\xff"}', "is not UTF-8 (byte 0xff at column 8)"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8"),
    ],
)
def test_bad_lines_name_file_and_line(tmp_path, line, what):
    content = line if isinstance(line, bytes) else line.encode()
    message = error_of(read_jsonl, write(tmp_path / "a.jsonl", b'{"a": 0}\n\n' + content))
    assert message.startswith(f"{tmp_path}/a.jsonl:3 ")
    assert what in message


def test_require_column():
    rows = [Row(1, {"answer": 1}, "f"), Row(3, {"anwser": 1}, "f"), Row(4, {}, "f")]
    require_column(rows[:1], "answer")
    assert error_of(require_column, rows, "answer") == "f:3 has no column 'answer'; did you mean 'anwser'?"
    assert error_of(require_column, rows, "x", "set y") == "f:1 has no column 'x'; it has 'answer' (set y)"
    assert error_of(require_column, rows[2:], "x") == "f:4 has no column 'x'; it has none"
