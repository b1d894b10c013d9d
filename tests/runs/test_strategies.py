"""SFT and RLVR on two ranks under every strategy: they train what one rank trains, save, resume and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from runs.run_ends import logged
from runs.tiny_run import SGDModule, make_task, rlvr_module, run_rlvr, run_sft, sft_module
from spine.forked import run_forked
from spine.toy import strategy_of

from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages import GAE
from roll_lightning.models.loading import PolicyConfig, load_policy
from roll_lightning.models.lora import LoraConfig
from roll_lightning.modules.critic_config import CriticConfig
from roll_lightning.modules.kl_term import KLConfig
from roll_lightning.modules.optim import OptimizerConfig
from roll_lightning.modules.sft import SFTModule

pytestmark = pytest.mark.slow
STRATEGIES = ["ddp", "fsdp2", "zero1", "zero2", "zero3"]


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def one_rank(task, tmp_path_factory):
    """Runs on one rank, each made once."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            root = made[kind] = tmp_path_factory.mktemp(kind)
            go(task, root, kind, record_dir=str(root / "rollouts"))
        return made[kind]

    return get


def go(
    task: Path,
    root: Path,
    kind: str,
    strategy: str = "auto",
    epochs: int = 2,
    attempt: int = 0,
    policy: dict[str, Any] | None = None,
    precision: str = "32-true",
    clip: float | None = None,
    **rollout: Any,
) -> None:
    ranks = 1 if strategy == "auto" else 2

    def start() -> None:
        settings: dict[str, Any] = {"attempt": attempt, "devices": ranks, "max_epochs": epochs, "precision": precision}
        settings["strategy"] = strategy_of(strategy)
        if kind == "sft":
            run_sft(task, root, module=sft_module(task, SGDSFT), **settings)
        else:
            lora = LoraConfig(r=4) if kind == "lora" else None
            config = PolicyConfig(str(task / "model"), lora=lora, **(policy or {}))
            critic = {"advantage": GAE(), "critic": CriticConfig(shared=kind == "shared")} if kind in CRITICS else {}
            module = rlvr_module(task, SGDModule, policy=config, **critic)
            if critic:
                settings["gradient_clip_val"] = (
                    None  # DeepSpeed clips both by one joint norm, the others each by its own
                )
            run_rlvr(task, root, module=module, rollout=rollout, **settings)

    codes = run_forked(start, root / f"out{attempt}.txt", ranks)
    assert codes == [0] * ranks, (root / f"out{attempt}.txt").read_text()[-3000:]


class SGDSFT(SFTModule):
    """SFT without dropout and with plain SGD, so that ranks and scale show."""

    dropout = False

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def exported(root: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    files = sorted((root / "hf").rglob("*.safetensors"))
    return {f"{file.parent.name}.{name}": value for file in files for name, value in load_file(file).items()}


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=tolerance, rtol=0), (name, (found[name] - value).abs().max())


LOSSES = {
    "sft": ("sft_train/loss", "sft_train/val_loss"),
    "rlvr": ("actor/total_loss", "critic/kl"),
    "lora": ("actor/total_loss", "critic/kl"),
    "ppo": ("actor/total_loss", "critic/loss"),
    "shared": ("actor/total_loss", "critic/loss"),
}
CRITICS = ("ppo", "shared")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", LOSSES)
def test_T06_T09_two_ranks_train_what_one_does(task, one_rank, tmp_path, kind, strategy):
    """On recorded rollouts; with the reference of the KL term sharded as well, or the adapter turned off."""
    reference = one_rank(kind)
    go(task, tmp_path, kind, strategy, **({} if kind == "sft" else {"replay_dir": str(reference / "rollouts")}))
    assert_close(exported(tmp_path), exported(reference), 3e-6)
    found, expected = logged(tmp_path), logged(reference)
    compared = [key for key in expected if key[1] in LOSSES[kind]]
    assert len(compared) >= 8
    for key in compared:
        assert found[key] == pytest.approx(expected[key], rel=2e-4, abs=2e-6), key
    assert any(abs(expected[key]) > 1e-3 for key in compared if key[1] == LOSSES[kind][1])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_clip_policy_and_critic_as_one_does(task, one_rank, tmp_path, strategy):
    replay = {"replay_dir": str(one_rank("ppo") / "rollouts"), "clip": 0.02, "epochs": 1}
    go(task, tmp_path / "one", "ppo", **replay)
    go(task, tmp_path / "two", "ppo", strategy, **replay)
    assert_close(exported(tmp_path / "two"), exported(tmp_path / "one"), 1e-6)
    norms = [value for (_, name), value in logged(tmp_path / "two").items() if name.endswith("/grad_norm")]
    assert min(norms) > 0.03


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", LOSSES)
def test_T44_T45_resumed_and_exported(task, one_rank, tmp_path, kind, strategy):
    """Stopped after an epoch and taken up by new processes, a run ends where it would have ended; to the bit."""
    rollout = {} if kind == "sft" else {"replay_dir": str(one_rank(kind) / "rollouts")}
    go(task, tmp_path / "whole", kind, strategy, **rollout)
    go(task, tmp_path / "parts", kind, strategy, epochs=1, **rollout)
    go(task, tmp_path / "parts", kind, strategy, attempt=1, **rollout)
    found, expected = exported(tmp_path / "parts"), exported(tmp_path / "whole")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert logged(tmp_path / "parts") == logged(tmp_path / "whole")


