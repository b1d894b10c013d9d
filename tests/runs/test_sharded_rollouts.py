"""Under FSDP2 and ZeRO-3 a decoding step is collective: ranks with shorter prompts and answers must not leave early."""

from __future__ import annotations

from pathlib import Path

import pytest
from spine.forked import run_forked
from spine.toy import strategy_of
from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model

from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.collectors.replay import read_rollouts
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.engines.hf import HFEngine
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.rlvr import KLConfig, RLVRModule
from roll_lightning.rewards.exact_match import ExactMatch


def train(root: Path, folder: Path, strategy: str, devices: int) -> None:
    # Two rows at once: the rank with three of the five prompts needs more forward passes than the other.
    engine = HFEngine(max_batch_size=2)
    rollout = RolloutCallback(5, 3, engine, [ExactMatch()], max_new_tokens=9, record_dir=str(root / "rollouts"))
    trainer = quiet_trainer(
        root, rollout, strategy=strategy_of(strategy), devices=devices, max_epochs=1, enable_checkpointing=False
    )
    module = RLVRModule(PolicyConfig(str(folder / "model")), kl=KLConfig("loss"), drop_zero_variance=False)
    rows = str(folder / "rows.jsonl")
    trainer.fit(module, datamodule=RLVRDataModule(rows, rows, batch_size=5, val_batch_size=3, seed=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    write_model(folder / "model", weights=True)
    rows = [row for digits in (1, 3, 6) for row in sorting_rows(4, digits)]
    write_jsonl(folder / "rows.jsonl", rows)
    return folder


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
def test_two_ranks_roll_out_what_one_does(folder, tmp_path, strategy):
    assert run_forked(lambda: train(tmp_path / "one", folder, "auto", 1), tmp_path / "one.txt") == [0]
    codes = run_forked(lambda: train(tmp_path / "two", folder, strategy, 2), tmp_path / "two.txt", 2, timeout=120)
    assert codes == [0, 0], (tmp_path / "two.txt").read_text()[-3000:]
    one, two = (read_rollouts(str(tmp_path / name / "rollouts"), 0) for name in ("one", "two"))
    assert len({len(rollout.token_ids) for rollout in one}) > 3
    assert [rollout.token_ids for rollout in two] == [rollout.token_ids for rollout in one]
