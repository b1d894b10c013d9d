from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model
from tiny_tokenizers import turns

from roll_lightning.cli import main
from roll_lightning.data.hub import HubDataset
from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.errors import CheckpointError, ConfigError, DataError
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.sft import SFTModule

ROWS = sorting_rows(20, answer="completion")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft_data")
    write_model(folder / "model", weights=True)
    write_jsonl(folder / "rows.jsonl", ROWS)
    return folder


@pytest.fixture
def fit(folder, tmp_path):
    def run(steps=0, ckpt=None, **settings):
        data = SFTDataModule(**({"train": str(folder / "rows.jsonl"), "batch_size": 4, "max_length": 32} | settings))
        template = settings.pop("chat_template", None)
        module = SFTModule(PolicyConfig(str(folder / "model"), chat_template=template))
        trainer = quiet_trainer(tmp_path, max_steps=steps, enable_checkpointing=False)
        trainer.fit(module, datamodule=data, ckpt_path=ckpt)
        return data

    return run


def error_of(kind, call):
    with pytest.raises(kind) as info:
        call()
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


def ids(rows):
    return {tuple(row.input_ids) for row in rows}


def write_every_format(folder):
    """The same rows in every format, by name."""
    from datasets import Dataset, DatasetDict

    dataset = Dataset.from_list(ROWS)
    dataset.to_parquet(folder / "rows.parquet")
    dataset.to_csv(folder / "rows.csv")
    dataset.save_to_disk(folder / "saved")
    DatasetDict(train=dataset, validation=dataset.select([0])).save_to_disk(folder / "saved_dict")
    (folder / "rows.json").write_text(json.dumps({"data": ROWS}))
    write_jsonl(folder / "shards" / "1.jsonl", ROWS[:7])
    write_jsonl(folder / "shards" / "2.jsonl", ROWS[7:])
    return ["rows.parquet", "rows.csv", "saved", "saved_dict", "rows.json", "shards"]


def test_every_format_gives_the_same_training_rows(fit, tmp_path):
    expected = fit()
    assert len(expected.train_rows) == 20
    for name in write_every_format(tmp_path / "data"):
        data = fit(train=str(tmp_path / "data" / name))
        assert [row.input_ids for row in data.train_rows] == [row.input_ids for row in expected.train_rows], name
        assert data.fingerprint() == expected.fingerprint()


def test_the_validation_split_of_a_source_is_taken_for_validation(fit, tmp_path):
    write_every_format(tmp_path / "data")
    source = str(tmp_path / "data" / "saved_dict")
    data = fit(train=source, val=source)
    assert (len(data.train_rows), len(data.val_rows)) == (20, 1)
    data = fit(train=source, val=HubDataset(source, split="train"))
    assert len(data.val_rows) == 20


def test_val_fraction_takes_rows_away_from_training(fit):
    data = fit(val_fraction=0.25)
    assert (len(data.train_rows), len(data.val_rows)) == (15, 5)
    assert not ids(data.train_rows) & ids(data.val_rows)
    assert ids(data.train_rows) | ids(data.val_rows) == ids(fit().train_rows)


def test_val_fraction_does_not_change_with_the_run_seed(fit, monkeypatch):
    first = ids(fit(val_fraction=0.25, seed=1).val_rows)
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert ids(fit(val_fraction=0.25).val_rows) == first
    assert ids(fit(val_fraction=0.25, val_seed=1).val_rows) != first


def test_a_later_validation_finds_the_same_rows(fit, folder, tmp_path):
    expected = fit(val_fraction=0.25)
    module = SFTModule(PolicyConfig(str(folder / "model")))
    for run in ("validate", "test"):
        data = SFTDataModule(str(folder / "rows.jsonl"), max_length=32, val_fraction=0.25)
        getattr(quiet_trainer(tmp_path, enable_checkpointing=False), run)(module, datamodule=data, verbose=False)
        assert ids(data.val_rows) == ids(expected.val_rows)
        assert not data.train_rows


