"""``roll-lightning explain`` on the shipped configs: numbers by hand, faults as of ``fit``, nothing is loaded."""

from __future__ import annotations

import builtins
import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch import LightningModule

from roll_lightning.cli import main, usage
from roll_lightning.functional.policy_losses import PolicyLoss, PolicyLossOutput

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
RECIPES = sorted(path.stem for path in (CONFIGS / "recipes").glob("*.yaml"))
FOR_SFT = ("ddp", "fsdp2", "deepspeed_1", "deepspeed_2", "deepspeed_3", "lora")


class Explain:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str, config: str = "rlvr", recipe: str | None = None) -> str:
        status, out, err = self.status(*arguments, config=config, recipe=recipe)
        assert status == 0, err
        assert max(map(len, out.splitlines())) <= 100
        return out

    def status(self, *arguments: str, config: str = "rlvr", recipe: str | None = None) -> tuple[int, str, str]:
        files = ["--config", str(CONFIGS / f"{config}.yaml")]
        files += ["--config", str(CONFIGS / f"recipes/{recipe}.yaml")] if recipe else []
        self.capsys.readouterr()
        status = main(["explain", *files, *arguments])
        return status, *self.capsys.readouterr()

    def error(self, *arguments: str, **settings: str) -> str:
        status, out, err = self.status(*arguments, **settings)
        assert status == 1
        assert out == ""
        assert len(err.splitlines()) == 1, err
        return err.removeprefix("error: ").strip()


@pytest.fixture
def explain(tmp_path, monkeypatch, capsys) -> Explain:
    monkeypatch.chdir(tmp_path)
    return Explain(capsys)


