"""A policy with a critic beside it: loading, learning rates, gradient clipping, values and their loss."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from roll_lightning.data.batch import ExperienceBatch
from roll_lightning.data.experience import Experience
from roll_lightning.data.planner import Window
from roll_lightning.errors import ConfigError
from roll_lightning.functional.aggregation import aggregate
from roll_lightning.functional.values import value_loss
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.models.full_tensors import full_tensors
from roll_lightning.models.loading import PolicyConfig, check_policy, model_facts, plain_model
from roll_lightning.models.sharding import shard_model
from roll_lightning.models.value_model import CLASSIFIER, ValueModel, head_name, load_value_model, value_head
from roll_lightning.models.zero3 import hf_in_shards
from roll_lightning.modules.critic_config import CriticConfig
from roll_lightning.modules.experience import score_experience
from roll_lightning.modules.language import grad_norm
from roll_lightning.modules.optim import OptimizerConfig, ParameterGroup, ScheduleConfig
from roll_lightning.modules.rollout_module import RolloutModule
from roll_lightning.strategies.scale import data_parallel_size


class ActorCriticModule(RolloutModule):
    """Owns a critic, where one is asked for.

    Args:
        policy: model and tokenizer.
        optimizer: of the policy and, but for its learning rate, of the critic.
        schedule: of the learning rates.
        critic: ``None`` for algorithms without one.
    """

    def __init__(
        self,
        policy: PolicyConfig,
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(),  # noqa: B008
        critic: CriticConfig | None = None,
    ) -> None:
        super().__init__(policy, optimizer, schedule)
        self.critic_config = critic
        self.critic: ValueModel | None = None

    def setup(self, stage: str) -> None:
        """Find a wrong path of the critic before a model loads.

        Raises:
            ConfigError: there is no model.
        """
        super().setup(stage)
        config = self.critic_config
        if config is not None and not config.shared:
            check_policy(config.model(self.policy_config), "model.critic")

    def check_settings(self, stage: str) -> None:
        """Refuse what a critic cannot do.

        Raises:
            ConfigError: nothing is left for the policy after the critic's warm-up, or DeepSpeed would have to clip two
                gradients.
        """
        super().check_settings(stage)
        config = self.critic_config
        if config is None:
            return
        epochs = self.trainer.max_epochs
        if stage == "fit" and epochs is not None and 0 <= epochs <= config.warmup_iterations:
            raise ConfigError(
                f"model.critic.warmup_iterations {config.warmup_iterations} leaves nothing of trainer.max_epochs "
                f"{epochs} for the policy; lower it, or raise trainer.max_epochs"
            )
        own, joint = config.gradient_clip_val, self.trainer.gradient_clip_val
        if isinstance(self.trainer.strategy, DeepSpeedStrategy) and own is not None and own != joint:
            raise ConfigError(
                f"model.critic.gradient_clip_val is {own} and trainer.gradient_clip_val {joint}, but DeepSpeed clips "
                f"policy and critic by one joint norm; set both to the same value, or take another strategy"
            )

    def configure_model(self) -> None:
        """Load policy and critic, and shard them where the strategy wants that."""
        super().configure_model()
        config = self.critic_config
        if config is None or config.shared or self.critic is not None:
            return
        model = config.model(self.policy_config)
        with nullcontext() if model.from_scratch else hf_in_shards(self.trainer.strategy):
            critic = load_value_model(model, int(os.environ.get("PL_GLOBAL_SEED", 0)))
        rows = critic.config.get_text_config().vocab_size
        if len(self.tokenizer) > rows:
            raise ConfigError(
                f"the tokenizer has {len(self.tokenizer)} tokens, but the critic of {model.path} only {rows}; "
                f"model.critic.path must have the policy's vocabulary"
            )
        shard_model(critic, self)
        self.critic = critic

    def make_policy(self) -> CausalPolicy:
        """The policy gets the critic's head, if that is to share its body."""
        policy = super().make_policy()
        if self.critic_config is not None and self.critic_config.shared:
            policy.value_head = value_head(policy.config.get_text_config().hidden_size)
        return policy

    @property
    def critic_parameters(self) -> list[nn.Parameter]:
        """The critic's own; empty without one."""
        head = self.critic if self.critic is not None else self.ready_policy.value_head
        return [] if head is None else list(head.parameters())

    @property
    def policy_parameters(self) -> list[nn.Parameter]:
        """Of the policy without a critic's head."""
        critic = set(map(id, self.critic_parameters))
        return [parameter for parameter in super().policy_parameters if id(parameter) not in critic]

    @property
    def critic_warms_up(self) -> bool:
        """Whether the critic alone is trained in this iteration."""
        return self.critic_config is not None and self.trainer.current_epoch < self.critic_config.warmup_iterations

    def parameter_groups(self) -> list[ParameterGroup]:
        """The policy's, then the critic's with its own learning rate; during the critic's warm-up the policy waits."""
        if self.critic_config is None:
            return super().parameter_groups()
        delay = self.critic_config.warmup_iterations * self._data.windows_per_epoch()
        return [
            ParameterGroup(self.policy_parameters, self.optimizer_config.lr, delay),
            ParameterGroup(self.critic_parameters, self.critic_config.lr),
        ]

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log norm of the gradient and learning rate of both."""
        super().on_before_optimizer_step(optimizer)
        if self.critic_config is None:
            return
        if not isinstance(self.trainer.strategy, DeepSpeedStrategy):
            self.log("critic/grad_norm", grad_norm(self.critic_parameters))
        self.log("critic/lr", self.trainer.optimizers[0].param_groups[-1]["lr"])

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the policy's gradient as the trainer asks, the critic's by its own bound; DeepSpeed clips by itself."""
        if self.critic_config is None or isinstance(self.trainer.strategy, DeepSpeedStrategy):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        clip = nn.utils.clip_grad_value_ if gradient_clip_algorithm == "value" else nn.utils.clip_grad_norm_
        own = self.critic_config.gradient_clip_val
        bounds = ((self.policy_parameters, gradient_clip_val), (self.critic_parameters, own or gradient_clip_val))
        for parameters, bound in bounds:
            if bound:
                clip(parameters, bound)

    def experience_values(self, experience: Experience, windows: Sequence[Window]) -> Tensor:
        """What the critic says of each token, ``[rows, tokens]`` on the CPU of every rank; collective."""

        def score(batch: ExperienceBatch) -> Tensor:
            return self._values(batch, None if self.critic is not None else self.token_logprobs(batch).values)

        return score_experience(self.trainer, score, experience, windows)

    def _values(self, batch: ExperienceBatch, shared: Tensor | None) -> Tensor:
        if self.critic is not None:
            return self.critic(batch.input_ids, batch.loss_mask)
        assert shared is not None, "a policy with a value head gives values"
        return shared

    def value_share(self, batch: ExperienceBatch, shared: Tensor | None) -> Tensor:
        """This micro-batch's share of the value loss, a mean over the window's tokens, times its coefficient.

        Args:
            batch: with the values of the iteration's start, and returns.
            shared: ``[batch, tokens]`` values now, of a critic that shares the policy's body; one of its own is asked
                here.
        """
        config = self.critic_config
        assert config is not None, "without a critic nobody asks for its loss"
        assert batch.values is not None, "experience_values"
        assert batch.returns is not None, "the estimator gives them with values"
        values = self._values(batch, shared)
        loss = value_loss(values, batch.values, batch.returns, batch.loss_mask, config.value_clip)
        window = self.window_of(batch)
        share = aggregate(
            loss.per_token, batch.loss_mask, "token-mean", tokens=window.tokens, sequences=window.sequences
        )
        self.record_share("critic/loss", share, batch)
        record = self.window_metrics.update_masked
        record("critic/vpred", values, batch.loss_mask)
        record("critic/error", (values - batch.returns).square(), batch.loss_mask)
        record("critic/clipfrac", loss.clipped.float(), batch.loss_mask)
        return config.coefficient * share

    def record_share(self, name: str, share: Tensor, batch: ExperienceBatch) -> None:
        """Shares add up over the window, so each weighs one part of it."""
        parts = self.window_of(batch).micro_batches * data_parallel_size(self.trainer)
        self.window_metrics.update(name, share, 1 / parts)

    def exports_beside(self) -> Iterator[tuple[str, Any, Iterator[tuple[str, Tensor]]]]:
        """The critic as a token classifier with one label; one that shares the policy's body brings a copy of it."""
        if self.critic is not None:
            yield "critic", plain_model(self.critic.config, CLASSIFIER), full_tensors(self.critic.hf)
            return
        head = self.ready_policy.value_head
        if head is None:
            return
        config = copy.deepcopy(self.ready_policy.config)
        config.num_labels = 1
        model = plain_model(config, CLASSIFIER)
        body = (pair for pair in self.named_weights() if pair[0].startswith(f"{model.base_model_prefix}."))
        own = ((f"{head_name(model)}.{name}", value) for name, value in full_tensors(head))
        yield "critic", model, chain(body, own)

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts()
        if self.critic is not None:
            facts |= {f"critic {name}": value for name, value in model_facts(self.critic.config).items()}
        return facts
