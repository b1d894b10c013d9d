from __future__ import annotations

import gzip
import json

import pytest

from roll_lightning.data.jsonl import Row
from roll_lightning.data.sources import RowSource, read_rows
from roll_lightning.errors import DataError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def error_of(call, *args, **kwargs):
    with pytest.raises(DataError) as info:
        call(*args, **kwargs)
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


def values_of(source, **kwargs):
    return [row.values for row in read_rows(source, **kwargs)]


def places_of(source, **kwargs):
    return [row.where for row in read_rows(source, **kwargs)]


class TestText:
    def test_jsonl_and_packed(self, tmp_path):
        plain = write(tmp_path / "a.jsonl", lines({"a": 1}, {"a": 2}))
        packed = write(tmp_path / "a.jsonl.gz", gzip.compress(b"\n" + lines({"a": 1}).encode()))
        assert read_rows(plain) == [Row(1, {"a": 1}, "a.jsonl"), Row(2, {"a": 2}, "a.jsonl")]
        assert read_rows(packed) == [Row(2, {"a": 1}, "a.jsonl.gz")]

    def test_broken_gzip(self, tmp_path):
        whole = gzip.compress(b'{"a": 1}\n' * 100)
        assert "no whole gzip file" in error_of(read_rows, write(tmp_path / "a.jsonl.gz", b'{"a": 1}'))
        assert "no whole gzip file" in error_of(read_rows, write(tmp_path / "b.jsonl.gz", whole[:-9]))

    @pytest.mark.parametrize(
        "content",
        [
            '[{"a": 1},\n {"a": null}]',
            '{"data": [{"a": 1}, {"a": null}], "version": 2}',
            '\ufeff{"a": 1}\n{"a": null}\n',
        ],
    )
    def test_json_forms(self, tmp_path, content):
        path = write(tmp_path / "a.json", content)
        assert read_rows(path) == [Row(1, {"a": 1}, "a.json"), Row(2, {"a": None}, "a.json")]

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            ("", " is empty; it must be an array of objects"),
            ("[]", " has no rows"),
            ('{"data": []}', " has no rows"),
            (
                '{"prompt": ["a"], "completion": ["b"]}',
                " is one JSON object with the keys 'prompt', 'completion'; it must",
            ),
            ('"x"', " is a JSON string"),
            ("12", " is a JSON number"),
            ('[{"a": 1}, [2]]', ": item 2 is a JSON array; every item must be an object"),
            ('[{"a": 1}, {"b": ]', ":1 is not valid JSON: Expecting value at column 18"),
            ('[{"a": 1},\n{"a" 2}]', ":2 is not valid JSON: Expecting ':' delimiter at column 6"),
            ('[{"a": NaN}]', " is not valid JSON: NaN is no JSON value"),
            ("[" * 100_000, " is not valid JSON"),
            ('{"a": 1}\n{"a" 2}', ":2 is not valid JSON"),
            (b'[{"a":\n"\xff"}]', ":2 is not UTF-8 (byte 0xff)"),
        ],
    )
    def test_bad_json(self, tmp_path, content, what):
        path = write(tmp_path / "a.json", content)
        assert error_of(read_rows, path).startswith(path + what)

    def test_csv_cells_are_text_as_they_stand_there(self, tmp_path):
        path = write(
            tmp_path / "a.csv", '\ufeffprompt, n,e\r\n013,1.50,NA\r\n"a, ""b""\r\nc",true,\r\n\r\n x ,null,"z"\r\n'
        )
        assert read_rows(path) == [
            Row(2, {"prompt": "013", "n": "1.50", "e": "NA"}, "a.csv"),
            Row(3, {"prompt": 'a, "b"\r\nc', "n": "true", "e": None}, "a.csv"),
            Row(6, {"prompt": " x ", "n": "null", "e": "z"}, "a.csv"),
        ]

    def test_tsv_and_long_cells(self, tmp_path):
        long = "x" * 200_000
        assert values_of(write(tmp_path / "a.tsv", f"a\tb\n1,2\t{long}\n")) == [{"a": "1,2", "b": long}]

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            ("", " is empty; it needs a header and at least one row"),
            ("a,b\n\n", " is empty"),
            ("a,b\n1,2\n1\n", ":3 has 1 cells, but the header has 2"),
            ("a,b\n1,2,3\n", ":2 has 3 cells, but the header has 2"),
            ("a,b,a\n1,2,3\n", " has 2 columns named 'a'"),
            ('a\n1\n"x', ":3 is not valid CSV"),
            ('a\n"x"y\n', ":2 is not valid CSV"),
            (b"a\n1\n\xe4\n", ":3 is not UTF-8 (byte 0xe4)"),
        ],
    )
    def test_bad_csv(self, tmp_path, content, what):
        path = write(tmp_path / "a.csv", content)
        assert error_of(read_rows, path).startswith(path + what)


