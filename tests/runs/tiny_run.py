"""Real SFT and RLVR runs on tiny models through the Python API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model

from roll_lightning.callbacks.checkpoint import RunCheckpoint
from roll_lightning.callbacks.hf_export import HFExport
from roll_lightning.callbacks.rollout import RolloutCallback, ValidationSampling
from roll_lightning.data.types import Rollout
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.optim import OptimizerConfig, ScheduleConfig
from roll_lightning.modules.rlvr import KLConfig, RLVRModule
from roll_lightning.modules.sft import SFTModule
from roll_lightning.rewards.base import RewardFunction


class ShareOfOdds(RewardFunction):
    """Share of odd digits: a model with random weights gets something between 0 and 1 for almost every answer."""

    in_process = True

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [sum(c in "13579" for c in r.text) / (1 + len(r.text)) for r in rollouts]


class LineLogger(Logger):
    """Appends one line of JSON per call: what a killed process has logged stays (CSVLogger rewrites its file)."""

    name, version = "lines", 0

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps([step, metrics]) + "\n")

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing to keep."""


class SGDModule(RLVRModule):
    """RLVR with plain SGD: Adam would hide a wrong scale of the gradient."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def make_task(folder: Path, **model: Any) -> Path:
    """``model`` with dropout and wide weights, so that answers differ, and the files of both kinds of training."""
    write_model(folder / "model", "qwen2", weights=True, attention_dropout=0.1, initializer_range=0.3, **model)
    write_jsonl(folder / "sft.jsonl", sorting_rows(20, answer="completion"))
    write_jsonl(folder / "sft_val.jsonl", sorting_rows(5, start=20, answer="completion"))
    write_jsonl(folder / "rl.jsonl", sorting_rows(20))
    write_jsonl(folder / "rl_val.jsonl", sorting_rows(5, start=20))
    return folder


def make_trainer(root: Path, callbacks: Sequence[Any], attempt: int = 0, **settings: Any) -> Trainer:
    """Each attempt at a run has a log of its own."""
    defaults: dict[str, Any] = {
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 1.0,
        "num_sanity_val_steps": 1,
        "logger": LineLogger(root / "logs" / f"attempt={attempt}.jsonl"),
    }
    return quiet_trainer(root, *callbacks, **(defaults | settings))


def sft_module(task: Path, kind: type[SFTModule] = SFTModule, **settings: Any) -> SFTModule:
    defaults = {
        "optimizer": OptimizerConfig(lr=1e-2),
        "schedule": ScheduleConfig("inverse_sqrt", 2),
        "policy": PolicyConfig(str(task / "model")),
    }
    return kind(**(defaults | settings))


def sft_data(task: Path, **settings: Any) -> SFTDataModule:
    """Four updates per epoch, the last of two rows."""
    files = {"train": str(task / "sft.jsonl"), "val": str(task / "sft_val.jsonl")}
    return SFTDataModule(**(files | {"batch_size": 6, "max_length": 32, "val_batch_size": 2} | settings))


def rlvr_module(task: Path, kind: type[RLVRModule] = RLVRModule, **settings: Any) -> RLVRModule:
    defaults = {
        "optimizer": OptimizerConfig(lr=1e-2),
        "schedule": ScheduleConfig("inverse_sqrt", 2),
        "kl": KLConfig("loss", "k3", 0.1),
        "policy": PolicyConfig(str(task / "model")),
    }
    return kind(**(defaults | settings))


def rlvr_data(task: Path, **settings: Any) -> RLVRDataModule:
    """Two passes over 16 samples in steps of 8: four updates per iteration."""
    files = {"train": str(task / "rl.jsonl"), "val": str(task / "rl_val.jsonl")}
    return RLVRDataModule(**(files | {"batch_size": 8, "ppo_epochs": 2, "val_batch_size": 3} | settings))


def rollout_callback(**settings: Any) -> RolloutCallback:
    defaults = {
        "prompts_per_iteration": 4,
        "num_generations": 4,
        "rewards": [ShareOfOdds()],
        "max_new_tokens": 6,
        "validation": ValidationSampling(True, 2),
    }
    return RolloutCallback(**(defaults | settings))


def run_sft(
    task: Path, root: Path, *, attempt: int = 0, data: dict | None = None, module: SFTModule | None = None, **settings
) -> None:
    """An SFT run from the beginning, or from its last checkpoint."""
    seed_everything(0)
    callbacks = [RunCheckpoint(every_n_steps=1), HFExport(), *settings.pop("callbacks", [])]
    trainer = make_trainer(root, callbacks, attempt, **settings)
    trainer.fit(module or sft_module(task), datamodule=sft_data(task, **(data or {})), ckpt_path="last")


def run_rlvr(
    task: Path,
    root: Path,
    *,
    attempt: int = 0,
    data: dict | None = None,
    rollout: dict | None = None,
    module: RLVRModule | None = None,
    **settings,
) -> None:
    """An RLVR run from the beginning, or from its last checkpoint."""
    seed_everything(0)
    own = settings.pop("callbacks", [])
    callbacks = [rollout_callback(**(rollout or {})), RunCheckpoint(every_n_steps=1), HFExport(), *own]
    trainer = make_trainer(root, callbacks, attempt, **settings)
    trainer.fit(module or rlvr_module(task), datamodule=rlvr_data(task, **(data or {})), ckpt_path="last")
