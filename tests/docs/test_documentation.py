"""Every command and every Python example of the documentation runs, shortened where it would take long."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from roll_lightning.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = {
    "configs/sft.yaml": ["--trainer.max_steps", "2"],
    "configs/rlvr.yaml": ["--trainer.max_epochs", "2"],
    "configs/examples/real_model.yaml": ["--trainer.max_epochs", "2"],
}
BY_OTHER_TESTS = {
    "make quickstart",
    "make quickstart SEED=1",
    "make test",
    "make test-real",
    "make example-real",
    "make example-real LORA=1",
    "make example-real MODEL=my/folder",
    "make example-real-data",
}


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [(page.name, block) for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]
    return found


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for _, block in blocks("bash") for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


def test_every_documented_command_is_known():
    for command in commands():
        assert command in BY_OTHER_TESTS or command.startswith("roll-lightning "), command


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("roll-lightning ")])
def test_documented_command_runs(command, quickstart_folder, monkeypatch, capsys):
    monkeypatch.chdir(quickstart_folder)
    arguments = shlex.split(command)[1:]
    if arguments[0] == "fit" and "--print_config" not in arguments:
        arguments += SHORT[arguments[arguments.index("--config") + 1]]
        if "last" in arguments:
            # What this documents is an interruption: there must be something left to train.
            arguments[-1] = "3"
    if any(f"configs/recipes/{name}" in command for name in ("ddp", "fsdp2", "deepspeed")):
        # Two ranks: the first starts the second by its own command line.
        script = Path(sys.executable).with_name("roll-lightning")
        done = subprocess.run([script, *arguments], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    else:
        assert main(arguments) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), blocks("python"))
def test_documented_python_runs(page, block, quickstart_folder, monkeypatch):
    monkeypatch.chdir(quickstart_folder)
    block = block.replace("max_steps=20", "max_steps=2").replace("max_epochs=5", "max_epochs=1")
    exec(compile(block, page, "exec"), {})


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
