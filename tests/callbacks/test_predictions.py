"""Rollouts of predict: one file, in the order of the prompts, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.cli_samples import RolloutModel, TinyData
from lightning.pytorch import Trainer
from spine.forked import run_forked

from roll_lightning.callbacks.predictions import PredictionWriter
from roll_lightning.errors import ConfigError


def predict(root: Path, ranks: int = 1, model: RolloutModel | None = None, prompts: int = 11, **data: int) -> list:
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        default_root_dir=root,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        callbacks=[PredictionWriter()],
    )
    trainer.predict(model or RolloutModel("x"), TinyData(prompts=prompts, **data), return_predictions=False)
    return trainer.predict_loop.predictions


def rows(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_rollout_in_order_and_none_in_memory(tmp_path):
    kept = predict(tmp_path)
    assert not any(kept)
    found = rows(tmp_path)
    expected = [(f"p{n}", f"prompt {n} ä", n, s, [1, 2, n]) for n in range(11) for s in range(3)]
    assert [(r["prompt_id"], r["prompt"], r["group"], r["sample"], r["token_ids"]) for r in found] == expected
    assert found[2] == {
        "prompt_id": "p0",
        "prompt": "prompt 0 ä",
        "group": 0,
        "sample": 2,
        "token_ids": [1, 2, 0],
        "response": "answer 2",
        "finish_reason": "stop",
        "score": None,
        "reward": None,
        "components": {"exact": 1.0},
    }
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.jsonl"]


@pytest.mark.parametrize("prompts", [11, 1])
def test_two_ranks_write_what_one_writes(tmp_path, prompts):
    predict(tmp_path / "one", prompts=prompts)
    # With one prompt the second rank has an empty batch.
    codes = run_forked(lambda: predict(tmp_path / "two", 2, prompts=prompts), tmp_path / "out.txt", 2)
    assert codes == [0, 0], (tmp_path / "out.txt").read_text()[-3000:]
    assert (tmp_path / "two/predictions.jsonl").read_text() == (tmp_path / "one/predictions.jsonl").read_text()
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["predictions.jsonl"]


class FailsLate(RolloutModel):
    def predict_step(self, batch, batch_idx):
        if batch_idx == 1:
            raise RuntimeError("late")
        return super().predict_step(batch, batch_idx)


class PredictsNumbers(RolloutModel):
    def predict_step(self, batch, batch_idx):
        return [1.0]


def test_a_run_that_fails_leaves_the_earlier_file_and_no_part(tmp_path):
    predict(tmp_path)
    before = (tmp_path / "predictions.jsonl").read_bytes()
    with pytest.raises(RuntimeError, match="late"):
        predict(tmp_path, model=FailsLate("x"), prompts=9)
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.jsonl"]
    assert (tmp_path / "predictions.jsonl").read_bytes() == before


def test_parts_that_a_killed_run_left_do_no_harm(tmp_path):
    (tmp_path / "predictions.jsonl.rank=0.partial").write_text("half a li")
    (tmp_path / "predictions.jsonl.rank=7.partial").write_text("old")
    predict(tmp_path, prompts=2)
    assert len(rows(tmp_path)) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.jsonl"]


def test_a_module_that_predicts_something_else(tmp_path):
    with pytest.raises(ConfigError, match=r"PredictsNumbers.predict_step gives list, not list\[Rollout\]"):
        predict(tmp_path, model=PredictsNumbers("x"))


def test_a_full_disk_is_one_clear_error(tmp_path):
    from roll_lightning.errors import DataError

    (tmp_path / "predictions.jsonl.rank=0.partial").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"rank=0\.partial cannot be written: No space left on device"):
        predict(tmp_path)
    assert not (tmp_path / "predictions.jsonl").exists()
