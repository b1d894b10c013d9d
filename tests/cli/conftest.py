from __future__ import annotations

import pytest
from cli_run import Command
from cli_samples import CountBatches, TinyModel


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    monkeypatch.chdir(tmp_path)
    TinyModel.built.clear()
    CountBatches.counts.clear()
    return Command(tmp_path, capsys)