class TestArrow:
    def test_parquet(self, tmp_path):
        import pyarrow
        from pyarrow.parquet import write_table

        path = str(tmp_path / "a.parquet")
        write_table(pyarrow.table({"prompt": ["1", None], "n": [3, 4]}), path)
        assert read_rows(path) == [
            Row(1, {"prompt": "1", "n": 3}, "a.parquet"),
            Row(2, {"prompt": None, "n": 4}, "a.parquet"),
        ]

    def test_fields_that_arrow_adds_to_messages_are_gone(self, tmp_path):
        from datasets import Dataset

        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
            {"role": "tool", "content": "2", "name": "f"},
        ]
        dataset = Dataset.from_list([{"messages": messages}])
        assert set(dataset[0]["messages"][0]) == {"role", "content", "tool_calls", "name"}
        dataset.to_parquet(tmp_path / "a.parquet")
        dataset.save_to_disk(tmp_path / "saved")
        for name in ("a.parquet", "saved"):
            assert values_of(str(tmp_path / name)) == [{"messages": messages}]

    def test_no_parquet(self, tmp_path):
        path = write(tmp_path / "a.parquet", "PAR1 not really")
        assert error_of(read_rows, path).startswith(f"{path} cannot be read as Parquet: ")
        assert "did you mean" in error_of(read_rows, str(tmp_path / "b.parquet"))

    def test_parquet_without_rows(self, tmp_path):
        import pyarrow
        from pyarrow.parquet import write_table

        write_table(pyarrow.table({"prompt": pyarrow.array([], "string")}), tmp_path / "a.parquet")
        assert error_of(read_rows, str(tmp_path / "a.parquet")) == "a.parquet has no rows"


