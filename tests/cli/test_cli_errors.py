# ruff: noqa: E501
"""Every fault in a config is one line that names the key, the value and the way out, before anything is built."""

from __future__ import annotations

import pytest
from cli_samples import TinyModel

RLVR = """
trainer: {accelerator: cpu}
model:
  class_path: RLVRModule
  init_args:
    policy: {path: nowhere}
    policy_loss: {class_path: PPOClip, init_args: {low: 0.2}}
data: {class_path: RLVRDataModule}
rollout: {engine: HFEngine, rewards: [{class_path: ExactMatch}]}
"""


def refused(result) -> str:
    assert result.status == 1
    assert len(result.err.splitlines()) == 1, result.err
    assert TinyModel.built == []
    return result.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # unknown keys, from the top to the bottom
        ("--modl.name x", "unknown key modl; did you mean model?"),
        ("--trainer.max_epoch 3", "unknown key trainer.max_epoch; did you mean trainer.max_epochs?"),
        ("--checkpoint.keep 3", "unknown key checkpoint.keep; did you mean checkpoint.keep_last?"),
        ("--model.nam x", "unknown key model.nam; did you mean model.name?"),
        ("--model.size.widht 3", "unknown key model.size.widht; did you mean model.size.width?"),
        ("--model.init_args.size.widht 3", "unknown key model.size.widht; did you mean model.size.width?"),
        ("--model.scale cli_samples.Constant --model.scale.facto 1", "unknown key model.scale.facto; did you mean model.scale.factor?"),
        ("--model.scales+=cli_samples.Constant --model.scales.facto 1", "unknown key model.scales[0].facto; did you mean model.scales[0].factor?"),
        ("--trainer.callbacks+=cli_samples.CountBatches --trainer.callbacks.strt 1", "unknown key trainer.callbacks[0].strt; did you mean trainer.callbacks[0].start?"),
        # a key in the wrong place
        ("--batch_size 3", "unknown key batch_size; did you mean data.batch_size?"),
        ("--model.width 3", "unknown key model.width; did you mean model.size.width?"),
        ("--model.scale cli_samples.Constant --model.factor 3", "unknown key model.factor; did you mean model.scale.factor?"),
        ("--model.size.zzz 3", "unknown key model.size.zzz; Size takes width, kind, dropout"),
        # wrong types
        ("--trainer.max_epochs many", "trainer.max_epochs is many; it must be int or null"),
        ("--model.size.width 1.5", "model.size.width is 1.5; it must be int"),
        ("--model.size.kind fat", "model.size.kind is fat; it must be one of thin, thick"),
        ("--model.size 3", "model.size is 3; it must be mapping of width, kind, dropout"),
        ("--model.size [1]", "model.size is [1]; it must be mapping of width, kind, dropout"),
        ("--model.table {a:\\ x}", "model.table.a is 'x'; it must be int"),
        ("--model.scale cli_samples.Constant --model.scale.factor big", "model.scale.factor is big; it must be float"),
        ("--seed_everything x", "seed_everything is x; it must be bool or int"),
        ("--checkpoint.keep_last null", "checkpoint.keep_last is null; it must be int"),
        # missing keys
        ("--model.scale cli_samples.Power", "missing key model.scale.exponent; Power needs it"),
        ("--model.scales+=cli_samples.Power", "missing key model.scales[0].exponent; Power needs it"),
        ("--model.scale.factor 3", "model.scale names no class; add class_path, one of Constant, Power, or your own by its dotted path"),
        # classes
        ("--model RLVRModul", "model is RLVRModul, which is no known class; did you mean RLVRModule?"),
        ("--model cli_samples.TinyModl", "model is cli_samples.TinyModl, but cli_samples has no TinyModl; did you mean cli_samples.TinyModel?"),
        ("--model cli_sampls.Tiny", "model is cli_sampls.Tiny, but there is no module cli_sampls in this folder or among the installed packages"),
        ("--model.scale cli_samples.Scale", "model.scale is cli_samples.Scale, which is abstract"),
        ("--trainer.callbacks+=EarlyStoping", "trainer.callbacks[0] is EarlyStoping, which is no known class; did you mean EarlyStopping?"),
        # arguments
        ("nonsense", "unexpected argument 'nonsense'; every setting is written --key value"),
        ("--model.name", "--model.name has no value; write --model.name VALUE"),
        ("--config bas.yaml", "--config bas.yaml does not exist; did you mean bas"),
        ("--ckpt_path nowhere.ckpt", "ckpt_path nowhere.ckpt does not exist; give a checkpoint, or last"),
    ],
)  # fmt: skip
def test_t56_shell(command, arguments, message):
    words = [word.replace("\0", " ") for word in arguments.replace("\\ ", "\0").split(" ")]
    error = refused(command.fit(*words)) if "ckpt_path" not in arguments else command.fit(*words).error
    assert error.startswith(message)
    if "did you mean" not in message:
        assert "did you mean" not in error


