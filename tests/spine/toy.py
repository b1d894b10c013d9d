"""A toy that has everything of the spine but a language model: planner, loader, rollouts, buffer, checkpoints.

Its rollouts depend on its weights, its dropout on the global random state, and every micro-batch is written to a log,
so a resume that is off by anything ends in other weights or another log.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn

from roll_lightning.callbacks.checkpoint import RunCheckpoint
from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.collectors.base import Collector
from roll_lightning.data.batch import ExperienceBatch
from roll_lightning.data.experience import Experience
from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.engines.base import derive_seed
from roll_lightning.modules.base import BaseModule

PROMPTS = [Prompt(id=f"p{i}", token_ids=tuple(range(1, 2 + i % 3)), text=str(i)) for i in range(10)]


class ToyCollector(Collector):
    """Answers of 1 to 5 tokens from the seed alone."""

    def collect(self, tasks, iteration, purpose):
        return [_answer(task, sample, iteration) for task in tasks for sample in range(task.samples)]


def _answer(task, sample, iteration) -> Rollout:
    generator = torch.Generator().manual_seed(derive_seed(iteration, task.prompt.id, sample))
    length = int(torch.randint(1, 6, (1,), generator=generator))
    tokens = torch.randint(1, 16, (length,), generator=generator).tolist()
    prompt = list(task.prompt.token_ids)
    score = float(torch.rand(1, generator=generator))
    return Rollout(
        prompt=task.prompt,
        group=task.group,
        sample=sample,
        token_ids=prompt + tokens,
        loss_mask=[0] * len(prompt) + [1] * length,
        logprobs=[0.0] * len(prompt) + [-1.0] * length,
        text="",
        finish_reason="stop",
        weight_version=(0, 0),
        score=score,
        reward=score,
    )


class ToyDataModule(RLVRDataModule):
    def load_prompts(self, source, split="train"):
        return PROMPTS

    def fingerprint(self) -> str:
        return "toy"


class ToyModule(BaseModule):
    def __init__(self, log: str | None = None, optimizer: str = "adamw", dropout: float = 0.1) -> None:
        super().__init__()
        self.log_file = log
        self.optimizer_name = optimizer
        self.dropout = dropout
        self.policy: nn.Module | None = None

    def configure_model(self) -> None:
        if self.policy is not None:
            return
        with torch.random.fork_rng():
            torch.manual_seed(1)
            layers = [nn.Embedding(16, 8), nn.Dropout(self.dropout), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)]
            self.policy = nn.Sequential(*layers)
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            from torch.distributed.fsdp import fully_shard

            mesh = self.device_mesh["data_parallel"]
            fully_shard(self.policy, mesh=mesh)

    def values(self, input_ids: Tensor) -> Tensor:
        return self.policy(input_ids).squeeze(-1)

    def make_experience(self, rollouts, iteration: int) -> Experience:
        experience = Experience.from_rollouts(rollouts)
        with torch.no_grad():
            experience.old_logprobs = self.values(experience.input_ids).clone()
        scores = torch.tensor([rollout.score for rollout in rollouts])
        experience.advantages = scores[:, None] * experience.response_mask
        return experience

    def training_step(self, batch: ExperienceBatch, batch_idx: int) -> Tensor:
        window = self.window_of(batch)
        error = (self.values(batch.input_ids) - batch.advantages + 0.5 * batch.old_logprobs).square()
        share = torch.where(batch.loss_mask, error, 0).sum() / window.tokens
        if self.log_file:
            self._write(batch, batch_idx)
        return self.scale_loss(share)

    def _write(self, batch: ExperienceBatch, batch_idx: int) -> None:
        rows = [batch.input_ids.tolist(), batch.loss_mask.int().tolist()]
        entry = [self.current_epoch, batch_idx, self.global_step, *rows]
        with open(f"{self.log_file}.{self.global_rank}", "a") as file:
            file.write(json.dumps(entry) + "\n")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Uses random numbers, as a user's may."""
        torch.rand(3)

    def configure_optimizers(self) -> Any:
        if self.optimizer_name == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.5)
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class KillAfter(Callback):
    """SIGKILL to this process after so many micro-batches of this process."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_train_batch_end(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def strategy_of(name: str) -> Any:
    if name == "fsdp2":
        return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    if name.startswith("zero"):
        from roll_lightning.strategies.deepspeed import RollDeepSpeedStrategy

        return RollDeepSpeedStrategy(stage=int(name[-1]))
    return "ddp" if name == "ddp" else "auto"


def run(
    root: Path,
    *,
    strategy: str = "auto",
    devices: int = 1,
    accumulate: int = 2,
    kill_after: int = 0,
    resume: str | None = None,
    optimizer: str = "adamw",
    dropout: float = 0.1,
    every_n_steps: int = 1,
    callbacks: list[Callback] | None = None,
    **limits: int,
) -> ToyModule:
    """One run: 2 windows x 2 passes an iteration, unless it is killed."""
    seed_everything(0)
    root.mkdir(parents=True, exist_ok=True)
    module = ToyModule(str(root / "log"), optimizer, dropout)
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy_of(strategy),
        accumulate_grad_batches=accumulate,
        default_root_dir=root,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        callbacks=[
            RolloutCallback(prompts_per_iteration=4, num_generations=2, collector=ToyCollector(), max_new_tokens=5),
            RunCheckpoint(every_n_steps=every_n_steps, keep_last=2),
            *([KillAfter(kill_after)] if kill_after else []),
            *(callbacks or []),
        ],
        **{"max_epochs": -1, **limits},
    )
    data = ToyDataModule(train="toy", val="toy", batch_size=4, ppo_epochs=2, val_batch_size=4, seed=0)
    trainer.fit(module, datamodule=data, ckpt_path=resume)
    save_weights(trainer, root / "weights.pt")
    return module


def save_weights(trainer: Trainer, path: Path) -> None:
    """The full weights, whatever the strategy."""
    state = full_state(trainer)
    if trainer.is_global_zero:
        torch.save(state, path)


def full_state(trainer: Trainer) -> dict[str, Tensor]:
    policy = trainer.lightning_module.policy
    if isinstance(trainer.strategy, ModelParallelStrategy):
        return {name: p.full_tensor().detach().clone() for name, p in policy.named_parameters()}
    if getattr(trainer.strategy, "zero_stage_3", False):
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(policy.parameters())):
            return {name: p.detach().clone() for name, p in policy.named_parameters()}
    return {name: p.detach().clone() for name, p in policy.named_parameters()}
