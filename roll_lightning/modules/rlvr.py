"""Reinforcement learning on verifiable rewards: GRPO and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from roll_lightning.collectors.base import RolloutTask
from roll_lightning.data.batch import ExperienceBatch, PromptBatch
from roll_lightning.data.experience import Experience
from roll_lightning.data.planner import Window
from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageShaping,
    GroupRelative,
)
from roll_lightning.functional.aggregation import AggregationMode, aggregate, check_aggregation
from roll_lightning.functional.kl import KLKind, kl_estimate
from roll_lightning.functional.policy_losses import PolicyLoss, PPOClip
from roll_lightning.metrics.validation import ValidationMetrics
from roll_lightning.metrics.weighted import WeightedMeans
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.models.loading import PolicyConfig, max_positions
from roll_lightning.models.lora import adapter_off
from roll_lightning.models.modes import eval_mode
from roll_lightning.models.sharding import is_zero3, shard_policy
from roll_lightning.models.zero3 import start_zero3_inference
from roll_lightning.modules.experience import experience_logprobs
from roll_lightning.modules.language import LanguageModule
from roll_lightning.modules.optim import OptimizerConfig, ScheduleConfig
from roll_lightning.strategies.scale import data_parallel_size


@dataclass(frozen=True)
class KLConfig:
    """How far the policy may go from its reference.

    Args:
        placement: ``none``: no reference is loaded; ``loss``: the estimate is added to each token's loss; ``reward``:
            it is taken from each token's reward, before advantages.
        estimator: k1, k2 or k3; see :func:`roll_lightning.functional.kl.kl_estimate` for which gradient each gives.
        coefficient: weight of the term.
    """

    placement: Literal["none", "loss", "reward"] = "none"
    estimator: KLKind = "k2"
    coefficient: float = 0.001

    def __post_init__(self) -> None:
        if self.placement not in ("none", "loss", "reward"):
            raise ConfigError(f"model.kl.placement is {self.placement!r}; it must be none, loss or reward")
        if self.coefficient < 0:
            raise ConfigError(f"model.kl.coefficient is {self.coefficient}; it must be 0 or more")


class RLVRModule(LanguageModule):
    """A policy that learns from scored rollouts.

    Args:
        policy: model and tokenizer.
        optimizer: of the policy.
        schedule: of the learning rate, over optimizer steps.
        advantage: from rewards to advantages; default :class:`GroupRelative`, which makes this GRPO.
        shaping: clipping and whitening of rewards and advantages.
        policy_loss: default :class:`PPOClip`.
        kl: against the reference.
        reference: the reference model; ``None`` takes the policy's own start, with LoRA the policy with its adapter
            turned off (which is not the start if that was an adapter, too: to stay near an adapter, name it here).
        aggregation: how token losses become one number.
        drop_zero_variance: leave out groups whose rewards are all equal, from the loss and from its denominators;
            otherwise they count, with advantage 0.
    """

    dropout = False

    def __init__(
        self,
        policy: PolicyConfig,
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(),  # noqa: B008
        advantage: AdvantageEstimator | None = None,
        shaping: AdvantageShaping = AdvantageShaping(),  # noqa: B008
        policy_loss: PolicyLoss | None = None,
        kl: KLConfig = KLConfig(),
        reference: PolicyConfig | None = None,
        aggregation: AggregationMode = "token-mean",
        drop_zero_variance: bool = True,
    ) -> None:
        super().__init__(policy, optimizer, schedule)
        check_aggregation(aggregation, 1 if aggregation == "seq-mean-token-sum-norm" else None)
        if reference is not None and kl.placement == "none":
            raise ConfigError(
                "model.reference is set, but model.kl.placement is none; set it to loss or reward, or drop it"
            )
        self.advantage = advantage or GroupRelative()
        if self.advantage.needs_values:
            raise ConfigError(
                f"model.advantage {type(self.advantage).__name__} needs a critic, which RLVRModule does not have; "
                f"choose an estimator without one"
            )
        self.shaping = shaping
        self.policy_loss = policy_loss or PPOClip()
        self.kl = kl
        self.reference_config = reference
        self.aggregation: AggregationMode = aggregation
        self.drop_zero_variance = drop_zero_variance
        # In tuples, so that they are no submodules: never in state_dict, optimizer or engine, never in train mode.
        self._reference: tuple[CausalPolicy, ...] = ()
        self._reference_engine: tuple[Any, ...] = ()

    def setup(self, stage: str) -> None:
        """Find wrong paths, and prompts that leave no room for an answer, before a model loads.

        Raises:
            ConfigError: the model has too few positions.
        """
        super().setup(stage)
        if stage == "fit" and self.advantage.needs_groups and self._rollout.num_generations < 2:
            raise ConfigError(
                f"rollout.num_generations is {self._rollout.num_generations}; {type(self.advantage).__name__} compares "
                f"the answers to a prompt, and a group of one has no advantage: set it to 2 or more"
            )
        positions, new = max_positions(self.policy_config), self._rollout.max_new_tokens
        prompts = [*self._data.train_prompts, *self._data.val_prompts, *self._data.predict_prompts]
        longest = max(prompts, key=lambda prompt: len(prompt.token_ids), default=None)
        if positions is None or longest is None or len(longest.token_ids) + new <= positions:
            return
        length = len(longest.token_ids)
        raise ConfigError(
            f"the prompt {longest.id!r} of {length} tokens and rollout.max_new_tokens {new} make {length + new}, but "
            f"the model of {self.policy_config.path} has {positions} positions; shorten the prompts "
            f"(data.max_prompt_length with data.overlong drop)"
            + (f", or set rollout.max_new_tokens to {positions - length} or less" if length < positions else "")
        )

    def configure_model(self) -> None:
        """Load the policy and, for a KL term, the reference."""
        super().configure_model()
        if self.kl.placement != "none" and not self._adapter_off_is_reference and not self._reference:
            reference = self.load_policy(self.reference_config or self.policy_config)
            shard_policy(reference, self)
            self._reference = (reference.requires_grad_(False).eval(),)

    def on_fit_start(self) -> None:
        """The trainer moves and shards submodules only."""
        super().on_fit_start()
        for reference in self._reference:
            if is_zero3(self.trainer.strategy):
                self._reference_engine = (start_zero3_inference(reference, self.trainer.strategy),)
            else:
                reference.to(self.device)

    def teardown(self, stage: str) -> None:  # noqa: ARG002
        """Let go of the reference's DeepSpeed engine."""
        for engine in self._reference_engine:
            engine.destroy()
        self._reference_engine = ()

    def make_window_metrics(self) -> WeightedMeans:
        """Losses and ratios under ROLL's names."""
        means = ["actor/pg_loss", "actor/kl_loss", "actor/total_loss", "critic/entropy/mean", "critic/kl"]
        means += ["actor/ratio_mean", "actor/train_infer_ratio_token_mean"]
        means += [f"actor/{name}" for name in self.policy_loss.metric_names if name != "ratio"]
        return WeightedMeans(means, ["actor/ratio_max", "actor/train_infer_ratio_token_max"], ["actor/ratio_min"])

    def make_experience(self, rollouts: Sequence[Rollout], iteration: int) -> Experience:
        """From the rollouts of all ranks to tensors to train on; collective.

        The mask is final before anything is planned: rows that could not be scored leave it, and so do groups that
        teach nothing. Old and reference log-probabilities are then computed with the micro-batches of the first pass,
        so that the first ratio is 1 exactly.
        """
        experience = Experience.from_rollouts(rollouts)
        rewards, clipped = self.shaping.rewards(_rewards(rollouts))
        groups = torch.tensor([rollout.group for rollout in rollouts])
        uniform = self.advantage.zero_variance(rewards, groups)
        experience.response_mask[rewards.isnan() | (uniform & self.drop_zero_variance)] = False
        rollout = self._rollout
        if rollout.top_p < 1 or rollout.top_k > 0:
            experience.behaviour_logprobs = None
        windows = self._first_pass(experience, iteration)
        if self._data.windows_per_epoch() > 1 or self.kl.placement == "reward":
            experience.old_logprobs = experience_logprobs(
                self.trainer, self.ready_policy, experience, windows, rollout.temperature
            )
        if self.kl.placement != "none":
            experience.ref_logprobs = self._reference_logprobs(experience, windows)
        self._set_advantages(experience, rewards, groups, rollouts)
        experience.metrics["critic/reward_clip_frac"] = clipped
        return experience

    @property
    def needs_greedy_baseline(self) -> bool:
        """Whether each prompt is to be answered greedily as well."""
        return self.advantage.needs_greedy_baseline

    def _set_advantages(
        self, experience: Experience, rewards: Tensor, groups: Tensor, rollouts: Sequence[Rollout]
    ) -> None:
        baselines = [float("nan") if r.baseline is None else r.baseline for r in rollouts]
        inputs = AdvantageInputs(
            rewards,
            groups,
            experience.response_mask,
            token_rewards=self._kl_rewards(experience),
            baselines=torch.tensor(baselines, dtype=torch.float64) if self.needs_greedy_baseline else None,
        )
        estimate = self.advantage(inputs)
        advantages, clipped = self.shaping.advantages(estimate.advantages, experience.response_mask)
        experience.advantages = advantages.float()
        experience.metrics["critic/advantage_clip_frac"] = clipped

    def _kl_rewards(self, experience: Experience) -> Tensor | None:
        """Minus the KL penalty of each token, for a KL in the reward."""
        if self.kl.placement != "reward":
            return None
        old, reference, mask = experience.old_logprobs, experience.ref_logprobs, experience.response_mask
        assert old is not None, "a KL in the reward computes them"
        assert reference is not None, "a KL in the reward computes them"
        penalty = kl_estimate(old, reference, self.kl.estimator, mask)
        experience.metrics["critic/kl"] = float((old - reference)[mask].mean()) if mask.any() else 0.0
        return -self.kl.coefficient * penalty

    @property
    def _adapter_off_is_reference(self) -> bool:
        return self.policy_config.lora is not None and self.reference_config is None

    def _reference_logprobs(self, experience: Experience, windows: Sequence[Window]) -> Tensor:
        temperature = self._rollout.temperature
        if not self._adapter_off_is_reference:
            return experience_logprobs(self.trainer, self._reference[0], experience, windows, temperature)
        policy = self.ready_policy
        with eval_mode(policy), adapter_off(policy.hf):
            return experience_logprobs(self.trainer, policy, experience, windows, temperature)

    @property
    def _data(self) -> Any:
        return self.trainer.datamodule

    @property
    def _rollout(self) -> Any:
        return self._data.rollout

    def _first_pass(self, experience: Experience, iteration: int) -> list[Window]:
        windows = self._data.plan_experience(experience, iteration)
        return windows[: len(windows) // self._data.ppo_epochs]

    def training_step(self, batch: ExperienceBatch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """This micro-batch's share of the window loss."""
        now = self.token_logprobs(batch, self._rollout.temperature, entropy=True)
        old = now.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        policy = self.policy_loss(now.logprobs, old, batch.advantages, batch.loss_mask)
        total = pg_loss = self._share(policy.per_token, batch)
        if batch.ref_logprobs is not None and self.kl.placement == "loss":
            divergence = kl_estimate(now.logprobs, batch.ref_logprobs, self.kl.estimator, batch.loss_mask)
            kl_loss = self._share(divergence, batch)
            total = pg_loss + self.kl.coefficient * kl_loss
            self._record_share("actor/kl_loss", kl_loss, batch)
            self.window_metrics.update_masked("critic/kl", now.logprobs - batch.ref_logprobs, batch.loss_mask)
        self._record_share("actor/pg_loss", pg_loss, batch)
        self._record_share("actor/total_loss", total, batch)
        self._record_tokens(batch, old, policy.metrics, now.entropy)
        return self.scale_loss(total)

    def _share(self, per_token: Tensor, batch: ExperienceBatch) -> Tensor:
        window = self.window_of(batch)
        norm = float(self._rollout.max_new_tokens) if self.aggregation == "seq-mean-token-sum-norm" else None
        return aggregate(
            per_token,
            batch.loss_mask,
            self.aggregation,
            tokens=window.tokens,
            sequences=window.sequences,
            norm_length=norm,
        )

    def _record_share(self, name: str, share: Tensor, batch: ExperienceBatch) -> None:
        """Shares add up over the window, so each weighs one part of it."""
        parts = self.window_of(batch).micro_batches * data_parallel_size(self.trainer)
        self.window_metrics.update(name, share, 1 / parts)

    def _record_tokens(
        self, batch: ExperienceBatch, old: Tensor, metrics: dict[str, Tensor], entropy: Tensor | None
    ) -> None:
        record, mask = self.window_metrics.update_masked, batch.loss_mask
        for name, values in metrics.items():
            if name == "ratio":
                for kind in ("mean", "max", "min"):
                    record(f"actor/ratio_{kind}", values, mask)
            else:
                record(f"actor/{name}", values, mask)
        if entropy is not None:
            record("critic/entropy/mean", entropy, mask)
        if batch.behaviour_logprobs is not None:
            ratio = torch.where(mask, old - batch.behaviour_logprobs, 0).clamp(-20, 20).exp()
            record("actor/train_infer_ratio_token_mean", ratio, mask)
            record("actor/train_infer_ratio_token_max", ratio, mask)

    def on_validation_start(self) -> None:
        """Begin new means."""
        self.val_metrics = ValidationMetrics(
            self._rollout.validation.num_samples, sorted({prompt.domain for prompt in self._data.val_prompts})
        ).to(self.device)

    def validation_step(self, batch: PromptBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Score greedy and sampled answers to this rank's held-out prompts."""
        asked = self._rollout.validation
        if asked.greedy:
            self.val_metrics.add_greedy(self._answer(batch, 1, greedy=True))
        if asked.num_samples:
            self.val_metrics.add_sampled(self._answer(batch, asked.num_samples))

    def _answer(self, batch: PromptBatch, samples: int, greedy: bool = False) -> list[Rollout]:
        tasks = [RolloutTask(prompt, group, samples, greedy) for group, prompt in enumerate(batch.prompts)]
        return self._rollout.collect(self.trainer, tasks, 0, "validate")

    def on_validation_epoch_end(self) -> None:
        """Log the share of correct answers over all ranks."""
        values = self.val_metrics.pop()
        for name, value in values.items():
            self.log(name, value, prog_bar=name in ("val_correct/greedy/mean", "val_correct/sampled/mean"))

    on_test_start = on_validation_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: PromptBatch, batch_idx: int) -> list[Rollout]:  # noqa: ARG002
        """Scored rollouts of this rank's prompts."""
        samples = self._rollout.num_generations
        tasks = [RolloutTask(prompt, group, samples) for group, prompt in enumerate(batch.prompts)]
        return self._rollout.collect(self.trainer, tasks, 0, "predict")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the advantage estimator remembers."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["advantage"] = self.advantage.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what the advantage estimator remembers."""
        super().on_load_checkpoint(checkpoint)
        if checkpoint.get("advantage"):
            self.advantage.load_state_dict(checkpoint["advantage"])


def _rewards(rollouts: Sequence[Rollout]) -> Tensor:
    """``[rows]`` float64, NaN where a row could not be scored."""
    return torch.tensor([float("nan") if r.reward is None else r.reward for r in rollouts], dtype=torch.float64)
