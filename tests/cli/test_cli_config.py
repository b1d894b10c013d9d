"""How files and arguments become one config, and how it is printed and saved."""

from __future__ import annotations

import pytest
import yaml

from roll_lightning.commandline.files import dump_yaml, read_text
from roll_lightning.commandline.secrets import is_secret, without_secrets

DESIGN = """
seed_everything: 0
trainer:
  max_epochs: 200                    # rollout iterations
  gradient_clip_val: 1.0
model:
  class_path: RLVRModule
  init_args:
    policy: {path: runs/quickstart/sft/hf}          # folder, hub name, or a config to start from scratch
    advantage: {class_path: GroupRelative, init_args: {std: group}}
    policy_loss: {class_path: PPOClip, init_args: {low: 0.2, high: 0.28}}
    kl: {placement: none}
data:
  class_path: RLVRDataModule
  init_args: {batch_size: 256, ppo_epochs: 1}
rollout:                             # an optional group beside trainer, model, data; SFT and DPO have none
  prompts_per_iteration: 32
  num_generations: 8
  engine: HFEngine                   # or VLLMEngine, RayEngine
  rewards: [{class_path: ExactMatch}]
"""


def printed(result) -> dict:
    assert result.status == 0, result.err
    return yaml.safe_load(result.out)


def test_the_config_of_the_design_with_short_keys(command):
    command.write("design.yaml", DESIGN)
    short = "--model.policy.path my/model --rollout.num_generations 16 --data.batch_size 64 --trainer.max_epochs 3"
    short += " --rollout.engine HFEngine --rollout.engine.max_batch_size 64 --model.policy_loss.low 0.1"
    short += " --model.kl.placement loss"
    config = printed(command("fit", "--config", "design.yaml", *short.split(), "--print_config"))
    model = config["model"]["init_args"]
    assert config["model"]["class_path"] == "roll_lightning.modules.rlvr.RLVRModule"
    assert model["policy"]["path"] == "my/model"
    assert (model["policy_loss"]["init_args"]["low"], model["policy_loss"]["init_args"]["high"]) == (0.1, 0.28)
    assert (model["kl"]["placement"], model["advantage"]["init_args"]["std"]) == ("loss", "group")
    assert config["data"]["init_args"]["batch_size"] == 64
    assert (config["trainer"]["max_epochs"], config["trainer"]["gradient_clip_val"]) == (3, 1.0)
    assert config["export"] == {"dirpath": None, "per_step": False, "merge": False}
    rollout = config["rollout"]
    assert (rollout["prompts_per_iteration"], rollout["num_generations"]) == (32, 16)
    assert rollout["engine"]["init_args"]["max_batch_size"] == 64
    assert rollout["rewards"][0]["class_path"].endswith("ExactMatch")


def test_what_is_printed_reads_back_as_the_same(command):
    command.write("design.yaml", DESIGN)
    first = command(
        "fit", "--config", "design.yaml", "--export", "null", "--model.policy.path", "1e-3", "--print_config"
    )
    assert first.status == 0, first.err
    command.write("printed.yaml", first.out)
    assert command("fit", "--config", "printed.yaml", "--print_config").out == first.out
    assert yaml.safe_load(first.out)["export"] is None


def test_defaults(command):
    config = command.resolved()
    trainer = config["trainer"]
    assert (trainer["use_distributed_sampler"], trainer["log_every_n_steps"]) == (False, 1)
    assert config["checkpoint"] == {"dirpath": None, "every_n_steps": 0, "every_n_epochs": 1, "keep_last": 2}
    assert config["export"] is None
    assert "rollout" not in config
    bare = printed(command("fit", "--model", "cli_samples.TinyModel", "--model.name", "x", "--print_config"))
    assert (bare["seed_everything"], bare["trainer"]["default_root_dir"]) == (0, "runs/default")
    named = command.write("my_run.yaml", {"model": {"class_path": "cli_samples.TinyModel", "init_args": {"name": "x"}}})
    bare = printed(command("fit", "--config", named, "--config", "base.yaml", "--print_config"))
    assert bare["trainer"]["default_root_dir"] == "run"
    bare = printed(command("fit", "--config", named, "--print_config"))
    assert bare["trainer"]["default_root_dir"] == "runs/my_run"


def test_overlays_merge_and_arguments_count_most(command):
    first = command.write("1.yaml", {"model": {"init_args": {"size": {"width": 5}, "table": {"a": 1}}}})
    second = command.write(
        "2.yaml", {"trainer": {"max_epochs": 7}, "model": {"size": {"kind": "thick"}, "table": {"b": 2}}}
    )
    config = command.resolved(
        "--model.size.dropout", "0.5", "--config", first, f"--config={second}", "--trainer.max_epochs=9"
    )
    assert config["model"]["init_args"]["size"] == {"width": 5, "kind": "thick", "dropout": 0.5}
    assert config["model"]["init_args"]["table"] == {"a": 1, "b": 2}
    assert config["trainer"]["max_epochs"] == 9