def test_a_class_of_another_kind(command):
    error = refused(command.fit("--model", "cli_samples.NotAModel"))
    assert error.startswith("model is cli_samples.NotAModel, which is no LightningModule; choose one of")
    assert "RLVRModule" in error


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ("modle: {}", "unknown key modle; did you mean model?"),
        ("model: {init_args: {size: {widht: 3}}}", "unknown key model.size.widht; did you mean model.size.width?"),
        (
            "model: {init_args: {scales: [{class_path: cli_samples.Constant}, {class_path: cli_samples.Constant, init_args: {facto: 1}}]}}",
            "unknown key model.scales[1].facto; did you mean model.scales[1].factor?",
        ),
        ("model: {init_args: {name: 3}}", "model.name is 3; it must be str"),
        ("model: {init_args: {name: null}}", "model.name is null; it must be str"),
        ("model: {init_args: {scales: [3]}}", "model.scales[0] is 3; it must be Scale"),
        ("model: {class_path: 3}", "model.class_path is 3; it must be the name of a class"),
        ("model: {class_path: cli_samples.OtherModel, init_args: {size: {}}}", "unknown key model.size; OtherModel takes name"),
        ("trainer: 3", "trainer is 3; it must be a mapping of accelerator"),
        ("rollout: {}", "rollout is set, but TinyModel does not learn from rollouts; remove the rollout group"),
        ("export: {per_step: true}", "export is set, but TinyModel is no LanguageModule; remove the export group"),
        ("- 1", "overlay.yaml holds a list; a config is a mapping of trainer, model, data, ..."),
        ("model: {a: 1\ntrainer: {}", "overlay.yaml:2 is not valid YAML: "),
        ("trainer:\n  max_epochs: 1\n  max_epochs: 2", "overlay.yaml:3 is not valid YAML: the key max_epochs stands twice"),
    ],
)  # fmt: skip
def test_t56_yaml(command, overlay, message):
    error = refused(command.fit("--config", command.write("overlay.yaml", overlay)))
    assert error.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.policy.pth", "x"], "unknown key model.policy.pth; did you mean model.policy.path?"),
        (["--model.lr", "1"], "unknown key model.lr; did you mean model.optimizer.lr?"),
        (["--model.policy_loss.lo", "1"], "unknown key model.policy_loss.lo; did you mean model.policy_loss.low?"),
        (["--num_generations", "4"], "unknown key num_generations; did you mean rollout.num_generations?"),
        (["--rollout.num_generation", "4"], "unknown key rollout.num_generation; did you mean rollout.num_generations?"),
        (["--rollout.engine.max_batch", "4"], "unknown key rollout.engine.max_batch; did you mean rollout.engine.max_batch_size?"),
        (["--rollout.rewards.stripp", "true"], "unknown key rollout.rewards[0].stripp; did you mean rollout.rewards[0].strip?"),
        (["--rollout.engine", "HFEngin"], "rollout.engine is HFEngin, which is no known class; did you mean HFEngine?"),
        (["--rollout.temperature", "hot"], "rollout.temperature is hot; it must be float"),
        (["--model", "SFTModule"], "missing key model.policy; SFTModule needs it"),
    ],
)  # fmt: skip
def test_t56_rlvr(command, arguments, message):
    error = refused(command("fit", "--config", command.write("rlvr.yaml", RLVR), *arguments))
    assert error.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.optimizer.lr", "-1"], "model.optimizer.lr is -1.0; it must be above 0"),
        (["--model.policy_loss.low", "7"], "PPOClip.low is 7.0; it must be above 0 and at most 1"),
        (["--rollout.num_generations", "0"], "rollout.num_generations is 0; it must be 1 or more"),
        (["--trainer.accelerator", "abacus"], "trainer: You selected an invalid accelerator name"),
        (["--rollout", "null"], "no RolloutCallback: add a `rollout:` group to the config"),
    ],
)
def test_what_a_class_refuses_is_one_line_too(command, arguments, message):
    result = command("fit", "--config", command.write("rlvr.yaml", RLVR), *arguments)
    assert result.status == 1
    assert result.error.startswith(message)
    assert "Traceback" not in result.err


def test_no_model(command):
    assert refused(command("fit")).startswith("missing key model; name a LightningModule")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("fti", "unknown command fti; did you mean fit?"),
        ("xyz", "unknown command xyz; use one of fit, validate, test, predict, explain"),
    ],
)
def test_unknown_command(command, typed, message):
    assert refused(command(typed)) == message


def test_other_ranks_say_who_they_are(command, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert command("fti").err == "[rank 1] error: unknown command fti; did you mean fit?\n"


def test_missing_folder_and_folder_as_file(command):
    (command.folder / "configs").mkdir()
    command.write("configs/config.yaml", {})
    error = refused(command("fit", "--config", "config/rlvr.yaml"))
    assert error == "--config config/rlvr.yaml does not exist: there is no folder config; did you mean configs?"
    error = refused(command("fit", "--config", "configs"))
    assert error == "--config configs is a folder; give a YAML file; did you mean configs/config.yaml?"


def test_a_module_that_cannot_be_imported(command, monkeypatch):
    command.write("broken_project.py", "import nowhere_at_all\n")
    monkeypatch.syspath_prepend(command.folder)
    error = refused(command.fit("--model", "broken_project.Model"))
    assert error == "model is broken_project.Model, but importing broken_project failed: no module nowhere_at_all"
