"""The base of every algorithm on language models: loading, tokenizer, optimizer, log-probabilities, metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from roll_lightning.data.batch import TokenBatch
from roll_lightning.errors import CheckpointError, ConfigError
from roll_lightning.functional.logprobs import TokenLogprobs
from roll_lightning.metrics.weighted import WeightedMeans
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.models.full_tensors import full_tensors
from roll_lightning.models.loading import PolicyConfig, check_policy, load_policy, model_facts
from roll_lightning.models.lora import adapter_facts, adapter_tensors, merged_tensors
from roll_lightning.models.sharding import check_mesh, is_sharded, is_zero3, shard_model
from roll_lightning.models.tokenizer import load_tokenizer, stop_token_ids
from roll_lightning.models.zero3 import hf_in_shards
from roll_lightning.modules.base import BaseModule
from roll_lightning.modules.optim import (
    OptimizerConfig,
    ParameterGroup,
    ScheduleConfig,
    make_optimizer,
    make_schedule,
)


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

    def setup(self, stage: str) -> None:
        """Find wrong paths before a model loads."""
        check_policy(self.policy_config)
        self.check_settings(stage)
        self.window_metrics = self.make_window_metrics()

    def check_settings(self, stage: str) -> None:
        """Find settings that contradict each other, with neither model nor data at hand.

        Raises:
            ConfigError: two do; says what to set.
        """
        check_mesh(self.trainer.strategy)
        if isinstance(self.trainer.strategy, DeepSpeedStrategy) and self.trainer.gradient_clip_algorithm == "value":
            raise ConfigError(
                "trainer.gradient_clip_algorithm is value, but DeepSpeed clips by norm only; set it to norm"
            )
        self._check_lora()
        endless = self.trainer.max_steps == -1 and self.trainer.max_epochs == -1
        if stage == "fit" and self.schedule_config.needs_total and endless:
            raise self._endless_schedule()

    def _endless_schedule(self) -> ConfigError:
        return ConfigError(
            f"model.schedule.name {self.schedule_config.name} needs an end; set trainer.max_epochs or trainer.max_steps"
        )

    def configure_model(self) -> None:
        """Load the policy, and shard it where the strategy wants that. Called again, it does nothing."""
        if self.policy is not None:
            return
        self.policy = self.make_policy()
        if not is_zero3(self.trainer.strategy):
            self.policy.check_logits()
        if len(self.tokenizer) > self.policy.vocab_size:
            raise ConfigError(
                f"the tokenizer has {len(self.tokenizer)} tokens, but the model of {self.policy_config.path} only "
                f"{self.policy.vocab_size}; set model.policy.tokenizer to the model's own"
            )
        shard_model(self.policy, self)

    def make_policy(self) -> CausalPolicy:
        """The policy that is trained, with all that belongs to it, before it is sharded."""
        return self.load_policy(self.policy_config)

    def load_policy(self, config: PolicyConfig) -> CausalPolicy:
        """A policy that is not yet sharded, but under ZeRO-3."""
        with nullcontext() if config.from_scratch else hf_in_shards(self.trainer.strategy):
            return load_policy(config, int(os.environ.get("PL_GLOBAL_SEED", 0)), self.dropout)

    def on_fit_start(self) -> None:
        """Under ZeRO-3 a forward pass works only from here on."""
        if is_zero3(self.trainer.strategy):
            self.ready_policy.check_logits()

    def _check_lora(self) -> None:
        config = self.policy_config
        if config.lora is not None and config.lora.dropout and not self.dropout:
            raise ConfigError(
                f"model.policy.lora.dropout is {config.lora.dropout}; reinforcement learning needs 0, or no ratio is 1"
            )
        if config.quantize_bits is not None and is_sharded(self.trainer.strategy):
            raise ConfigError(
                f"model.policy.quantize_bits is {config.quantize_bits}, but {type(self.trainer.strategy).__name__} "
                f"cannot shard quantised weights; use one device, ddp, or DeepSpeed stage 1 or 2"
            )

    @property
    def policy_parameters(self) -> list[nn.Parameter]:
        """Of the policy, frozen ones too."""
        return list(self.ready_policy.parameters())

    def parameter_groups(self) -> list[ParameterGroup]:
        """What is trained, by learning rate; the policy first."""
        return [ParameterGroup(list(self.parameters()), self.optimizer_config.lr)]

    def configure_optimizers(self) -> Any:
        """AdamW and a per-step schedule."""
        optimizer = make_optimizer(self.parameter_groups(), self.optimizer_config)
        total = -1
        if self.schedule_config.needs_total:
            total = self.trainer.estimated_stepping_batches
            if total == float("inf"):
                raise self._endless_schedule()
        schedule = make_schedule(optimizer, self.schedule_config, int(total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def token_logprobs(self, batch: TokenBatch, temperature: float = 1.0, entropy: bool = False) -> TokenLogprobs:
        """The policy's log-probabilities of the batch's loss tokens."""
        return self.ready_policy(batch.input_ids, batch.loss_mask, temperature, entropy)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and full tensor of each weight, adapters merged in, one after the other; collective under sharding."""
        hf = self.ready_policy.hf
        return full_tensors(hf) if self.policy_config.lora is None else merged_tensors(hf)

    def named_adapter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and full tensor of each weight of the LoRA adapters; collective under sharding."""
        return adapter_tensors(self.ready_policy.hf)

    def exports_beside(self) -> Iterator[tuple[str, Any, Iterator[tuple[str, Tensor]]]]:
        """Models that are exported in a folder inside the policy's.

        Each is the folder's name, the ``transformers`` model without its weights, and name and full tensor of each
        weight; collective under sharding.
        """
        return iter(())

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Log the norm of the gradient before clipping, and the learning rate."""
        if not isinstance(self.trainer.strategy, DeepSpeedStrategy):
            self.log(f"{self.metric_prefix}/grad_norm", grad_norm(self.policy_parameters))
        self.log(f"{self.metric_prefix}/lr", self.trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, outputs: Any, batch: TokenBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Log the metrics of a window when it is whole, so that they do not depend on its cut."""
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0:
            for name, value in self.window_metrics.pop().items():
                self.log(name, value, prog_bar=name == f"{self.metric_prefix}/loss")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the policy is; frozen weights are left out where the strategy writes one file."""
        checkpoint["policy"] = {"facts": self._facts(), "path": self.policy_config.path}
        if self._saves_adapters_only:
            frozen = self._frozen_names()
            state = checkpoint["state_dict"]
            checkpoint["state_dict"] = {name: value for name, value in state.items() if name not in frozen}

    def _facts(self) -> dict[str, Any]:
        policy = self.ready_policy
        facts = model_facts(policy.config)
        if self.policy_config.lora is not None:
            facts |= {"adapter": adapter_facts(policy.hf), "base weights": policy.base_digest}
        return facts

    @property
    def _saves_adapters_only(self) -> bool:
        one_file = isinstance(self.trainer.strategy, SingleDeviceStrategy | DDPStrategy)
        sharded = isinstance(self.trainer.strategy, DeepSpeedStrategy)
        return self.policy_config.lora is not None and one_file and not sharded

    def _frozen_names(self) -> set[str]:
        """State-dict entries of the frozen model, quantisation states among them."""
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name for name in self.state_dict() if name.startswith("policy.") and name not in trained}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another model.

        Raises:
            CheckpointError: names the settings that differ.
        """
        _refuse_other_model(checkpoint.get("policy", {}).get("facts", {}), self._facts())
        if self._saves_adapters_only:
            # Without the quantisation states, which the weights have taken in already; tied weights under each name.
            parameters = self.named_parameters(remove_duplicate=False)
            own = {**dict(parameters), **dict(self.named_buffers(remove_duplicate=False))}
            checkpoint["state_dict"] |= {name: own[name] for name in self._frozen_names() & own.keys()}


def grad_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of the whole gradient; collective under FSDP2."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def _refuse_other_model(saved: dict[str, Any], now: dict[str, Any]) -> None:
    differing = sorted(key for key in saved.keys() | now.keys() if saved.get(key) != now.get(key))
    if not saved or not differing:
        return
    key, more = differing[0], len(differing) - 1
    raise CheckpointError(
        f"the model changed since the checkpoint was written: {key} was {saved.get(key)}, now it is {now.get(key)}"
        + (f" (and {more} more settings differ)" if more else "")
        + "; resume with the model that the run began with, or start a new run in another trainer.default_root_dir"
    )
