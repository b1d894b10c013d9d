"""Domains, shares and reasoning-gym through the command line, in real runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from tiny import write_jsonl, write_model

from roll_lightning.cli import main
from roll_lightning.collectors.replay import read_rollouts

LETTERS = "".join(chr(code) for code in range(32, 127)) + "\n€£¥₹"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model that reads text, rows of two domains, and a config."""
    from roll_lightning.models.tokenizer import character_tokenizer

    folder = tmp_path_factory.mktemp("domains")
    write_model(folder / "model", weights=True, vocab_size=len(LETTERS) + 3, max_position_embeddings=2048)
    character_tokenizer(LETTERS).save_pretrained(folder / "model")
    rows = [
        {"prompt": f"{number}=", "answer": str(number % 7), "domain": "code" if number % 4 else "maths"}
        for number in range(40)
    ]
    write_jsonl(folder / "rows.jsonl", rows)
    config = {
        "trainer": {"accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False, "enable_model_summary": False},
        "model": {
            "class_path": "RLVRModule",
            "init_args": {"policy": {"path": str(folder / "model"), "chat_template": "plain"}},
        },
        "data": {
            "class_path": "RLVRDataModule",
            "init_args": {
                "train": str(folder / "rows.jsonl"),
                "batch_size": 16,
                "domains": {
                    "maths": {"share": 0.25, "system": "Add.", "examples": [{"prompt": "1+1=", "answer": "2"}]},
                    "code": {"share": 0.75},
                },
            },
        },
        "rollout": {
            "prompts_per_iteration": 8,
            "num_generations": 2,
            "max_new_tokens": 3,
            "rewards": [{"class_path": "ExactMatch"}],
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    del config["data"]["init_args"]["domains"]
    (folder / "plain.yaml").write_text(yaml.safe_dump(config))
    return folder


def fit(folder: Path, root: Path, *arguments: str) -> int:
    return main(["fit", "--config", str(folder / "config.yaml"), "--trainer.default_root_dir", str(root), *arguments])


def test_shares_and_turns_reach_the_engine(folder, tmp_path):
    assert fit(folder, tmp_path, "--rollout.record_dir", str(tmp_path / "rollouts")) == 0
    for iteration in range(2):
        rollouts = read_rollouts(str(tmp_path / "rollouts"), iteration)
        assert Counter(rollout.prompt.domain for rollout in rollouts) == {"maths": 4, "code": 12}
    maths = next(rollout.prompt for rollout in rollouts if rollout.prompt.domain == "maths")
    assert [message["role"] for message in maths.messages] == ["system", "user", "assistant", "user"]
    assert "Add." in maths.text
    code = next(rollout.prompt for rollout in rollouts if rollout.prompt.domain == "code")
    assert code.messages == ()


def error_of(capsys, folder: Path, root: Path, *arguments: str) -> str:
    capsys.readouterr()
    assert fit(folder, root, *arguments) == 1
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data.domains.maths.share", "0.5"], "the shares of data.domains add up to 1.25, not 1"),
        (["--data.domains.maths.shar", "0.5"], "unknown key data.domains.maths.shar; did you mean"),
        (["--data.domains.coed.system", "x"], "data.domains has coed, but no prompt of"),
        (["--rollout.prompts_per_iteration", "6", "--data.batch_size", "12"], "set it to 4 or 8"),
    ],
)
def test_bad_shares_are_one_line(folder, tmp_path, capsys, arguments, named):
    assert named in error_of(capsys, folder, tmp_path, *arguments)


def test_shares_cannot_change_while_a_run_goes_on(folder, tmp_path, capsys):
    assert fit(folder, tmp_path) == 0
    changed = ["--data.domains.maths.share", "0.5", "--data.domains.code.share", "0.5"]
    more = ["--ckpt_path", "last", "--trainer.max_epochs", "3", *changed]
    assert "the shares of data.domains changed" in error_of(capsys, folder, tmp_path, *more)


def drawn(recordings: Path, iterations: range) -> list[list[str]]:
    """The prompt id of every rollout, by iteration."""
    return [[one.prompt.id for one in read_rollouts(str(recordings), number)] for number in iterations]


def test_T45_a_resumed_run_draws_the_prompts_of_one_that_went_on(folder, tmp_path):
    whole, part, rest = (tmp_path / name for name in ("whole", "part", "rest"))
    assert fit(folder, whole, "--trainer.max_epochs", "4", "--rollout.record_dir", str(whole / "r")) == 0
    assert fit(folder, part, "--trainer.max_epochs", "2", "--rollout.record_dir", str(part / "r")) == 0
    more = ["--trainer.max_epochs", "4", "--ckpt_path", "last", "--rollout.record_dir", str(rest)]
    assert fit(folder, part, *more) == 0
    expected = drawn(whole / "r", range(4))
    assert len({tuple(ids) for ids in expected}) == 4
    assert drawn(part / "r", range(2)) + drawn(rest, range(2, 4)) == expected


def test_T12_a_prompt_that_is_drawn_twice_makes_two_groups(folder, tmp_path):
    rows = [{"prompt": f"{n}=", "answer": "1", "domain": "code" if n > 2 else "maths"} for n in range(20)]
    train = ["--data.train", str(write_jsonl(tmp_path / "rows.jsonl", rows)), "--trainer.max_epochs", "12"]
    assert fit(folder, tmp_path, *train, "--rollout.record_dir", str(tmp_path / "r")) == 0
    twice = 0
    for number in range(12):  # two of three maths prompts: now and then the last of a pass and the first of the next
        groups: dict[int, set[str]] = {}
        for one in read_rollouts(str(tmp_path / "r"), number):
            groups.setdefault(one.group, set()).add(one.prompt.id)
        assert len(groups) == 8
        assert all(len(ids) == 1 for ids in groups.values())
        twice += len({next(iter(ids)) for ids in groups.values()}) < 8
    assert twice


def test_training_prompts_that_are_validated_on_are_said(folder, tmp_path, recwarn):
    assert fit(folder, tmp_path, "--data.val", str(folder / "rows.jsonl"), "--trainer.max_epochs", "1") == 0
    assert any("40 of 40 training prompts are validation prompts" in str(one.message) for one in recwarn.list)


def test_training_prompts_that_are_validated_on_are_dropped(folder, tmp_path, capsys):
    held_out = [{"prompt": f"{number}=", "answer": "1", "domain": "code"} for number in (1, 2, 3, 5, 99)]
    held_out.append({"prompt": "6=", "answer": "1", "domain": "maths"})  # with its domain's turns: another prompt
    val = ["--data.val", str(write_jsonl(tmp_path / "val.jsonl", held_out)), "--data.overlap", "drop"]
    recorded = ["--rollout.record_dir", str(tmp_path / "rollouts"), "--trainer.max_epochs", "5"]
    assert fit(folder, tmp_path, *val, *recorded) == 0
    rollouts = [one for iteration in range(5) for one in read_rollouts(str(tmp_path / "rollouts"), iteration)]
    code = {int(one.prompt.text.rstrip("=")) for one in rollouts if one.prompt.domain == "code"}
    assert code == {number for number in range(40) if number % 4} - {1, 2, 3, 5}
    every = ["--data.val", str(folder / "rows.jsonl"), "--data.overlap", "drop"]
    assert "all 40 training prompts are validation prompts" in error_of(capsys, folder, tmp_path / "other", *every)


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def extra(self):
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is an extra")

    def source(self, **init_args) -> list[str]:
        tasks = {"class_path": "ReasoningGymTasks", "init_args": {"tasks": ["chain_sum"], "size": 30} | init_args}
        return ["--data.train", yaml.safe_dump(tasks, default_flow_style=True), "--data.domains", "null"]

    def test_a_run(self, folder, tmp_path):
        val = {"class_path": "ReasoningGymTasks", "init_args": {"tasks": ["chain_sum"], "size": 4, "seed": 1}}
        held_out = ["--data.val", yaml.safe_dump(val, default_flow_style=True)]
        recorded = ["--rollout.record_dir", str(tmp_path / "rollouts"), "--trainer.max_epochs", "1"]
        assert fit(folder, tmp_path, *self.source(), *held_out, *recorded) == 0
        (rollout, *_) = read_rollouts(str(tmp_path / "rollouts"), 0)
        assert rollout.prompt.domain == "chain_sum"
        assert rollout.prompt.columns["reasoning_gym"]["entry"]["answer"] == rollout.prompt.answer

    def test_a_wrong_name_is_one_line(self, folder, tmp_path, capsys):
        assert "did you mean chain_sum?" in error_of(capsys, folder, tmp_path, *self.source(tasks=["chainsum"]))

    def test_the_recipe(self, folder, tmp_path):
        recipe = Path(__file__).parents[2] / "configs/recipes/reasoning_gym.yaml"
        short = ["--data.train.size", "8", "--data.val.size", "2", "--rollout.max_new_tokens", "4"]
        recorded = ["--rollout.record_dir", str(tmp_path / "rollouts"), "--trainer.max_epochs", "1"]
        configs = ["--config", str(folder / "plain.yaml"), "--config", str(recipe)]
        assert main(["fit", *configs, *short, *recorded, "--trainer.default_root_dir", str(tmp_path)]) == 0
        rollouts = read_rollouts(str(tmp_path / "rollouts"), 0)
        assert {(r.prompt.domain, *r.components) for r in rollouts} == {
            ("chain_sum", "sums"),
            ("gsm_symbolic", "word_problems"),
        }
