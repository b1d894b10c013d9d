"""Commands that run: a user's own classes, folders, resuming, exit statuses."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
import yaml
from cli_samples import CountBatches, TinyModel

from roll_lightning.callbacks.checkpoint import complete_checkpoints


def test_a_users_own_project(command):
    result = command.fit("--trainer.callbacks+=cli_samples.CountBatches", "--trainer.callbacks.start", "10")
    assert result.status == 0, result.err
    assert CountBatches.counts == [11, 12]
    (model,) = TinyModel.built
    callbacks = [type(callback).__name__ for callback in model.trainer.callbacks]
    assert callbacks.count("RunCheckpoint") == 1
    assert "CountBatches" in callbacks
    assert "HFExport" not in callbacks
    assert not model.trainer._accelerator_connector.use_distributed_sampler


def test_t_l3_one_fixed_folder_that_a_resumed_run_goes_on_in(command, caplog):
    first = command.fit("--ckpt_path", "last")
    assert first.status == 0
    assert "No checkpoint in run/checkpoints: starting from the beginning." in caplog.messages
    run = command.folder / "run"
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "config.yaml", "tensorboard"]
    assert [path.name for path in complete_checkpoints(run / "checkpoints")] == ["step=2.ckpt"]
    weights = TinyModel.built[0].layer.weight.detach().clone()

    assert command.fit("--ckpt_path", "last", "--trainer.max_epochs", "2").status == 0
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "config.yaml", "tensorboard"]
    assert TinyModel.built[1].trainer.global_step == 4
    assert not torch.equal(TinyModel.built[1].layer.weight, weights)
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["max_epochs"] == 2
    assert not any(path.is_dir() for path in (run / "tensorboard").iterdir())

    elsewhere = ["--trainer.default_root_dir", str(command.folder / "other")]
    earlier = str(run / "checkpoints" / "step=2.ckpt")
    assert command.fit("--ckpt_path", earlier, "--trainer.max_epochs", "2", *elsewhere).status == 0
    torch.testing.assert_close(TinyModel.built[2].layer.weight, TinyModel.built[1].layer.weight, rtol=0, atol=0)


def test_the_saved_config_repeats_the_run(command):
    assert command.fit("--model.size.kind", "thick").status == 0
    saved = yaml.safe_load((command.folder / "run/config.yaml").read_text())
    (command.folder / "run/config.yaml").rename(command.folder / "again.yaml")
    assert command("fit", "--config", "again.yaml", "--trainer.default_root_dir", "run2").status == 0
    again = yaml.safe_load((command.folder / "run2/config.yaml").read_text())
    saved["trainer"]["default_root_dir"] = "run2"
    assert again == saved
    torch.testing.assert_close(TinyModel.built[0].layer.weight, TinyModel.built[1].layer.weight, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["validate", "test"])
def test_evaluation_loads_the_last_checkpoint_and_writes_no_config(command, name):
    result = command(name, "--config", "base.yaml", "--ckpt_path", "last")
    assert result.error == "there is no checkpoint in run/checkpoints; give --ckpt_path FILE, or drop it"
    command.fit()
    config = command.folder / "run/config.yaml"
    config.unlink()
    result = command(name, "--config", "base.yaml", "--ckpt_path", "last", "--seed_everything", "5")
    assert result.status == 0, result.err
    torch.testing.assert_close(TinyModel.built[-1].layer.weight, TinyModel.built[0].layer.weight, rtol=0, atol=0)
    assert not config.exists()


def test_checkpoint_that_is_nearly_named_right(command):
    command.fit()
    error = command.fit("--ckpt_path", "run/checkpoints/step=3.ckpt").error
    assert error.startswith(
        "ckpt_path run/checkpoints/step=3.ckpt does not exist; did you mean run/checkpoints/step=2.ckpt"
    )


def test_a_fault_of_the_user_is_one_line_without_traceback(command, monkeypatch):
    result = command.fit("--model.step", "bad_data")
    assert result.status == 1
    assert result.error == "rows.jsonl:3 has no column answer"
    assert "Traceback" not in result.err
    monkeypatch.setenv("ROLL_LIGHTNING_TRACEBACK", "1")
    result = command.fit("--model.step", "bad_data")
    assert result.status == 1
    assert "Traceback" in result.err
    assert "training_step" in result.err


def test_a_bug_keeps_its_traceback(command):
    with pytest.raises(ZeroDivisionError, match="a bug of the user"):
        command.fit("--model.step", "bug")
    with pytest.raises(ZeroDivisionError, match="constructor"):
        command("fit", "--model", "cli_samples.CrashingModel")


def test_ctrl_c_is_130(command):
    handler = signal.getsignal(signal.SIGINT)
    try:
        result = command.fit("--model.step", "ctrl_c")
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores it from then on
    assert result.status == 130
    assert "Traceback" not in result.err


def test_no_checkpoints_and_no_logger_when_turned_off(command):
    assert command.fit("--trainer.enable_checkpointing", "false", "--trainer.logger", "false").status == 0
    assert os.listdir(command.folder / "run") == ["config.yaml"]


def test_a_logger_of_the_users_choice(command):
    assert command.fit("--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "logs").status == 0
    assert list(command.folder.glob("logs/**/metrics.csv"))
    assert not (command.folder / "run/tensorboard").exists()


def test_rollout_group_adds_both_callbacks(command):
    rollout = ["--rollout.rewards", "[ExactMatch]", "--rollout.num_generations", "3"]
    result = command("predict", "--config", "base.yaml", "--model", "cli_samples.RolloutModel", *rollout)
    assert result.status == 0, result.err
    callbacks = {type(callback).__name__: callback for callback in TinyModel.built[0].trainer.callbacks}
    assert {"RolloutCallback", "WeightSyncCallback", "PredictionWriter"} <= callbacks.keys()
    assert callbacks["RolloutCallback"].num_generations == 3
    assert not any(TinyModel.built[0].trainer.predict_loop.predictions)
    assert "Wrote 15 rollouts to run/predictions.jsonl" in result.out
    rows = [json.loads(line) for line in (command.folder / "run/predictions.jsonl").read_text().splitlines()]
    assert [row["prompt_id"] for row in rows] == [f"p{number}" for number in range(5) for _ in range(3)]


def test_a_callback_that_a_group_holds_already(command):
    error = command.fit("--trainer.callbacks+=RunCheckpoint").error
    assert error.startswith("there are a checkpoint group and a RunCheckpoint in trainer.callbacks; remove the latter")
    assert command.fit("--trainer.callbacks+=RunCheckpoint", "--checkpoint", "null").status == 0


def test_two_rollout_callbacks_are_refused(command):
    twice = [
        "--rollout.rewards",
        "[ExactMatch]",
        "--trainer.callbacks+=RolloutCallback",
        "--trainer.callbacks.rewards",
        "[ExactMatch]",
    ]
    error = command("predict", "--config", "base.yaml", "--model", "cli_samples.RolloutModel", *twice).error
    assert error.startswith("there are a rollout group and a RolloutCallback in trainer.callbacks")


def test_predict_without_anything_to_write_with(command):
    error = command("predict", "--config", "base.yaml").error
    assert error.startswith("predict writes rollouts; add a rollout group, or your own BasePredictionWriter")