def test_a_resumed_run_has_the_same_split_or_is_refused(fit, folder, tmp_path):
    def run(steps, ckpt=None, **settings):
        data = SFTDataModule(str(folder / "rows.jsonl"), batch_size=4, max_length=32, seed=0, **settings)
        trainer = quiet_trainer(tmp_path, max_steps=steps, enable_checkpointing=False)
        trainer.fit(SFTModule(PolicyConfig(str(folder / "model"))), datamodule=data, ckpt_path=ckpt)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return data

    first = run(2, val_fraction=0.25)
    again = run(4, tmp_path / "last.ckpt", val_fraction=0.25)
    assert ids(again.val_rows) == ids(first.val_rows)
    for changed in ({"val_fraction": 0.5}, {"val_fraction": 0.25, "val_seed": 1}, {}):
        message = error_of(CheckpointError, lambda changed=changed: run(6, tmp_path / "last.ckpt", **changed))
        assert "the training data changed" in message


def test_turns_and_form_reach_the_rows(folder, tmp_path):
    row = {"messages": turns("1", "2", "3", "45"), "text": "123"}
    file = str(write_jsonl(tmp_path / "rows.jsonl", [row]))

    def mask(**settings):
        data = SFTDataModule(file, batch_size=1, max_length=64, **settings)
        module = SFTModule(PolicyConfig(str(folder / "model"), chat_template=str(tmp_path / "marked.jinja")))
        quiet_trainer(tmp_path, max_steps=0, enable_checkpointing=False).fit(module, datamodule=data)
        return data.train_rows[0].loss_mask

    (tmp_path / "marked.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert mask(form="messages") == [0, 1, 1, 0, 1, 1, 1]
    assert mask(form="messages", turns="last") == [0, 0, 0, 0, 1, 1, 1]
    assert mask(form="text") == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"val_fraction": 0.5, "val": "x.jsonl"}, "data.val and data.val_fraction 0.5 are both set; keep one"),
        ({"val_fraction": 1.5}, "data.val_fraction is 1.5; it must be more than 0"),
        ({"train": None}, "data.train is not set"),
        ({"train": ""}, "data.train is not set"),
        ({"val_fraction": 0.01}, "leaves none for validation"),
    ],
)
def test_refused(fit, settings, words):
    assert words in error_of(ConfigError, lambda: fit(**settings))


def test_nothing_to_validate(folder, tmp_path):
    module, trainer = SFTModule(PolicyConfig(str(folder / "model"))), quiet_trainer(tmp_path)
    call = lambda data: lambda: trainer.validate(module, datamodule=data)  # noqa: E731
    assert "data.val is not set" in error_of(ConfigError, call(SFTDataModule(str(folder / "rows.jsonl"))))
    assert "data.val_fraction is set, but data.train" in error_of(ConfigError, call(SFTDataModule(val_fraction=0.5)))