class TestFolders:
    def test_saved_dataset(self, tmp_path):
        from datasets import Dataset

        Dataset.from_list([{"a": "1"}, {"a": "2"}]).save_to_disk(tmp_path / "saved")
        assert read_rows(str(tmp_path / "saved")) == [Row(1, {"a": "1"}, "saved"), Row(2, {"a": "2"}, "saved")]

    def test_saved_dataset_with_splits(self, tmp_path):
        from datasets import Dataset, DatasetDict

        folder = str(tmp_path / "saved")
        parts = {name: Dataset.from_list([{"a": name}]) for name in ("train", "test", "extra")}
        DatasetDict(parts).save_to_disk(folder)
        assert read_rows(folder) == [Row(1, {"a": "train"}, "saved/train")]
        assert values_of(folder, split="extra") == [{"a": "extra"}]
        message = error_of(read_rows, folder, split="validation")
        assert message == (
            f"{folder} has no split 'validation', only train, test and extra; choose with {{class_path: HubDataset, "
            f"init_args: {{path: {folder}, split: train}}}}"
        )

    def test_damaged_saved_dataset(self, tmp_path):
        from datasets import Dataset

        Dataset.from_list([{"a": "1"}]).save_to_disk(tmp_path / "saved")
        next((tmp_path / "saved").glob("*.arrow")).unlink()
        assert "cannot be loaded as a saved dataset: " in error_of(read_rows, str(tmp_path / "saved"))

    def test_files_are_read_by_name_and_hidden_and_other_ones_left_out(self, tmp_path):
        write(tmp_path / "b.jsonl", lines({"a": 3}))
        write(tmp_path / "a.jsonl", lines({"a": 1}, {"a": 2}))
        write(tmp_path / "c" / "a.jsonl.gz", gzip.compress(lines({"a": 4}).encode()))
        for name in ("README.md", ".cache/x.jsonl", ".hidden.jsonl", "dataset_infos.json"):
            write(tmp_path / name, "not rows")
        assert [row.values["a"] for row in read_rows(str(tmp_path))] == [1, 2, 3, 4]
        assert places_of(str(tmp_path)) == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "c/a.jsonl.gz:1"]

    @pytest.mark.parametrize(
        "names",
        [
            ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl"),
            ("train/a.jsonl", "train/b.jsonl", "test/a.jsonl"),
            ("data/my_train_1.jsonl", "data/Train.2.jsonl", "data/eval.jsonl"),
            ("test_v2/train_1.jsonl", "test_v2/train_2.jsonl", "test_v2/x.jsonl"),
        ],
    )
    def test_splits_by_name(self, tmp_path, names):
        for number, name in enumerate(names):
            write(tmp_path / name, lines({"a": number}))
        assert sorted(row.values["a"] for row in read_rows(str(tmp_path))) == [0, 1]
        assert values_of(str(tmp_path), split="test") == [{"a": 2}]
        assert "has no split 'validation', only test and train" in error_of(
            read_rows, str(tmp_path), split="validation"
        )

    def test_words_inside_words_are_no_splits(self, tmp_path):
        for name in ("constraint.jsonl", "latest.jsonl", "values.jsonl"):
            write(tmp_path / name, lines({"a": name}))
        assert len(read_rows(str(tmp_path), split="validation")) == 3

    def test_faulty_folders(self, tmp_path):
        assert "has no file that ends with .jsonl, .json, .csv" in error_of(read_rows, str(tmp_path))
        write(tmp_path / "a.jsonl", lines({"a": 1}))
        write(tmp_path / "train.jsonl", lines({"a": 1}))
        message = error_of(read_rows, str(tmp_path))
        assert "train.jsonl belongs to the split train by its name, a.jsonl to none" in message
        (tmp_path / "train.jsonl").rename(tmp_path / "b.json")
        assert "has files of several kinds (b.json, a.jsonl)" in error_of(read_rows, str(tmp_path))

    def test_a_faulty_row_is_named_with_its_file(self, tmp_path):
        write(tmp_path / "a.jsonl", lines({"a": 1}))
        write(tmp_path / "b.jsonl", lines({"a": 1}) + "{")
        assert error_of(read_rows, str(tmp_path)).startswith(f"{tmp_path}/b.jsonl:2 is not valid JSON")


class TestStrings:
    def test_unknown_suffix(self, tmp_path):
        path = write(tmp_path / "a.txt", "x")
        message = error_of(read_rows, path)
        assert message.startswith(f"{path} ends with '.txt'; rows are read from .jsonl, .json, .csv, .tsv, .parquet")
        assert "has no suffix" in error_of(read_rows, write(tmp_path / "rows", "x"))
        assert "ends with '.gz'" in error_of(read_rows, write(tmp_path / "a.parquet.gz", "x"))

    @pytest.mark.parametrize("name", ["trian.jsonl", "./trian.jsonl", "a/b/c", "/no/such", "~/nothing-of-that-name"])
    def test_missing_files(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "train.jsonl", lines({"a": 1}))
        message = error_of(read_rows, name)
        assert "does not exist" in message
        assert ("did you mean train.jsonl?" in message) == ("trian" in name)

    def test_urls(self):
        assert "is a URL; download it" in error_of(read_rows, "https://example.com/a.jsonl")

    def test_home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        write(tmp_path / "a.csv", "a\n1\n")
        assert values_of("~/a.csv") == [{"a": "1"}]

    def test_messages_as_json(self, tmp_path):
        messages = [{"role": "user", "content": 'a "b",\nc'}]
        escaped = json.dumps(messages).replace('"', '""')
        assert values_of(write(tmp_path / "a.csv", f'id,messages\n1,"{escaped}"\n')) == [
            {"id": "1", "messages": messages}
        ]
        repr_of = write(tmp_path / "b.csv", f'messages\n"{messages!r}"\n'.replace('"b"', '""b""'))
        message = error_of(read_rows, repr_of)
        assert message.startswith("b.csv:2: messages is a string that is not JSON: ")
        assert message.endswith("write it with json.dumps")

    def test_own_sources(self):
        class Numbers(RowSource):
            name = "numbers"

            def rows(self):
                return [Row(1, {"messages": '[{"role": "user"}]'}, "numbers")]

        class Nothing(Numbers):
            def rows(self):
                return []

        assert values_of(Numbers()) == [{"messages": [{"role": "user"}]}]
        assert error_of(read_rows, Nothing()) == "numbers has no rows"
