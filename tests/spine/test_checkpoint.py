"""Checkpoints are whole or not there, and one taken at any moment resumes exactly."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from lightning.pytorch import Callback
from spine.forked import run_forked
from spine.toy import run
from spine.toy_runs import assert_same_end, go, log

from roll_lightning.callbacks import checkpoint as checkpoint_file
from roll_lightning.callbacks.checkpoint import complete_checkpoints, marker, newest_checkpoint


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("reference")
    go(root, max_epochs=2)
    return root


class SaveInsideWindow(Callback):
    """What a SLURM signal does: a checkpoint in the middle of a window, then the end."""

    def __init__(self, batch: int, path: Path) -> None:
        self.left, self.path = batch, path

    def on_train_batch_end(self, trainer, *_) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.save_checkpoint(self.path)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 8, 9, 13])
def test_a_checkpoint_inside_a_window_goes_on_at_its_start(reference, tmp_path, batch):
    path = tmp_path / "signal.ckpt"
    go(tmp_path, expect=-9, callbacks=[SaveInsideWindow(batch, path)], every_n_steps=0, max_epochs=2)
    go(tmp_path, resume=str(path), max_epochs=2)
    assert_same_end(reference, tmp_path, batch, checkpointed=batch // 2 * 2)


@pytest.mark.parametrize("place", ["fsync", "publish", "marker"])
def test_killed_while_writing_a_checkpoint(reference, tmp_path, place):
    """Killed before the flush, before the rename, and between rename and marker of the third checkpoint."""

    def killed() -> None:
        calls = {"left": 3}
        original = checkpoint_file._publish

        def publish(partial, target, facts):
            calls["left"] -= 1
            if calls["left"] == 0:
                if place == "fsync":
                    partial.write_bytes(partial.read_bytes()[:100])
                if place == "marker":
                    os.replace(partial, target)
                os.kill(os.getpid(), signal.SIGKILL)
            original(partial, target, facts)

        checkpoint_file._publish = publish
        run(tmp_path, max_epochs=2)

    assert run_forked(killed, tmp_path / "out.txt") == [-9]
    assert [path.name for path in complete_checkpoints(tmp_path / "checkpoints")] == ["step=1.ckpt", "step=2.ckpt"]
    killed_at = len(log(tmp_path))
    go(tmp_path, resume="last", max_epochs=2)
    assert_same_end(reference, tmp_path, killed_at, checkpointed=4)


def test_the_last_k_are_kept(reference):
    names = sorted(path.name for path in (reference / "checkpoints").iterdir())
    assert names == ["step=7.ckpt", "step=7.ckpt.complete", "step=8.ckpt", "step=8.ckpt.complete"]


def test_L3_an_empty_folder_starts_fresh_with_one_line(tmp_path):
    go(tmp_path, resume="last", max_epochs=1)
    text = (tmp_path / "out.txt").read_text()
    assert text.count("starting from the beginning") == 1
    assert len(log(tmp_path)) == 8


def test_L3_only_incomplete_checkpoints_are_an_error(reference, tmp_path):
    shutil.copytree(reference / "checkpoints", tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints").glob("*.complete"):
        path.unlink()
    go(tmp_path, expect=1, resume="last", max_epochs=3)
    assert "only incomplete checkpoints (step=7.ckpt, step=8.ckpt)" in (tmp_path / "out.txt").read_text()
    assert not log(tmp_path)


def test_a_fresh_run_in_a_used_folder_is_refused(reference, tmp_path):
    shutil.copytree(reference / "checkpoints", tmp_path / "checkpoints")
    go(tmp_path, expect=1, max_epochs=1)
    text = (tmp_path / "out.txt").read_text()
    assert "has checkpoints beyond step 0, where this run starts (the newest is step=8.ckpt)" in text
    go(tmp_path, expect=1, resume=str(tmp_path / "checkpoints/step=7.ckpt"), max_epochs=3)
    assert "beyond step 7" in (tmp_path / "out.txt").read_text()
    assert not log(tmp_path)


def test_newest_is_by_step_not_by_time(reference, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(reference / "checkpoints", folder)
    os.utime(folder / "step=7.ckpt")
    assert newest_checkpoint(folder) == folder / "step=8.ckpt"
    marker(folder / "step=8.ckpt").unlink()
    assert newest_checkpoint(folder) == folder / "step=7.ckpt"


def test_L4_a_checkpoint_loads_weights_only(reference):
    import torch

    state = torch.load(reference / "checkpoints" / "step=7.ckpt", weights_only=True)
    assert "experience" in state["ToyDataModule"]


@pytest.mark.parametrize(("change", "named"), [({"batch_size": 8}, "data.batch_size"), ({"seed": 5}, "data.seed")])
def test_changed_data_is_refused(reference, tmp_path, change, named):
    from spine import toy

    shutil.copytree(reference / "checkpoints", tmp_path / "checkpoints")

    def changed() -> None:
        original = toy.ToyDataModule.__init__
        toy.ToyDataModule.__init__ = lambda self, **kwargs: original(self, **{**kwargs, **change})
        run(tmp_path, resume="last", max_epochs=4)

    assert run_forked(changed, tmp_path / "out.txt") == [1]
    assert f"{named} changed since the checkpoint was written" in (tmp_path / "out.txt").read_text()


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    small = tmp_path / "disk"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=64k tmpfs {small} 2>/dev/null"):
        pytest.skip("cannot mount a small disk here")
    try:
        code = run_forked(lambda: run(small, max_epochs=2), tmp_path / "out.txt")
        text = (tmp_path / "out.txt").read_text()
        assert code == [1]
        assert "CheckpointError: no space left on the disk" in text
        complete = complete_checkpoints(small / "checkpoints")
        assert all(not path.name.endswith(".partial") for path in complete)
    finally:
        os.system(f"umount {small}")


def test_dirpath_errors() -> None:
    from roll_lightning.callbacks.checkpoint import RunCheckpoint

    with pytest.raises(ValueError, match=r"checkpoint\.keep_last is -1"):
        RunCheckpoint(keep_last=-1)