def test_a_faulty_source_shows_before_the_model_loads(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(SFTModule, "configure_model", lambda _: pytest.fail("a model was loaded"))
    (tmp_path / "rows.csv").write_text("prompt,completion\n12=,12\n3=,\n")
    message = error_of(DataError, lambda: fit(train=str(tmp_path / "rows.csv")))
    assert message == "rows.csv:3: completion is empty; fill it in, or remove the row"
    write_jsonl(tmp_path / "mixed" / "a.jsonl", ROWS[:2])
    write_jsonl(tmp_path / "mixed" / "b.jsonl", [{"messages": turns("1", "2")}])
    message = error_of(DataError, lambda: fit(train=str(tmp_path / "mixed")))
    assert message.startswith("b.jsonl:1 has messages, but a.jsonl:1 has prompt and completion; ")
    message = error_of(DataError, lambda: fit(train="me/no-such-dataset"))
    assert "HF_HUB_OFFLINE is set, and it is not in the cache" in message


def test_the_command_line_knows_sources_by_their_short_names():
    # In a process that has not imported them.
    call = "from roll_lightning.commandline.classes import concrete_subclasses as known, import_known_classes; "
    call += "from roll_lightning.data.sources import RowSource; import_known_classes(); print(*known([RowSource]))"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert "HubDataset" in done.stdout.split()


class TestYAML:
    @pytest.fixture
    def command(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)

        def run(data, *arguments, command="fit"):
            config = {
                "trainer": {"accelerator": "cpu", "max_steps": 1, "default_root_dir": "run"},
                "model": {"class_path": "SFTModule", "init_args": {"policy": {"path": "model", "from_scratch": True}}},
                "data": {"class_path": "SFTDataModule", "init_args": {"batch_size": 4, "max_length": 32} | data},
            }
            (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
            capsys.readouterr()
            status = main([command, "--config", "config.yaml", *arguments])
            captured = capsys.readouterr()
            return status, captured.out, captured.err.splitlines()[-1:]

        return run

    def resolved(self, command, data, *arguments):
        status, out, error = command(data, *arguments, "--print_config")
        assert status == 0, error
        return yaml.safe_load(out)["data"]["init_args"]

    def error(self, command, data, *arguments):
        status, _, error = command(data, *arguments, "--print_config")
        assert status == 1
        return error[0]

    HUB = {"class_path": "HubDataset", "init_args": {"path": "me/sums", "split": "test"}}  # noqa: RUF012

    def test_strings_and_classes(self, command):
        assert self.resolved(command, {"train": "a.jsonl"})["train"] == "a.jsonl"
        assert self.resolved(command, {"train": "a.jsonl"}, "--data.train", "me/sums")["train"] == "me/sums"
        made = self.resolved(command, {"train": self.HUB, "val": self.HUB}, "--data.val.split", "dev")
        assert made["train"]["class_path"] == "roll_lightning.data.hub.HubDataset"
        assert (made["train"]["init_args"]["path"], made["train"]["init_args"]["split"]) == ("me/sums", "test")
        assert made["val"]["init_args"]["split"] == "dev"

    def test_the_shell_changes_one_into_the_other(self, command):
        short = ["--data.train.class_path", "HubDataset", "--data.train.path", "me/x", "--data.train.name", "main"]
        for data in ({"train": "a.jsonl"}, {}):
            made = self.resolved(command, data, *short)["train"]["init_args"]
            assert (made["path"], made["name"], made["split"]) == ("me/x", "main", None)
        for text in ("b.jsonl", "data/b.parquet", "Some/name", "saved"):
            assert self.resolved(command, {"train": self.HUB}, "--data.train", text)["train"] == text
        assert self.resolved(command, {"train": self.HUB}, "--data.train", "null")["train"] is None
        renamed = ["--data.train.rename.question", "prompt", "--data.train.rename", "{answer: completion}"]
        made = self.resolved(command, {"train": self.HUB}, *renamed)
        assert made["train"]["init_args"]["rename"] == {"question": "prompt", "answer": "completion"}

    def test_T56_unknown_keys_and_values_are_refused(self, command):
        unknown = {"class_path": "HubDataset", "init_args": {"path": "x", "splits": "test"}}
        assert "unknown key data.train.splits; did you mean data.train.split?" in self.error(
            command, {"train": unknown}
        )
        nameless = self.error(command, {"train": {"path": "x"}})
        assert "data.train names no class; add class_path, one of HubDataset" in nameless
        assert "missing key data.train.path" in self.error(command, {}, "--data.train", "HubDataset")
        assert "must be one of all, last" in self.error(command, {"turns": "first"})
        assert "must be one of messages, completion" in self.error(command, {"form": "alpaca"})
        assert "data.val_fraction" in self.error(command, {"val_fraction": "half"})

    def test_a_run_from_a_saved_folder(self, command, tmp_path):
        write_model(tmp_path / "model")
        write_every_format(tmp_path)
        source = {"class_path": "HubDataset", "init_args": {"path": "saved_dict", "split": "train"}}
        assert command({"train": source, "val_fraction": 0.2})[0] == 0
        saved = yaml.safe_load(next((tmp_path / "run").glob("*.yaml")).read_text())
        assert saved["data"]["init_args"]["train"]["init_args"]["path"] == "saved_dict"
        status, _, error = command({"train": source, "val": "saved", "val_fraction": 0.2})
        assert status == 1
        assert "data.val and data.val_fraction 0.2 are both set; keep one" in error[0]
