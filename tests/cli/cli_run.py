"""Runs the command line inside the test process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll_lightning.cli import main

BASE = {
    "seed_everything": 1,
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": "run",
    },
    "model": {"class_path": "cli_samples.TinyModel", "init_args": {"name": "tiny"}},
    "data": {"class_path": "cli_samples.TinyData"},
}


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error line, which must be the last on stderr."""
        line = self.err.splitlines()[-1]
        assert line.startswith("error: "), self.err
        return line.removeprefix("error: ")


class Command:
    """``roll-lightning`` in a folder of its own, with ``base.yaml`` there."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.write("base.yaml", BASE)

    def write(self, name: str, tree: Any) -> str:
        text = tree if isinstance(tree, str) else yaml.safe_dump(tree, sort_keys=False)
        (self.folder / name).write_text(text)
        return name

    def __call__(self, *arguments: str) -> Result:
        self.capsys.readouterr()
        status = main(list(arguments))
        captured = self.capsys.readouterr()
        return Result(status, captured.out, captured.err)

    def fit(self, *arguments: str) -> Result:
        return self("fit", "--config", "base.yaml", *arguments)

    def resolved(self, *arguments: str) -> dict[str, Any]:
        result = self.fit(*arguments, "--print_config")
        assert result.status == 0, result.err
        return yaml.safe_load(result.out)
