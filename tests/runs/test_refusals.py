"""Bad input through the Python API: one line that names what, where and the way out, before a model loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from runs.faulty_reward import Faulty
from runs.tiny_run import make_task, make_trainer, rlvr_data, rlvr_module, rollout_callback, sft_data, sft_module
from tiny import sorting_rows, write_jsonl

from roll_lightning.errors import ConfigError, DataError, RewardError, RollLightningError
from roll_lightning.functional.advantages import GAE
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.rlvr import KLConfig, RLVRModule
from roll_lightning.modules.sft import SFTModule
from roll_lightning.rewards.exact_match import ExactMatch
from roll_lightning.rewards.length import LengthPenalty


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture
def no_model(monkeypatch) -> None:
    """No weights may be loaded."""

    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("roll_lightning.modules.language.load_policy", loaded)


def refused(run, kind: type[RollLightningError], *words: str) -> str:
    with pytest.raises(kind) as caught:
        run()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


def fit_rlvr(task: Path, root: Path, data: dict | None = None, rollout: dict | None = None, module=None, **settings):
    trainer = make_trainer(root, [rollout_callback(**(rollout or {}))], **({"max_epochs": 1} | settings))
    trainer.fit(module or rlvr_module(task), datamodule=rlvr_data(task, **(data or {})))
    return trainer


def fit_sft(task: Path, root: Path, data: dict | None = None, module=None, callbacks=(), **settings):
    trainer = make_trainer(root, callbacks, **({"max_epochs": 1} | settings))
    trainer.fit(module or sft_module(task), datamodule=sft_data(task, **(data or {})))
    return trainer


def lines(path: Path, *rows: str) -> str:
    path.write_text("".join(row + "\n" for row in rows))
    return str(path)


GOOD = json.dumps({"prompt": "12=", "answer": "12", "completion": "12"})


@pytest.mark.usefixtures("no_model")
class TestData:
    @pytest.mark.parametrize("fit", [fit_sft, fit_rlvr])
    def test_missing_file(self, task, tmp_path, fit):
        refused(lambda: fit(task, tmp_path, {"train": str(task / "rl.json")}), DataError, "rl.json", "rl.jsonl")

    @pytest.mark.parametrize("fit", [fit_sft, fit_rlvr])
    def test_empty_file(self, task, tmp_path, fit):
        refused(lambda: fit(task, tmp_path, {"train": lines(tmp_path / "no.jsonl")}), DataError, "no.jsonl")

    @pytest.mark.parametrize("fit", [fit_sft, fit_rlvr])
    def test_malformed_row(self, task, tmp_path, fit):
        file = lines(tmp_path / "rows.jsonl", GOOD, '{"prompt": "1=",')
        refused(lambda: fit(task, tmp_path, {"train": file}), DataError, "rows.jsonl:2")

    @pytest.mark.parametrize(("fit", "column"), [(fit_sft, "completion"), (fit_rlvr, "answer")])
    def test_missing_column(self, task, tmp_path, fit, column):
        file = lines(tmp_path / "rows.jsonl", GOOD, '{"prompt": "1=", "answers": "1"}')
        refused(lambda: fit(task, tmp_path, {"train": file}), DataError, column, "rows.jsonl:2")

    def test_T33_template_without_generation_marker(self, task, tmp_path):
        row = {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "1"}]}
        template = tmp_path / "plain.jinja"
        template.write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
        module = SFTModule(PolicyConfig(str(task / "model"), chat_template=str(template)))
        file = str(write_jsonl(tmp_path / "rows.jsonl", [row]))
        refused(lambda: fit_sft(task, tmp_path, {"train": file}, module), ConfigError, "generation", "plain.jinja")

    def test_prompt_longer_than_the_limit(self, task, tmp_path):
        refused(
            lambda: fit_rlvr(task, tmp_path, {"max_prompt_length": 3}), DataError, "rl.jsonl:1", "4 tokens", "overlong"
        )

    def test_longer_than_the_model(self, task, tmp_path):
        refused(lambda: fit_rlvr(task, tmp_path, rollout={"max_new_tokens": 100}), ConfigError, "max_new_tokens", "64")

    def test_numbers_that_do_not_divide(self, task, tmp_path):
        text = refused(lambda: fit_rlvr(task, tmp_path, {"batch_size": 7}), ConfigError, "data.batch_size", "4 or 8")
        assert "16 samples" in text

    def test_fewer_prompts_than_an_iteration_takes(self, task, tmp_path):
        rollout = {"prompts_per_iteration": 32}
        refused(lambda: fit_rlvr(task, tmp_path, rollout=rollout), ConfigError, "prompts_per_iteration 32", "20")

    def test_a_group_of_one(self, task, tmp_path):
        rollout = {"num_generations": 1, "prompts_per_iteration": 8}
        refused(lambda: fit_rlvr(task, tmp_path, rollout=rollout), ConfigError, "num_generations is 1", "group of one")

    def test_a_budget_that_cannot_fit_names_one_that_does(self, task, tmp_path):
        budget = {"max_tokens_per_micro_batch": 20}
        text = refused(lambda: fit_rlvr(task, tmp_path, budget), ConfigError, "accumulate_grad_batches to 4")
        assert "needs 4 micro-batches" in text

    def test_folder_without_tokenizer(self, task, tmp_path):
        (tmp_path / "model").mkdir()
        for name in ("config.json", "model.safetensors"):
            (tmp_path / "model" / name).symlink_to(task / "model" / name)
        module = RLVRModule(PolicyConfig(str(tmp_path / "model")))
        refused(lambda: fit_rlvr(task, tmp_path, module=module), ConfigError, "tokenizer", str(tmp_path / "model"))

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"overfit_batches": 2}, ["trainer.overfit_batches is 2"]),
            ({"limit_train_batches": 3}, ["limit_train_batches 3", "set it to 2"]),
            ({"limit_train_batches": 0.5}, ["limit_train_batches 0.5"]),
            ({"use_distributed_sampler": True}, ["use_distributed_sampler=False"]),
            ({"callbacks": [GradientAccumulationScheduler({0: 2})], "accumulate_grad_batches": 1}, ["remove it"]),
        ],
    )
    def test_trainer_settings(self, task, tmp_path, settings, words):
        refused(lambda: fit_sft(task, tmp_path, **settings), ConfigError, *words)

    def test_no_rollout_callback(self, task, tmp_path):
        trainer = make_trainer(tmp_path, [], max_epochs=1)
        refused(lambda: trainer.fit(rlvr_module(task), datamodule=rlvr_data(task)), ConfigError, "rollout")

    def test_nothing_to_validate(self, task, tmp_path):
        trainer = make_trainer(tmp_path, [rollout_callback()])
        data = rlvr_data(task, val=None)
        refused(lambda: trainer.validate(rlvr_module(task), data), ConfigError, "data.val", "validate")

    @pytest.mark.parametrize(
        ("rewards", "words"),
        [
            ([LengthPenalty(4, 2)], ["length_penalty", "verifier"]),
            ([ExactMatch(), ExactMatch()], ["2 entries named 'exact_match'"]),
        ],
    )
    def test_lists_of_rewards(self, task, tmp_path, rewards, words):
        refused(lambda: fit_rlvr(task, tmp_path, rollout={"rewards": rewards}), ConfigError, *words)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rollout_callback(num_generations=0), ["num_generations is 0"]),
        (lambda: rollout_callback(rewards=[]), ["rollout.rewards is empty"]),
        (lambda: rollout_callback(temperature=0), ["temperature is 0"]),
        (lambda: rollout_callback(top_p=0), ["top_p is 0"]),
        (lambda: rollout_callback(max_new_tokens=0), ["max_new_tokens is 0"]),
        (lambda: KLConfig("advantage"), ["kl.placement is 'advantage'"]),
        (lambda: RLVRModule(PolicyConfig("x"), advantage=GAE()), ["GAE needs a critic"]),
        (lambda: RLVRModule(PolicyConfig("x"), aggregation="mean"), ["aggregation mode is 'mean'", "token-mean"]),
        (lambda: RLVRModule(PolicyConfig("x"), reference=PolicyConfig("y")), ["model.reference", "placement"]),
    ],
)
def test_settings(make, words):
    refused(make, ConfigError, *words)


@pytest.mark.parametrize("how", ["raises", "hangs", "ends", "nan", "count"])
def test_a_faulty_reward_ends_the_run_and_leaves_no_process(task, tmp_path, how):
    import multiprocessing

    import psutil

    rollout = {"rewards": [Faulty(how)], "reward_deadline": 1.0}
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    refused(lambda: fit_rlvr(task, tmp_path, {"val": None}, rollout), RewardError, "faulty", "rl.jsonl:")
    left = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not left
    assert not multiprocessing.active_children()


def test_a_faulty_reward_may_cost_its_answer_only(task, tmp_path):
    rollout = {"rewards": [Faulty("hangs")], "reward_deadline": 1.0, "reward_on_error": "none"}
    trainer = fit_rlvr(task, tmp_path, {"val": None}, rollout)
    assert trainer.callback_metrics["critic/unscored_samples"] == 1
    assert all(p.isfinite().all() for p in trainer.lightning_module.parameters())


def test_nothing_could_be_scored(task, tmp_path):
    rows = str(write_jsonl(tmp_path / "rows.jsonl", [{"prompt": row["prompt"]} for row in sorting_rows(8)]))
    data = {"train": rows, "val": None, "answer_column": None}
    rollout = {"rewards": [ExactMatch()]}
    refused(lambda: fit_rlvr(task, tmp_path, data, rollout), RewardError, "iteration 0", "data.answer_column")