def test_another_class_starts_from_its_own_defaults(command):
    overlay = command.write("other.yaml", {"model": {"class_path": "cli_samples.OtherModel"}})
    assert command.resolved("--config", overlay)["model"]["init_args"] == {"name": "other"}
    scale = ["--model.scale", "cli_samples.Constant", "--model.scale.factor", "3"]
    config = command.resolved(*scale, "--model.scale", "cli_samples.Power", "--model.scale.exponent", "2")
    assert config["model"]["init_args"]["scale"] == {"class_path": "cli_samples.Power", "init_args": {"exponent": 2}}


def test_a_subclass_keeps_the_settings_of_its_base(command):
    config = command.resolved("--model.size.width", "6", "--model", "cli_samples.WiderModel", "--model.extra", "1")
    assert config["model"]["class_path"] == "cli_samples.WiderModel"
    arguments = config["model"]["init_args"]
    assert (arguments["name"], arguments["size"]["width"], arguments["extra"]) == ("tiny", 6, 1)


def test_values_are_read_by_their_type(command):
    config = command.resolved(
        "--model.name", "123", "--trainer.gradient_clip_val", "1e-3", "--trainer.limit_val_batches", "2"
    )
    assert config["model"]["init_args"]["name"] == "123"
    assert config["trainer"]["gradient_clip_val"] == 0.001
    assert (config["trainer"]["limit_val_batches"], type(config["trainer"]["limit_val_batches"])) == (2, int)
    assert command.resolved("--model.name", "{a: [")["model"]["init_args"]["name"] == "{a: ["
    assert command.resolved("--model.name=--x y")["model"]["init_args"]["name"] == "--x y"
    assert command.resolved("--model.name", "null")["model"]["init_args"]["name"] == "null"
    assert command.resolved("--model.size", "{width: 8}")["model"]["init_args"]["size"]["width"] == 8


def test_lists_need_no_index(command):
    more = [
        "--model.scales+=cli_samples.Constant",
        "--model.scales.factor",
        "2",
        "--model.scales+=cli_samples.Constant",
    ]
    scales = command.resolved(*more)["model"]["init_args"]["scales"]
    assert [scale["init_args"]["factor"] for scale in scales] == [2.0, 1.0]
    assert len(command.resolved("--model.scales", "[cli_samples.Constant]")["model"]["init_args"]["scales"]) == 1


@pytest.mark.parametrize(
    "key",
    ["token", "hf_token", "api_key", "openai_api_key", "apiKey", "password", "db-password", "client_secret", "secret",
     "aws_secret_access_key", "credentials", "auth_token", "use_auth_token", "access_tokens"],
)  # fmt: skip
def test_secret_names(key):
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    ["max_new_tokens", "stop_token_ids", "max_tokens_per_micro_batch", "tokenizer", "num_tokens", "pad_token",
     "eos_token", "key", "secretary", "passes", "token_budget", "keyboard", "authors"],
)  # fmt: skip
def test_innocent_names(key):
    assert not is_secret(key)


def test_secrets_are_neither_printed_nor_saved(command):
    secret = ["--model.api_key", "hush", "--model.scales+=cli_samples.Constant", "--model.scales.access_token", "hush"]
    printed = command.fit(*secret, "--print_config")
    assert "max_new_tokens: 3" in printed.out
    assert command.fit(*secret).status == 0
    saved = (command.folder / "run" / "config.yaml").read_text()
    for text in (printed.out, saved):
        assert "hush" not in text
        assert "api_key" not in text
        assert "access_token" not in text
    assert without_secrets({"a": [{"password": 1, "b": 2}]}) == {"a": [{"b": 2}]}


@pytest.mark.parametrize(
    "value", ["1e-3", "123", "null", "on", "0x10", "2026-01-01", "a: b", "1:30", 1e-8, True, None, [1, "2"]]
)
def test_yaml_reads_what_it_wrote(value):
    assert read_text(dump_yaml({"value": value})) == {"value": value}


def test_help_of_a_command_and_of_a_class(command):
    result = command("fit", "--help")
    assert result.status == 0
    for key in (
        "--trainer.max_epochs",
        "--rollout.num_generations",
        "--checkpoint.keep_last",
        "--export.per_step",
        "--ckpt_path",
    ):
        assert key in result.out
    result = command("fit", "--model.help", "RLVRModule")
    assert result.status == 0
    assert "--model.policy.path" in result.out
    assert command("fit", "--model.help", "RLVRModul").error.startswith("no help for --model.help RLVRModul")
