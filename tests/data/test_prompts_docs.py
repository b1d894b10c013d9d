"""What docs/prompts.md says: its rows become prompts, its YAML is a config."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tiny import write_jsonl
from tiny_tokenizers import bpe_tokenizer

from roll_lightning.cli import main
from roll_lightning.data.prompts import PromptSettings, load_prompts

PAGE = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\| (.*) \| .* \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
ANSWERS = ["012358", "4", "4", "4", None]


@pytest.mark.parametrize(("example", "answer"), zip(EXAMPLES, ANSWERS, strict=True))
def test_rows_become_prompts(tmp_path, example, answer):
    format_, row = example
    settings = yaml.safe_load(
        "{" + ", ".join(re.findall(r"data\.(\w+: (?:null|question|'.*?'))", format_)).replace("`", "") + "}"
    )
    path = str(write_jsonl(tmp_path / "rows.jsonl", [json.loads(row)]))
    (prompt,) = load_prompts(path, bpe_tokenizer(), PromptSettings(**settings)).prompts
    assert prompt.answer == answer


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_yaml_is_a_config(tmp_path, monkeypatch, capsys, block):
    if "ReasoningGym" in block:
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is an extra")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text(block)
    (tmp_path / "model.yaml").write_text(
        "model: {class_path: RLVRModule, init_args: {policy: {path: model}}}\n"
        "rollout: {rewards: [{class_path: ExactMatch}]}"
    )
    assert main(["fit", "--config", "model.yaml", "--config", "data.yaml", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]
    if printed["domains"]:
        assert printed["domains"]["maths"]["share"] == 0.75
        shell = re.search(r"From the shell: `(.*?)`", PAGE).group(1).split()
        assert main(["fit", "--config", "model.yaml", "--config", "data.yaml", "--print_config", *shell]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]["domains"]["maths"]["share"] == 0.5
