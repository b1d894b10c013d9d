from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from small_hub import small_hub

from roll_lightning.data.hub import HubDataset
from roll_lightning.data.sources import read_rows
from roll_lightning.errors import ConfigError, DataError

CALLS = """
import json, sys
from roll_lightning.data.hub import HubDataset
from roll_lightning.data.sources import read_rows
from roll_lightning.errors import RollLightningError
answers = []
for call in json.loads(sys.argv[1]):
    try:
        rows = HubDataset(**call).rows() if isinstance(call, dict) else read_rows(*call)
        answers.append([[row.where, row.values] for row in rows])
    except RollLightningError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""
FILES = {
    "train.jsonl": b'{"question": "1+1", "answer": "2"}\n{"question": "1+2", "answer": "3"}\n',
    "test.jsonl": b'{"question": "2+2", "answer": "4"}\n',
}


def ask(endpoint, home, *calls, offline=False):
    """What the calls give in a process of their own: huggingface_hub reads its settings once."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1" if offline else "0"}
    arguments = [sys.executable, "-c", CALLS, json.dumps(calls)]
    done = subprocess.run(arguments, env=os.environ | settings, capture_output=True, text=True, timeout=120, cwd=home)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert all("\n" not in answer for answer in answers if isinstance(answer, str))
    return answers, done.stderr


def test_hub_dataset_is_read_and_then_found_in_the_cache(tmp_path):
    calls = [["me/sums"], {"path": "me/sums", "split": "test", "rename": {"question": "prompt"}}]
    rows = [
        [
            ["me/sums/train:1", {"question": "1+1", "answer": "2"}],
            ["me/sums/train:2", {"question": "1+2", "answer": "3"}],
        ],
        [["me/sums/test:1", {"prompt": "2+2", "answer": "4"}]],
    ]
    faults = [["me/sums", "validation"], {"path": "me/sums"}, ["me/none"], {"path": "me/sums", "name": "big"}]
    revisions = [{"path": "me/sums", "split": "test", "revision": revision} for revision in ("main", "v9")]
    with small_hub("me/sums", FILES) as endpoint:
        answers, _ = ask(endpoint, tmp_path, *calls, *faults, *revisions)
    assert answers[:2] == rows
    no_split, two_splits, no_dataset, no_name, main, no_revision = answers[2:]
    choose = "; choose with {class_path: HubDataset, init_args: {path: me/sums, split: train}}"
    assert no_split == "me/sums has no split 'validation', only train and test" + choose
    assert two_splits == "me/sums has the splits train and test" + choose
    assert no_dataset.startswith("me/none is no file or folder here, and the Hugging Face hub has no such dataset")
    assert "me/sums cannot be loaded from the Hugging Face hub: " in no_name
    assert "'big'" in no_name
    assert len(main) == 1
    assert no_revision == "me/sums has no revision 'v9' on the Hugging Face hub"

    answers, _ = ask(endpoint, tmp_path, *calls, *faults[:3], revisions[0], offline=True)
    assert answers[:4] == [*rows, no_split, two_splits]
    assert "cannot be reached: HF_HUB_OFFLINE is set, and it is not in the cache" in answers[4]
    assert "which copy of me/sums is the revision main" in answers[5]


def test_several_configurations(tmp_path):
    configs = [
        {"config_name": "main", "data_files": "train.jsonl"},
        {"config_name": "hard", "data_files": "test.jsonl"},
    ]
    card = f"---\n{json.dumps({'configs': configs})}\n---\n".encode()
    with small_hub("me/sums", FILES | {"README.md": card}) as endpoint:
        (fault, hard), _ = ask(endpoint, tmp_path, ["me/sums"], {"path": "me/sums", "name": "hard"})
    assert fault == (
        "me/sums has several configurations: ['main', 'hard']; choose with {class_path: HubDataset, init_args: "
        "{path: me/sums, name: ...}}"
    )
    assert hard == [["me/sums/train:1", {"question": "2+2", "answer": "4"}]]


def test_no_network_is_noticed_at_the_first_try(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").mkdir()
    # Nothing listens on port 9. That `datasets` tries again and again would show in its log.
    (fault, near), log = ask("http://127.0.0.1:9", tmp_path, ["me/sums"], ["data/trian"])
    assert fault.startswith(
        "me/sums is no file or folder here, so it is looked for on the Hugging Face hub, which cannot be reached: "
    )
    assert fault.endswith(
        "; where there is network run: hf download me/sums --repo-type dataset --local-dir FOLDER, and give FOLDER "
        "instead (or set HF_HUB_OFFLINE=1 to use a copy in the cache)"
    )
    assert near.startswith("data/trian is no file or folder here (did you mean data/train?), so it is looked for")
    assert "Retry" not in log


def test_a_download_of_the_hub_is_a_folder_that_can_be_read(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert len(read_rows(str(tmp_path))) == 2
    assert len(HubDataset(str(tmp_path), split="test").rows()) == 1


def saved(folder, **splits):
    from datasets import Dataset, DatasetDict

    DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()}).save_to_disk(folder)
    return str(folder)


def error_of(kind, call):
    with pytest.raises(kind) as info:
        call()
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


def test_local_folders_and_files(tmp_path):
    folder = saved(tmp_path / "saved", train=[{"q": "1", "a": "2"}], test=[{"q": "3", "a": "4"}])
    source = HubDataset(folder, split="test", rename={"q": "prompt", "a": "completion"})
    assert source.name == f"{folder}/test"
    assert [(row.where, row.values) for row in read_rows(source)] == [
        ("saved/test:1", {"prompt": "3", "completion": "4"})
    ]
    assert "has the splits train and test" in error_of(DataError, HubDataset(folder).rows)
    only = saved(tmp_path / "only", test=[{"q": "5"}])
    assert HubDataset(only).rows()[0].values == {"q": "5"}
    (tmp_path / "a.jsonl").write_text('{"q": "1"}\n')
    assert HubDataset(str(tmp_path / "a.jsonl"), rename={"q": "text"}).rows()[0].values == {"text": "1"}


def test_T56_what_a_source_has_not_is_refused(tmp_path):
    path = str(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text('{"q": "1", "a": "2"}\n')
    message = error_of(DataError, HubDataset(path, split="train").rows)
    assert message == f"HubDataset.split is train, but {path} has no splits; remove it"
    assert "HubDataset.name is main" in error_of(ConfigError, lambda: HubDataset(path, name="main"))
    assert "HubDataset.revision is v1" in error_of(ConfigError, lambda: HubDataset(path, revision="v1"))
    message = error_of(DataError, HubDataset(path, rename={"question": "prompt"}).rows)
    assert message == "a.jsonl:1 has no column 'question'; it has 'q', 'a' (HubDataset.rename)"
    message = error_of(DataError, HubDataset(path, rename={"q": "a"}).rows)
    assert message == "a.jsonl:1 would have 2 columns 'a' after HubDataset.rename"
