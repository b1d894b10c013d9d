"""What docs/data.md says: its rows are read as it says, its YAML is a config."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tiny import write_jsonl
from tiny_tokenizers import bpe_tokenizer

from roll_lightning.cli import main
from roll_lightning.data.columns import NEEDED, find_form
from roll_lightning.data.readers.files import SUFFIXES
from roll_lightning.data.sources import read_rows
from roll_lightning.data.tokenise import tokenise_rows

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\| `(\w+)` \|.*\| (.*) \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
LEARNED = {
    "every assistant turn, its stop token included": "4<|im_end|>",
    "the completion and the EOS token behind it": "012358<|endoftext|>",
    "the completion's assistant turns": "4<|im_end|>",
    "the output and its stop token": "4<|im_end|>",
    "every token but the first; EOS stands at the end": "wo and two are four.<|endoftext|>",
}


def test_every_form_has_an_example():
    assert {form for form, _, _ in EXAMPLES} == set(NEEDED)
    assert len(EXAMPLES) == len(LEARNED)


@pytest.mark.parametrize(("form", "loss", "example"), EXAMPLES)
def test_rows_have_the_form_and_the_loss_that_the_page_says(tmp_path, form, loss, example):
    rows = read_rows(str(write_jsonl(tmp_path / "rows.jsonl", [json.loads(example)])))
    assert find_form(rows) == form
    tokenizer = bpe_tokenizer()
    (row,) = tokenise_rows(rows, tokenizer).rows
    learned = [token for token, mask in zip(row.input_ids, row.loss_mask, strict=True) if mask]
    assert tokenizer.decode(learned) == LEARNED[loss]


def test_every_suffix_is_there():
    for suffix in SUFFIXES:
        assert f"`rows{suffix}`" in PAGE


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_yaml_is_a_config(tmp_path, monkeypatch, capsys, block):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text(block)
    (tmp_path / "model.yaml").write_text("model: {class_path: SFTModule, init_args: {policy: {path: model}}}")
    arguments = ["--config", "model.yaml", "--config", "data.yaml", "--print_config"]
    assert main(["fit", *arguments]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]["val"]["init_args"]["split"] == "test"
    shell = re.search(r"`(--data\.train\.class_path.*?)`", PAGE, re.DOTALL).group(1).split()
    assert main(["fit", *arguments, *shell]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]["train"]["init_args"]["path"] == "my/folder"
