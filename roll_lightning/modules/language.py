"""The base of every algorithm on language models: loading, tokenizer, optimizer, log-probabilities, metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor
from torch.optim import Optimizer

from roll_lightning.data.batch import TokenBatch
from roll_lightning.errors import CheckpointError, ConfigError
from roll_lightning.functional.logprobs import TokenLogprobs
from roll_lightning.metrics.weighted import WeightedMeans
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.models.loading import PolicyConfig, check_model_path, load_causal_lm, model_facts
from roll_lightning.models.sharding import full_tensors, shard_policy
from roll_lightning.models.tokenizer import load_tokenizer, stop_token_ids
from roll_lightning.modules.base import BaseModule
from roll_lightning.modules.optim import OptimizerConfig, ScheduleConfig, make_optimizer, make_schedule


class LanguageModule(BaseModule):
    """Owns the policy. A subclass adds ``training_step`` and the names of its metrics.

    Args:
        policy: model and tokenizer.
        optimizer: of the policy.
        schedule: of the learning rate.
    """

    metric_prefix = "actor"
    dropout = True

    def __init__(
        self,
        policy: PolicyConfig,
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.policy_config = policy
        self.optimizer_config = optimizer
        self.schedule_config = schedule
        self.policy: CausalPolicy | None = None
        self.window_metrics = WeightedMeans([])

    def make_window_metrics(self) -> WeightedMeans:
        """The metrics that ``training_step`` feeds; they are logged once per optimizer step."""
        return WeightedMeans([])

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer; loaded on first use, before the model, so that faults in the data show early."""
        return load_tokenizer(self.policy_config.tokenizer or self.policy_config.path, self.policy_config.chat_template)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a response: the tokenizer's, the template's, and the model's generation config's."""
        generation = getattr(self.ready_policy.hf, "generation_config", None)
        named = getattr(generation, "eos_token_id", None)
        extra = [named] if isinstance(named, int) else list(named or [])
        return tuple(dict.fromkeys([*stop_token_ids(self.tokenizer), *extra]))

    @property
    def ready_policy(self) -> CausalPolicy:
        """The policy.

        Raises:
            RuntimeError: ``configure_model`` has not run.
        """
        if self.policy is None:
            raise RuntimeError(f"{type(self).__name__} has no policy yet; the trainer calls configure_model")
        return self.policy

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Find wrong paths before a model loads."""
        check_model_path(self.policy_config)
        if getattr(self.trainer.strategy, "zero_stage_3", False):
            raise ConfigError(
                "trainer.strategy is DeepSpeed stage 3, under which language models are not loaded yet; use DeepSpeed "
                "stage 1 or 2, FSDP2 (ModelParallelStrategy), or ddp"
            )
        self.window_metrics = self.make_window_metrics()

    def configure_model(self) -> None:
        """Load the policy, and shard it where the strategy wants that. Called again, it does nothing."""
        if self.policy is not None:
            return
        self.policy = self.load_policy(self.policy_config)
        self.policy.check_logits()
        if len(self.tokenizer) > self.policy.vocab_size:
            raise ConfigError(
                f"the tokenizer has {len(self.tokenizer)} tokens, but the model of {self.policy_config.path} only "
                f"{self.policy.vocab_size}; set model.policy.tokenizer to the model's own"
            )
        shard_policy(self.policy, self)

    def load_policy(self, config: PolicyConfig) -> CausalPolicy:
        """A policy on the CPU, not yet sharded."""
        return CausalPolicy(load_causal_lm(config, int(os.environ.get("PL_GLOBAL_SEED", 0)), self.dropout))

    def configure_optimizers(self) -> Any:
        """AdamW and a per-step schedule."""
        optimizer = make_optimizer(self, self.optimizer_config)
        total = -1
        if self.schedule_config.needs_total:
            total = self.trainer.estimated_stepping_batches
            if total == float("inf"):
                raise ConfigError(
                    f"model.schedule.name {self.schedule_config.name} needs an end; set trainer.max_epochs or "
                    f"trainer.max_steps"
                )
        schedule = make_schedule(optimizer, self.schedule_config, int(total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def token_logprobs(self, batch: TokenBatch, temperature: float = 1.0, entropy: bool = False) -> TokenLogprobs:
        """The policy's log-probabilities of the batch's loss tokens."""
        return self.ready_policy(batch.input_ids, batch.loss_mask, temperature, entropy)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and full tensor of each weight, one after the other; collective under sharding."""
        return full_tensors(self.ready_policy.hf)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Log the norm of the gradient before clipping, and the learning rate."""
        if not isinstance(self.trainer.strategy, DeepSpeedStrategy):
            self.log(f"{self.metric_prefix}/grad_norm", self._grad_norm())
        self.log(f"{self.metric_prefix}/lr", self.trainer.optimizers[0].param_groups[0]["lr"])

    def _grad_norm(self) -> Tensor:
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def on_train_batch_end(self, outputs: Any, batch: TokenBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Log the metrics of a window when it is whole, so that they do not depend on its cut."""
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0:
            for name, value in self.window_metrics.pop().items():
                self.log(name, value, prog_bar=name == f"{self.metric_prefix}/loss")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the policy is."""
        checkpoint["policy"] = {"facts": model_facts(self.ready_policy.config), "path": self.policy_config.path}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another model.

        Raises:
            CheckpointError: names the settings that differ.
        """
        saved, now = checkpoint.get("policy", {}).get("facts", {}), model_facts(self.ready_policy.config)
        differing = sorted(key for key in saved.keys() | now.keys() if saved.get(key) != now.get(key))
        if saved and differing:
            key = differing[0]
            raise CheckpointError(
                f"the model changed since the checkpoint was written: {key} was {saved.get(key)}, now it is "
                f"{now.get(key)}"
                + (f" (and {len(differing) - 1} more settings differ)" if len(differing) > 1 else "")
                + "; resume with the model that the run began with, or start a new run in another "
                "trainer.default_root_dir"
            )