def section(text: str, title: str) -> str:
    """A section, its line breaks undone."""
    found = re.search(rf"^{re.escape(title)}[^\n]*\n(.*?)(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"no section {title}:\n{text}"
    return re.sub(r"\s+", " ", found[1])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_explained_by_the_names_of_its_parts(recipe, explain):
    overlay = yaml.safe_load((CONFIGS / f"recipes/{recipe}.yaml").read_text())
    model = overlay.get("model", {}).get("init_args", {})
    text = explain(recipe=recipe)
    for part in ("advantage", "policy_loss"):
        if part in model:
            assert model[part]["class_path"] in section(text, "objective")
    assert model.get("aggregation", "token-mean") in section(text, "objective")
    placement = model.get("kl", {"placement": "none"})["placement"]
    assert {"none": "no reference is loaded", "loss": "added to the loss", "reward": "taken from the reward"}[
        placement
    ] in section(text, "reference")
    assert ("π_ref" in section(text, "policies")) == (placement != "none")


@pytest.mark.parametrize("recipe", [None, *FOR_SFT])
def test_sft_is_explained(recipe, explain):
    text = explain(config="sft", recipe=recipe)
    assert "L = Σ_i Σ_t l / N" in text
    assert "l = -log π" in text
    assert "loss tokens of the optimizer step, over all ranks" in section(text, "denominators")


def test_the_table_of_algorithms_says_the_same(explain):
    """docs/algorithms.md writes the losses without their numbers."""
    losses = {
        "rloo": "-A log π",
        "cispo": "-sg(min(ρ, 1 + 0.28)) A log π",
        "topr": "-A log π if A > 0 else -sg(min(ρ, 1)) A log π",
        "kimi15": "-A log π + 0.1/2 (log ρ)²",
        "gspo": "-min(ρ A, clip(ρ, 1 - 0.0003, 1 + 0.0004) A)",
    }
    for recipe, loss in losses.items():
        assert f" P = {loss}" in section(explain("--data.batch_size", "64", recipe=recipe), "objective")
    for recipe, clamped in (("gspo", True), ("kimi15", False)):
        text = section(explain("--data.batch_size", "64", recipe=recipe), "objective")
        assert ("log ρ is clamped to ±20" in text) == clamped
    assert "w = sg(min(π_old / π_engine, 2))" in section(explain(recipe="tis"), "objective")
    rloo = section(explain(recipe="rloo"), "objective")
    assert "A = r_i - mean_others - Σ_{k≥t} β K_k" in rloo
    assert "K = d k1, in the reward d = log π_old - log π_ref" in rloo


def test_numbers_on_two_ranks_with_accumulation(explain):
    """By hand: 6 x 4 = 24 samples in steps of 8, twice: 6 steps; 8 samples over 2 x 2 micro-batches: 2 in each."""
    settings = {
        "rollout.prompts_per_iteration": 6,
        "rollout.num_generations": 4,
        "rollout.max_new_tokens": 10,
        "data.batch_size": 8,
        "data.ppo_epochs": 2,
        "data.max_prompt_length": 30,
        "trainer.accumulate_grad_batches": 2,
        "trainer.max_epochs": 5,
    }
    arguments = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    text = explain(*arguments, recipe="ddp")
    iteration, step = section(text, "one iteration"), section(text, "one optimizer step")
    assert "6 prompts x 4 answers = 24" in iteration
    assert "24 samples / 8 per step x 2 = 6" in iteration
    assert "5 iterations (trainer.max_epochs), 30 optimizer steps" in iteration
    assert "2 ranks x 2 micro-batches, of 2 samples in the mean" in step
    assert "at most 8 x 10 = 80 (rollout" in step
    assert "at most 8 x 40 = 320 (with prompts" in step
    assert "an iteration has 6 optimizer steps" in section(text, "policies")
    assert "0 optimizer steps at the first, 5 at the last" in section(text, "off policy")


@pytest.mark.parametrize(("recipe", "ranks"), [("fsdp2", 2), ("deepspeed_3", 2), ("lora", 1)])
def test_ranks_of_other_strategies(recipe, ranks, explain):
    assert f"{ranks} rank" in section(explain(recipe=recipe), "one optimizer step")


def test_max_steps_and_limits(explain):
    assert "7 optimizer steps (trainer.max_steps), 7 iterations" in explain("--trainer.max_steps", "7")
    text = explain("--data.batch_size", "64", "--trainer.limit_train_batches", "3", "--trainer.max_epochs", "2")
    assert "of which trainer.limit_train_batches leaves 3 the run 2 iterations (trainer.max_epochs), 6" in section(
        text, "one iteration"
    )
    assert "0 optimizer steps at the first, 2 at the last" in text


def test_sft_rows_are_counted_where_they_are_there(explain, tmp_path):
    """By hand: 10 rows in steps of 4 are 3 steps, the last of 2; half of them 2 steps, the last of 1."""
    Path("rows.jsonl").write_text('{"prompt": "1", "completion": "2"}\n' * 10)
    settings = [
        "--data.train",
        "rows.jsonl",
        "--data.batch_size",
        "4",
        "--data.val",
        "null",
        "--trainer.max_steps",
        "-1",
    ]
    text = section(explain(*settings, "--trainer.max_epochs", "2", config="sft"), "one epoch")
    assert "rows.jsonl: 10 rows" in text
    assert "10 rows / 4 per step, rounded up = 3, the last of 2 rows" in text
    assert "2 epochs (trainer.max_epochs), 6 optimizer steps" in text
    text = section(explain(*settings, "--data.val_fraction", "0.5", config="sft"), "one epoch")
    assert "5 rows / 4 per step, rounded up = 2, the last of 1 row" in text


def test_prompts_are_counted_where_they_are_there(explain, tmp_path):
    Path("rows.jsonl").write_text('{"prompt": "1", "answer": "2"}\n' * 80)
    assert "rows.jsonl: 80 rows; a pass over them takes 2.5 iterations" in explain("--data.train", "rows.jsonl")


def test_what_is_not_there_yet_is_said_and_no_failure(explain):
    text = explain()
    assert "runs/quickstart/sft/hf (not there yet)" in text
    assert "runs/quickstart/data/rlvr.jsonl (not there yet)" in text
    assert "Qwen/Qwen3-0.6B (a name on the hub, or not there yet)" in explain("--model.policy.path", "Qwen/Qwen3-0.6B")


def test_no_file_of_a_model_is_opened(explain, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("this is no JSON")
    opened: list[str] = []

    def watched(function: Any) -> Any:
        def open_(file: Any, *arguments: Any, **settings: Any) -> Any:
            opened.append(str(file))
            return function(file, *arguments, **settings)

        return open_

    monkeypatch.setattr(builtins, "open", watched(builtins.open))
    monkeypatch.setattr(io, "open", watched(io.open))
    text = explain("--model.policy.path", "model", recipe="grpo")
    assert "model; trained: all weights" in text
    assert any(name.endswith("rlvr.yaml") for name in opened)
    assert not [name for name in opened if Path(name).resolve().is_relative_to(tmp_path / "model")]
    assert not list(tmp_path.glob("runs"))


def test_nothing_but_the_explanation_is_printed(explain):
    status, out, err = explain.status()
    assert (status, err) == (0, "")
    assert out.startswith("one iteration (an epoch of the trainer)\n")


FAULTS = {
    (
        "--rollout.num_generations",
        "1",
        "--data.batch_size",
        "32",
    ): "a group of one has no advantage",
    ("--data.batch_size", "100"): "cannot be cut into optimizer steps of data.batch_size 100; set data.batch_size to",
    ("--model.advantage", "GAE"): "model.advantage GAE needs a critic; set model.critic",
    ("--model.policy_loss.low", "2"): "PPOClip.low is 2.0; it must be above 0 and at most 1",
    ("--model.policy_loss.lwo", "0.1"): "unknown key model.policy_loss.lwo; did you mean model.policy_loss.low?",
    ("--model.off_policy.weight.level", "token", "--rollout.top_p", "0.9"): "model.off_policy corrects by log-prob",
    ("--model.kl.target", "3"): "model.kl.target is set, but model.kl.placement is none",
    ("--model.aggregation", "mean"): "model.aggregation is mean; it must be one of token-mean",
    ("--trainer.overfit_batches", "1"): "trainer.overfit_batches is 1; it would repeat single micro-batches",
    ("--trainer.accumulate_grad_batches", "300"): "is less than the 300 micro-batches of an optimizer step",
    ("--model.policy.lora.dropout", "0.1"): "model.policy.lora.dropout is 0.1; reinforcement learning needs 0",
    ("--data.train", "null"): "data.train is not set",
    (
        "--trainer.max_epochs",
        "-1",
    ): "model.schedule.name linear needs an end; set trainer.max_epochs or trainer.max_steps",
    (
        "--data",
        "SFTDataModule",
        "--data.train",
        "rows.jsonl",
    ): "data is SFTDataModule, which has no rollouts for RLVRModule; name RLVRDataModule",
    ("--rollout", "null"): "no RolloutCallback: add a `rollout:` group",
    ("--ckpt_path", "nowhere.ckpt"): "ckpt_path nowhere.ckpt does not exist",
}


@pytest.mark.parametrize("arguments", FAULTS, ids=" ".join)
def test_faults_are_those_of_fit(arguments, explain, capsys):
    fault = explain.error(*arguments)
    assert FAULTS[arguments] in fault


def test_faults_of_fsdp2_without_a_mesh_and_of_sft(explain):
    assert "tensor_parallel_size 2, which is not supported; set it to 1 and data_parallel_size to 2" in explain.error(
        "--trainer.strategy.data_parallel_size", "1", "--trainer.strategy.tensor_parallel_size", "2", recipe="fsdp2"
    )
    assert "data.train is not set" in explain.error("--data.train", "null", config="sft")
    assert "no RolloutCallback" in explain.error("--data", "RLVRDataModule", "--data.batch_size", "4", config="sft")


def test_missing_accelerators_say_how_to_explain_without_them(explain):
    assert explain.error("--trainer.accelerator", "cuda").endswith("add --trainer.accelerator cpu")


class Mute(LightningModule):
    """Of a user who has not heard of explanations."""


def test_models_that_do_not_explain_themselves(explain, tmp_path):
    (tmp_path / "own.yaml").write_text(f"model: {__name__}.Mute\nexport: null\n")
    assert main(["explain", "--config", "own.yaml"]) == 1
    assert "model is Mute, which has no method explanation" in explain.capsys.readouterr().err


def test_help(capsys):
    assert re.search(r"^  explain +say what fit would train", usage(), re.MULTILINE)
    assert main(["explain", "--help"]) == 0
    assert "roll-lightning explain" in capsys.readouterr().out
    assert main(["explian", "--config", "x.yaml"]) == 1
    assert "did you mean explain?" in capsys.readouterr().err


NOTICES = {
    (): "PPOClip gives just the gradient of -A log π",
    ("--model.kl.placement", "loss", "--model.kl.estimator", "k1"): "k1 in the loss has no gradient in the mean",
    ("--model.kl.placement", "loss", "--model.kl.estimator", "k3"): "k3 in the loss is biased",
    ("--model.kl.placement", "reward", "--model.kl.estimator", "k2"): "k2 in the reward is biased",
    ("--model.kl.placement", "loss", "--model.kl.coefficient", "0"): "model.kl.coefficient is 0",
    ("--model.policy_loss", "Vanilla", "--data.batch_size", "64"): "Vanilla has no ratio",
    ("--model.policy_loss.ratio", "sequence", "--data.batch_size", "64"): "falls by 0.223 per token in the mean",
    ("--model.off_policy.weight.level", "token"): "HFEngine generates with the trainer's own weights",
    ("--model.entropy_coefficient", "-0.1"): "below 0 it lowers the entropy",
    ("--model.positive_nll_coefficient", "-1"): "below 0 it unlearns good answers",
    ("--model.advantage", "ReinforcePlusPlus", "--model.shaping.whiten", "true"): "whitened twice",
    ("--model.schedule.warmup_steps", "300"): "300 is not less than the 200 optimizer steps",
    ("--rollout.top_p", "0.9"): "top_p or top_k filters what is sampled",
}


@pytest.mark.parametrize("arguments", NOTICES, ids=" ".join)
def test_notices(arguments, explain):
    assert NOTICES[arguments] in section(explain(*arguments), "notices")


def test_an_ordinary_run_has_no_notices(explain):
    assert "\nnotices\n" not in explain("--data.batch_size", "64")
    assert "\nnotices\n" not in explain(
        "--data.batch_size", "64", "--model.kl.placement", "loss", "--model.policy_loss.ratio", "sequence",
        "--model.policy_loss.low", "3e-4",
    )  # fmt: skip


def test_ratio_one_is_no_plain_gradient_where_the_loss_or_the_advantages_say_otherwise(explain):
    """A bound below 1 halves the step; a ratio of rows gives each token the mean advantage of its row."""
    tis = ("--model.policy_loss", "TIS", "--model.policy_loss.upper_bound")
    assert "just the gradient" not in explain(*tis, "0.5")
    assert "just the gradient" in explain(*tis, "1.5")
    rows = ("--model.policy_loss.ratio", "sequence")
    assert "just the gradient" in explain(*rows)
    assert "just the gradient" not in explain(*rows, "--model.advantage.gamma", "0.9")


def test_what_leaves_the_denominators(explain):
    text = section(
        explain(
            "--model.samples.masks", "[OverlongMask, {class_path: WrongAndLongMask, init_args: {threshold: 5}}]",
            "--model.off_policy.masks", "[{low: 0.5, high: 2}]", "--rollout.replay_dir", "recorded",
        ),
        "denominators",
    )  # fmt: skip
    assert "- answers that could not be scored; they leave the statistics of A, too" in text
    assert "- groups whose rewards are all equal, or with a single one (model.drop_zero_variance)" in text
    assert (
        "- answers that were cut at the length limit (OverlongMask); their rewards stay in the statistics of A" in text
    )
    assert "- answers with score < 1 and more than 5 tokens (WrongAndLongMask)" in text
    assert "- tokens without 0.5 ≤ π_old / π_engine ≤ 2 (off_policy.masks)" in text
    kept = section(explain("--model.drop_zero_variance", "false"), "denominators")
    assert "counted groups whose rewards are all equal, with advantage 0" in kept


def test_why_old_logprobs_are_computed(explain):
    assert "forward pass of the only step itself" in section(explain(), "policies")
    masks = ("--model.off_policy.masks", "[{low: 0.5}]")
    text = section(explain(*masks, "--model.kl.target", "3", recipe="rloo"), "policies")
    for why in ("the KL is in the reward", "the KL coefficient adapts", "tokens are left out by them"):
        assert why in text
    assert "optimizer steps" not in text


def test_temperature_and_shares(explain):
    text = explain("--rollout.temperature", "0.7", recipe="reasoning_gym")
    assert section(text, "policies").count("; log-probabilities at temperature 0.7") == 2
    assert "each iteration: 0.5 of chain_sum, 0.5 of gsm_symbolic" in section(text, "one iteration")


def test_references(explain):
    assert "what π starts from (model.policy), frozen: a second model" in section(explain(recipe="grpo"), "policies")
    lora = explain("--model.kl.placement", "loss", recipe="lora")
    assert "π with its adapter turned off: no second model" in section(lora, "policies")
    own = explain("--model.reference.path", "ref/model", recipe="grpo")
    assert "ref/model (a name on the hub, or not there yet), frozen: a second model" in section(own, "policies")
    assert "and a greedy answer to each prompt" in section(explain(recipe="remax"), "one iteration")


def test_a_critic(explain):
    """By hand: 4 steps per iteration, the first 2 iterations are the critic's."""
    arguments = ("--data.batch_size", "64", "--model.critic.warmup_iterations", "2", "--trainer.max_epochs", "5")
    text = explain(*arguments, "--model.aggregation", "seq-mean-token-sum", recipe="ppo")
    assert "L = Σ_i Σ_t P / S + Σ_i Σ_t E / N" in section(text, "objective")
    assert "E = max((V - R)², (clip(V, V_old - 0.2, V_old + 0.2) - R)²) / 2" in section(text, "objective")
    assert "N counted response tokens" in section(text, "denominators")
    critic = section(text, "critic")
    assert "a model of its own from runs/quickstart/sft/hf (not there yet)" in critic
    assert "learning rate 0.001; of π 0.0005" in critic
    assert "in the first 2 iterations (8 optimizer steps)" in critic
    shared = ("--model.critic.shared", "true")
    assert "a head on the body of π" in section(explain(*shared, recipe="ppo"), "critic")
    late = ("--model.schedule.warmup_steps", "12")
    assert "12 is not less than the 12 optimizer steps of the policy" in section(
        explain(*arguments, *late, recipe="ppo"), "notices"
    )
    fault = explain.error(*arguments, "--trainer.max_epochs", "2", recipe="ppo")
    assert "model.critic.warmup_iterations 2 leaves nothing of trainer.max_epochs 2" in fault


class OwnLoss(PolicyLoss):
    def __call__(self, logprobs, old_logprobs, advantages, mask) -> PolicyLossOutput:
        return PolicyLossOutput(-logprobs * advantages * mask)


def test_a_loss_of_ones_own_shows_its_name(explain):
    text = section(explain("--model.policy_loss", f"{__name__}.OwnLoss"), "objective")
    assert "P = OwnLoss(log π, log π_old, A)" in text
