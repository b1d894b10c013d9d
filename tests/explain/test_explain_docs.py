"""docs/explain.md shows what is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from roll_lightning.cli import main

ROOT = Path(__file__).parents[2]


def test_the_output_on_the_page_is_the_output(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/explain.md").read_text(encoding="utf-8")
    commands = re.findall(r"^roll-lightning (explain .*)$", page, re.MULTILINE)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(commands[-1])) == 0
    assert capsys.readouterr().out == shown