@pytest.mark.parametrize(
    ("strategy", "kind", "policy", "precision"),
    [
        ("fsdp2", "lora", {"dtype": "bfloat16"}, "32-true"),
        ("zero3", "lora", {"dtype": "bfloat16"}, "32-true"),
        ("fsdp2", "rlvr", {"gradient_checkpointing": True}, "bf16-mixed"),
        ("zero2", "rlvr", {"gradient_checkpointing": True}, "bf16-mixed"),
        ("zero3", "rlvr", {"gradient_checkpointing": True}, "bf16-mixed"),
        ("ddp", "lora", {"gradient_checkpointing": True}, "bf16-mixed"),
    ],
)
def test_precision_and_checkpointed_activations(task, one_rank, tmp_path, strategy, kind, policy, precision):
    """The rollouts' first step, close to float32."""
    reference = one_rank(kind)
    replay = str(reference / "rollouts")
    go(task, tmp_path, kind, strategy, policy=policy, precision=precision, epochs=1, replay_dir=replay)
    found, expected = logged(tmp_path), logged(reference)
    key = (0, "critic/entropy/mean")
    assert found[key] == pytest.approx(expected[key], rel=0.02)


@pytest.mark.parametrize(
    ("clip", "own", "named"),
    [
        (
            {"gradient_clip_val": 1.0},
            0.5,
            "model.critic.gradient_clip_val is 0.5 and trainer.gradient_clip_val 1.0, but",
        ),
        (
            {"gradient_clip_algorithm": "value"},
            None,
            "gradient_clip_algorithm is value, but DeepSpeed clips by norm only",
        ),
    ],
)
def test_two_bounds_and_clipping_by_value_are_refused_under_deepspeed(task, tmp_path, clip, own, named):
    def start() -> None:
        module = rlvr_module(task, advantage=GAE(), critic=CriticConfig(gradient_clip_val=own))
        with pytest.raises(ConfigError, match=named):
            run_rlvr(task, tmp_path, module=module, strategy=strategy_of("zero1"), max_epochs=1, **clip)

    assert run_forked(start, tmp_path / "out.txt") == [0], (tmp_path / "out.txt").read_text()[-3000:]


def test_zero3_decays_matrices_although_their_shards_are_flat(task, tmp_path):
    """With a learning rate so small that only decay shows; the first of two warm-up steps decays by a third of 0.1."""

    def start() -> None:
        module = rlvr_module(task, kl=KLConfig(), optimizer=OptimizerConfig(lr=1e-6, weight_decay=1e5))
        run_rlvr(task, tmp_path, module=module, strategy=strategy_of("zero3"), max_epochs=1, max_steps=1)

    assert run_forked(start, tmp_path / "out.txt") == [0], (tmp_path / "out.txt").read_text()[-3000:]
    found = exported(tmp_path)
    begun = load_policy(PolicyConfig(str(task / "model")), 0).hf.state_dict()
    for name, factor in (("model.embed_tokens.weight", 1 - 0.1 / 3), ("model.norm.weight", 1.0)):
        assert torch.allclose(found[f"hf.{name}"], factor * begun[name], atol=1e-4), name


def test_tensor_parallelism_is_refused(task, tmp_path):
    def start() -> None:
        strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
        with pytest.raises(ConfigError, match="tensor_parallel_size 2, which is not supported; set it to 1 and data"):
            run_rlvr(task, tmp_path, module=rlvr_module(task), strategy=strategy, devices=2, max_epochs=1)

    codes = run_forked(start, tmp_path / "out.txt", 2)
    assert codes == [0, 0], (tmp_path / "out.txt").read_text()[-3000:]
