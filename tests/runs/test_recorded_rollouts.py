"""Training from recorded rollouts: the same as live, and the same for every number of ranks and micro-batches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from runs.run_ends import assert_same_state, logged, weights
from runs.tiny_run import SGDModule, make_task, rlvr_module, run_rlvr
from spine.forked import run_forked
from spine.toy import strategy_of
from tiny import write_model

from roll_lightning.collectors.replay import read_rollouts

EPOCHS = 2


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


def go(task: Path, root: Path, ranks: int = 1, strategy: str | None = None, expect: int = 0, **arguments) -> Path:
    def start() -> None:
        module = rlvr_module(task, SGDModule)
        chosen = strategy_of(strategy or ("ddp" if ranks > 1 else "auto"))
        run_rlvr(task, root, module=module, devices=ranks, strategy=chosen, max_epochs=EPOCHS, **arguments)

    codes = run_forked(start, root / "out.txt", ranks)
    assert codes == [expect] * ranks, (root / "out.txt").read_text()[-3000:]
    return root


@pytest.fixture(scope="module")
def live(task, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("live")
    return go(task, root, rollout={"record_dir": str(root / "rollouts")})


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=tolerance, rtol=0), (name, (found[name] - value).abs().max())


def test_replay_without_engine_and_rewards_is_the_live_run(task, live, tmp_path):
    replay = {"replay_dir": str(live / "rollouts"), "rewards": None}
    go(task, tmp_path, rollout=replay, data={"val": None})
    assert_same_state(dict(weights(tmp_path)), dict(weights(live)))


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (1, 4), (2, 1), (2, 2)])
def test_T01_T06_every_cut_gives_the_same_run(task, live, tmp_path, ranks, accumulate):
    replay = {"replay_dir": str(live / "rollouts")}
    go(task, tmp_path, ranks, rollout=replay, accumulate_grad_batches=accumulate)
    assert_close(weights(tmp_path), weights(live), 2e-6)
    assert_same_losses(tmp_path, live, "actor/grad_norm")


@pytest.mark.parametrize("strategy", ["fsdp2", "zero1", "zero2", "zero3"])
def test_T06_T09_every_strategy_gives_the_same_run(task, live, tmp_path, strategy):
    """Losses, the KL to a reference that is sharded too, and the exported weights are those of one rank."""
    go(task, tmp_path, 2, strategy, rollout={"replay_dir": str(live / "rollouts")})
    assert_close(exported(tmp_path), exported(live), 2e-6)
    assert_same_losses(tmp_path, live)


def assert_same_losses(root: Path, reference: Path, *more: str) -> None:
    expected, found = logged(reference), logged(root)
    names = ("actor/pg_loss", "actor/kl_loss", "actor/total_loss", "critic/kl", *more)
    compared = [key for key in expected if key[1] in names]
    assert len(compared) == len(names) * 4 * EPOCHS
    for key in compared:
        assert found[key] == pytest.approx(expected[key], rel=2e-4, abs=2e-6), key


def exported(root: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(root / "hf/model.safetensors")


def test_two_live_ranks_roll_out_what_one_does(task, live, tmp_path):
    go(task, tmp_path, 2, rollout={"record_dir": str(tmp_path / "rollouts")})
    one, two = (read_rollouts(str(root / "rollouts"), 0) for root in (live, tmp_path))
    assert [rollout.token_ids for rollout in two] == [rollout.token_ids for rollout in one]
    for mine, theirs in zip(two, one, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
        assert (mine.score, mine.prompt.id, mine.group) == (theirs.score, theirs.prompt.id, theirs.group)
    first = {key: value for key, value in logged(tmp_path).items() if key[0] == 3 and key[1].startswith("val_")}
    assert first
    for key, value in first.items():
        assert value == pytest.approx(logged(live)[key], abs=1e-6), key


def test_a_missing_iteration_is_one_line(task, live, tmp_path):
    replay = {"replay_dir": str(live / "rollouts")}

    def too_long() -> None:
        run_rlvr(task, tmp_path, rollout=replay, max_epochs=EPOCHS + 1)

    assert run_forked(too_long, tmp_path / "out.txt") == [1]
    text = (tmp_path / "out.txt").read_text()
    assert f"has no rollouts of iteration {EPOCHS} ({EPOCHS} iterations are recorded)" in text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": {"batch_size": 16}}, "data.batch_size changed"),
        ({"data": {"train": "rl_val.jsonl"}}, "the training data changed"),
        ({"rollout": {"num_generations": 2}}, "rollout.num_generations changed"),
        ({"accumulate_grad_batches": 1}, "trainer.accumulate_grad_batches changed"),
        ({"model": {"hidden_size": 64}}, "hidden_size was 32, now it is 64"),
        ({}, "the run is complete"),
    ],
)
def test_what_a_run_began_with_cannot_change(task, live, tmp_path, change, named):
    shutil.copytree(live / "checkpoints", tmp_path / "checkpoints")
    changed = make_task(tmp_path / "task") if change else task
    if "model" in change:
        settings = {"attention_dropout": 0.1, "initializer_range": 0.3, **change["model"]}
        shutil.rmtree(changed / "model")
        write_model(changed / "model", "qwen2", weights=True, **settings)
    arguments = {key: value for key, value in change.items() if key != "model"}
    if "train" in arguments.get("data", {}):
        arguments["data"] = {"train": str(changed / "rl_val.jsonl")}
    epochs = EPOCHS + 1 if change else EPOCHS

    def resume() -> None:
        run_rlvr(changed, tmp_path, module=rlvr_module(changed, SGDModule), max_epochs=epochs, **arguments)

    assert run_forked(resume, tmp_path / "out.txt") == [1]
    text = (tmp_path / "out.txt").read_text()
    assert named in text.splitlines()[-1], text[-2000:]


def test_more_epochs_may_follow(task, live, tmp_path):
    shutil.copytree(live / "checkpoints", tmp_path / "checkpoints")
    out = tmp_path / "out.txt"
    code = run_forked(lambda: run_rlvr(task, tmp_path, module=rlvr_module(task, SGDModule), max_epochs=EPOCHS + 1), out)
    assert code == [0], out.read_text()[-2000:]
