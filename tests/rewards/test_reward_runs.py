"""Rewards in real runs: routing, None, overruns and refusals from the rows to the optimizer step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hanging_rewards import Forgiving, Odds, SometimesNone
from lightning.pytorch import Callback
from runs.tiny_run import make_task, make_trainer, rlvr_data, rlvr_module, rollout_callback
from tiny import sorting_rows, write_jsonl, write_model

from roll_lightning.cli import main
from roll_lightning.collectors.replay import read_rollouts, rollout_file
from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.functional.advantages import GroupRelative
from roll_lightning.modules.rlvr import KLConfig
from roll_lightning.rewards import ExactMatch, LengthPenalty, RewardFunction, WeightedReward


class Watch(Callback):
    """Keeps the experience that is trained on."""

    experience: Any = None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.experience = trainer.datamodule.experience


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    folder = make_task(tmp_path_factory.mktemp("rewards"))
    for name, domains in {"ab": "ab", "b": "b", "abc": "abc"}.items():
        rows = [row | {"domain": domains[n % len(domains)]} for n, row in enumerate(sorting_rows(12))]
        write_jsonl(folder / f"{name}.jsonl", rows)
    return folder


def fit(task: Path, root: Path, rewards: list[RewardFunction], data: dict | None = None, **rollout: Any):
    """One iteration of 4 groups of 4 samples in one step, without a KL term; module and experience."""
    watch = Watch()
    callback = rollout_callback(rewards=rewards, **rollout)
    trainer = make_trainer(root, [callback, watch], max_epochs=1)
    module = rlvr_module(task, kl=KLConfig(), advantage=GroupRelative())
    settings = {"val": None, "batch_size": 16, "ppo_epochs": 1, "seed": 0} | (data or {})
    trainer.fit(module, datamodule=rlvr_data(task, **settings))
    return module, watch.experience


def weights(module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


class TestNone:
    @pytest.fixture(scope="class")
    def run(self, task, tmp_path_factory):
        root = tmp_path_factory.mktemp("none")
        module, experience = fit(task, root, [SometimesNone()], record_dir=str(root / "recorded"))
        return module, experience, read_rollouts(str(root / "recorded"), 0), root

    def test_T13_what_could_not_be_scored_leaves_the_statistics_of_its_group(self, run):
        _, experience, rollouts, _ = run
        per_row = experience.advantages.sum(1) / experience.response_mask.sum(1)
        trained = experience.response_mask.any(1).tolist()
        for row, r in enumerate(rollouts):
            assert (r.reward is None) == (
                (r.group, r.sample) == (0, 1) or r.group == 1 or (r.group == 2 and r.sample > 0)
            )
            # Group 1 has no score at all, and group 2 a single one, which there is nothing to compare with.
            assert trained[row] == (r.reward is not None and r.group in (0, 3))
        for group, members in ((0, (0, 2, 3)), (3, (12, 13, 14, 15))):
            scores = torch.tensor([rollouts[row].reward for row in members], dtype=torch.float64)
            assert len(scores.unique()) > 1
            mean = scores.sum() / len(scores)
            deviation = ((scores - mean).square().sum() / (len(scores) - 1)).sqrt()
            assert group == rollouts[members[0]].group
            assert torch.allclose(per_row[list(members)].double(), (scores - mean) / (deviation + 1e-6), atol=1e-6)

    def test_it_is_counted(self, run):
        logged = run[0].trainer.callback_metrics
        assert logged["critic/unscored_samples"] == 1 + 4 + 3
        assert logged["critic/reward_component/sometimes_none/unscored"] == 8
        assert logged["critic/reward_component/sometimes_none/overruns"] == 0
        assert logged["actor/valid_samples"] == 3 + 4

    @pytest.mark.parametrize(("group", "sample", "same"), [(0, 1, True), (1, 2, True), (2, 3, True), (0, 2, False)])
    def test_what_it_says_does_not_reach_the_weights(self, task, run, tmp_path, group, sample, same):
        module, _, _, root = run
        lines = rollout_file(str(root / "recorded"), 0).read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        row = rows[group * 4 + sample]
        assert (row["group"], row["sample"]) == (group, sample)
        row["token_ids"] = [4 if written else t for t, written in zip(row["token_ids"], row["loss_mask"], strict=True)]
        file = rollout_file(str(tmp_path / "changed"), 0)
        write_jsonl(file, rows)
        again, _ = fit(task, tmp_path, [], replay_dir=str(tmp_path / "changed"))
        equal = all(torch.equal(a, b) for a, b in zip(weights(module), weights(again), strict=True))
        assert equal is same


class TestOverruns:
    @pytest.mark.parametrize("how", ["hangs", "ends"])
    def test_T47_what_the_models_text_does_to_a_worker_is_a_wrong_answer_and_counted(self, task, tmp_path, how):
        module, _ = fit(task, tmp_path, [Forgiving(how)], record_dir=str(tmp_path / "recorded"))
        logged = module.trainer.callback_metrics
        assert logged["critic/reward_component/forgiving/overruns"] == 1
        assert logged["critic/reward_component/forgiving/unscored"] == 0
        assert logged["critic/unscored_samples"] == 0
        faulty = read_rollouts(str(tmp_path / "recorded"), 0)[4]
        assert (faulty.reward, faulty.reward_faults) == (0.0, {"forgiving": "overrun"})

    def test_T47_what_it_raises_is_no_overrun(self, task, tmp_path):
        with pytest.raises(RewardError, match=r"reward 'forgiving' raised ValueError: no such thing, on prompt"):
            fit(task, tmp_path, [Forgiving("raises")])

    def test_a_failure_that_may_cost_its_answer_is_counted(self, task, tmp_path):
        module, _ = fit(task, tmp_path, [Forgiving("raises")], reward_on_error="none")
        logged = module.trainer.callback_metrics
        assert logged["critic/reward_component/forgiving/failures"] == 1
        assert logged["critic/reward_component/forgiving/overruns"] == 0
        assert logged["critic/unscored_samples"] == 1


A = WeightedReward(ExactMatch(), name="a", domains=["a"])
B = WeightedReward(Odds(), name="b", weight=2.0, domains=["b"])
SHAPED_B = WeightedReward(LengthPenalty(6, 2), name="short", domains=["b"])


class TestDomains:
    def test_a_run_logs_each_component_overall_and_by_domain(self, task, tmp_path):
        data = {"train": str(task / "ab.jsonl")}
        module, _ = fit(task, tmp_path, [A, B, SHAPED_B], data, record_dir=str(tmp_path / "recorded"))
        rollouts = read_rollouts(str(tmp_path / "recorded"), 0)
        logged = module.trainer.callback_metrics
        prefix = "critic/reward_component"
        names = {name: {r.prompt.domain for r in rollouts if name in r.components} for name in ("a", "b", "short")}
        assert names == {"a": {"a"}, "b": {"b"}, "short": {"b"}}
        for name, domain in (("a", "a"), ("b", "b"), ("short", "b")):
            values = [r.components[name] for r in rollouts if r.prompt.domain == domain]
            for metric in (f"{prefix}/{name}/mean", f"{domain}/{prefix}/{name}/mean"):
                assert logged[metric] == pytest.approx(sum(values) / len(values), abs=1e-6)
        assert f"a/{prefix}/b/mean" not in logged
        for r in rollouts:
            total = sum({"a": 1, "b": 2, "short": 1}[name] * value for name, value in r.components.items())
            assert r.reward == pytest.approx(total)

    @pytest.fixture
    def no_model(self, monkeypatch):
        def loaded(*_: Any, **__: Any) -> None:
            raise AssertionError("a model was loaded")

        monkeypatch.setattr("roll_lightning.modules.language.load_policy", loaded)

    @pytest.mark.usefixtures("no_model")
    @pytest.mark.parametrize(
        ("files", "rewards", "needles"),
        [
            (
                {"train": "abc", "val": "ab"},
                [A, B],
                ["data.train has prompts of the domain 'c'", "a serves a", "add 'c'"],
            ),
            ({"train": "ab", "val": "abc"}, [A, B], ["data.val has prompts of the domain 'c'"]),
            ({"train": "ab"}, [A, SHAPED_B], ["data.train has prompts of the domain 'b'", "short serves b, but only"]),
            (
                {"train": "b"},
                [B, WeightedReward(ExactMatch(), domains=["B"])],
                ["'exact_match' names the domain 'B', which no prompt of data.train has"],
            ),
        ],
    )
    def test_what_does_not_go_together_is_refused_before_a_model_loads(self, task, tmp_path, files, rewards, needles):
        data = {key: str(task / f"{name}.jsonl") for key, name in files.items()}
        with pytest.raises(ConfigError) as error:
            fit(task, tmp_path, rewards, data)
        assert "\n" not in str(error.value)
        for needle in needles:
            assert needle in str(error.value)

    @pytest.mark.usefixtures("no_model")
    @pytest.mark.parametrize(
        ("stage", "files", "needle"),
        [
            ("validate", {"val": "abc"}, "data.val has prompts of the domain 'c'"),
            ("test", {"val": "abc"}, "data.val has prompts of the domain 'c'"),
            ("predict", {"val": "abc"}, "data.val has prompts of the domain 'c'"),
            ("predict", {"val": "ab", "predict": "abc"}, "data.predict has prompts of the domain 'c'"),
        ],
    )
    def test_other_stages_look_at_their_own_prompts(self, task, tmp_path, stage, files, needle):
        trainer = make_trainer(tmp_path, [rollout_callback(rewards=[A, B])])
        data = rlvr_data(task, **{key: str(task / f"{name}.jsonl") for key, name in files.items()})
        with pytest.raises(ConfigError) as error:
            getattr(trainer, stage)(rlvr_module(task), datamodule=data)
        assert needle in str(error.value)

    def test_a_part_of_the_domains_can_be_validated(self, task, tmp_path):
        trainer = make_trainer(tmp_path, [rollout_callback(rewards=[A, B])])
        trainer.validate(rlvr_module(task), datamodule=rlvr_data(task, val=str(task / "b.jsonl")))
        assert 0 < trainer.callback_metrics["val_score/sampled/mean"] < 2


@pytest.fixture
def mixed_config(tmp_path) -> Path:
    """A model that can write all that is asked of it, rows of two domains, and a routed list of rewards."""
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is an extra")
    from roll_lightning.data.reasoning_gym import ReasoningGymTasks
    from roll_lightning.models.tokenizer import character_tokenizer

    letters = "".join(chr(code) for code in range(32, 127)) + "\n"
    write_model(tmp_path / "model", weights=True, vocab_size=len(letters) + 3, max_position_embeddings=512)
    character_tokenizer(letters).save_pretrained(tmp_path / "model")
    rows = [row.values for row in ReasoningGymTasks(["chain_sum"], size=8).rows()]
    rows += [{"prompt": f"{n}/2=", "answer": rf"\frac{{{n}}}{{2}}", "domain": "maths"} for n in range(8)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    routed = [
        ("MathVerify", {"boxed_only": False, "deadline": 5.0}, {"domains": ["maths"]}),
        ("ReasoningGymReward", {"extract": "(?s)^(.*)$"}, {"domains": ["chain_sum"]}),
        ("RegexMatch", {"pattern": ".*[aeiou].*"}, {"weight": 0.25, "shaping": True}),
    ]
    rewards = [
        {"class_path": "WeightedReward", "init_args": {"reward": {"class_path": name, "init_args": given}} | own}
        for name, given, own in routed
    ]
    config = {
        "trainer": {"accelerator": "cpu", "max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False},
        "model": {"class_path": "RLVRModule", "init_args": {"policy": {"path": str(tmp_path / "model")}}},
        "data": {
            "class_path": "RLVRDataModule",
            "init_args": {"train": str(tmp_path / "rows.jsonl"), "batch_size": 32, "max_prompt_length": 500},
        },
        "rollout": {
            "prompts_per_iteration": 16,
            "num_generations": 2,
            "max_new_tokens": 8,
            "record_dir": str(tmp_path / "recorded"),
            "rewards": rewards,
        },
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_routed_list_of_real_verifiers_through_the_command_line(mixed_config, tmp_path):
    root = ["--trainer.default_root_dir", str(tmp_path / "run")]
    assert main(["fit", "--config", str(mixed_config), *root]) == 0
    rollouts = read_rollouts(str(tmp_path / "recorded"), 0)
    for r in rollouts:
        verifier = {"maths": "math_verify", "chain_sum": "reasoning_gym_reward"}[r.prompt.domain]
        assert r.components.keys() == {verifier, "regex_match"}
        assert r.score == r.components[verifier]
        assert r.reward == r.score + 0.25 * r.components["regex_match"]
    assert {r.components["regex_match"] for r in rollouts} == {0.0, 1.0}


def test_a_domain_without_a_reward_is_one_line_of_the_command_line(mixed_config, tmp_path, capsys):
    config = yaml.safe_load(mixed_config.read_text())
    config["rollout"]["rewards"] = config["rollout"]["rewards"][:1]
    mixed_config.write_text(yaml.safe_dump(config))
    assert main(["fit", "--config", str(mixed_config), "--trainer.default_root_dir", str(tmp_path / "run")]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "domain" in line]
    assert "data.train has prompts of the domain 'chain_sum', for which rollout.rewards has no verifier" in line
