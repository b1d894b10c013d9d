"""Reinforcement learning on verifiable rewards: GRPO and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from roll_lightning.data.batch import ExperienceBatch
from roll_lightning.data.experience import Experience
from roll_lightning.data.planner import Window
from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages import AdvantageEstimator, AdvantageShaping, GroupRelative
from roll_lightning.functional.aggregation import AggregationMode, aggregate, check_aggregation
from roll_lightning.functional.kl import kl_estimate
from roll_lightning.functional.kl_controller import AdaptiveKL
from roll_lightning.functional.off_policy import OffPolicyCorrection
from roll_lightning.functional.policy_losses import PolicyLoss, PPOClip
from roll_lightning.functional.sample_masks import SampleSelection
from roll_lightning.metrics.weighted import WeightedMeans
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.models.loading import PolicyConfig, max_positions
from roll_lightning.models.lora import adapter_off
from roll_lightning.models.modes import eval_mode
from roll_lightning.models.sharding import is_zero3, shard_model
from roll_lightning.models.zero3 import start_zero3_inference
from roll_lightning.modules.actor_critic import ActorCriticModule
from roll_lightning.modules.critic_config import CriticConfig
from roll_lightning.modules.experience import experience_logprobs
from roll_lightning.modules.experience_maker import ExperienceMaker
from roll_lightning.modules.kl_term import KLConfig
from roll_lightning.modules.optim import OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from roll_lightning.explain.text import Section


class RLVRModule(ActorCriticModule):
    """A policy that learns from scored rollouts.

    Args:
        policy: model and tokenizer.
        optimizer: of the policy.
        schedule: of the learning rate, over optimizer steps.
        advantage: from rewards to advantages; default :class:`GroupRelative`, which makes this GRPO.
        shaping: clipping and whitening of rewards and advantages.
        policy_loss: default :class:`PPOClip`.
        critic: for advantages that need values, GAE's; ``None`` for all others.
        kl: against the reference.
        reference: the reference model; ``None`` takes the policy's own start, with LoRA the policy with its adapter
            turned off (which is not the start if that was an adapter, too: to stay near an adapter, name it here).
        aggregation: how token losses become one number.
        drop_zero_variance: leave out groups whose rewards are all equal, from the loss and from its denominators;
            otherwise they count, with advantage 0.
        off_policy: correction between the engine's log-probabilities and the trainer's; the default only watches.
        samples: masks and weights of whole samples.
        entropy_coefficient: weight of the entropy, which is subtracted from the loss.
        positive_nll_coefficient: weight of the negative log-likelihood of tokens with a positive advantage.
    """

    def __init__(
        self,
        policy: PolicyConfig,
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(),  # noqa: B008
        advantage: AdvantageEstimator | None = None,
        shaping: AdvantageShaping = AdvantageShaping(),  # noqa: B008
        policy_loss: PolicyLoss | None = None,
        critic: CriticConfig | None = None,
        kl: KLConfig = KLConfig(),  # noqa: B008
        reference: PolicyConfig | None = None,
        aggregation: AggregationMode = "token-mean",
        drop_zero_variance: bool = True,
        off_policy: OffPolicyCorrection = OffPolicyCorrection(),  # noqa: B008
        samples: SampleSelection = SampleSelection(),  # noqa: B008
        entropy_coefficient: float = 0.0,
        positive_nll_coefficient: float = 0.0,
    ) -> None:
        super().__init__(policy, optimizer, schedule, critic)
        check_aggregation(aggregation, 1 if aggregation == "seq-mean-token-sum-norm" else None)
        if reference is not None and kl.placement == "none":
            raise ConfigError(
                "model.reference is set, but model.kl.placement is none; set it to loss or reward, or drop it"
            )
        self.advantage = advantage or GroupRelative()
        if self.advantage.needs_values and critic is None:
            raise ConfigError(
                f"model.advantage {type(self.advantage).__name__} needs a critic; set model.critic, e.g. "
                f"--model.critic.lr 1e-5, or choose an estimator without one"
            )
        if critic is not None and not self.advantage.needs_values:
            raise ConfigError(
                f"model.critic is set, but model.advantage {type(self.advantage).__name__} has no use for its values; "
                f"choose GAE, or drop the critic"
            )
        self.policy_loss = policy_loss or PPOClip()
        self.kl = kl
        self.reference_config = reference
        self.aggregation: AggregationMode = aggregation
        self.off_policy = off_policy
        self.entropy_coefficient = entropy_coefficient
        self.positive_nll_coefficient = positive_nll_coefficient
        self.maker = ExperienceMaker(self.advantage, shaping, kl, off_policy, samples, drop_zero_variance)
        # In tuples, so that they are no submodules: never in state_dict, optimizer or engine, never in train mode.
        self._reference: tuple[CausalPolicy, ...] = ()
        self._reference_engine: tuple[Any, ...] = ()

    def setup(self, stage: str) -> None:
        """Find wrong paths, and prompts that leave no room for an answer, before a model loads.

        Raises:
            ConfigError: the model has too few positions.
        """
        super().setup(stage)
        self._check_positions()

    def check_settings(self, stage: str) -> None:
        """Find settings that contradict each other, with neither model nor data at hand.

        Raises:
            ConfigError: two do; says what to set.
        """
        super().check_settings(stage)
        if stage == "fit" and self.advantage.needs_groups and self._rollout.num_generations < 2:
            raise ConfigError(
                f"rollout.num_generations is {self._rollout.num_generations}; {type(self.advantage).__name__} compares "
                f"the answers to a prompt, and a group of one has no advantage: set it to 2 or more"
            )
        controller = self.maker.kl_controller
        if isinstance(controller, AdaptiveKL):
            controller.check_samples(self._rollout.prompts_per_iteration * self._rollout.num_generations)
        if not self._comparable and (self.off_policy.weight is not None or self.off_policy.masks):
            raise ConfigError(
                "model.off_policy corrects by log-probabilities, but with rollout.top_p or rollout.top_k the engine's "
                "are of a filtered distribution; set top_p to 1 and top_k to 0, or leave the correction out"
            )

    def _check_positions(self) -> None:
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

    def explanation(self) -> list[Section]:
        """What ``roll-lightning explain`` says."""
        from roll_lightning.explain.rlvr import explain_rlvr

        return explain_rlvr(self)

    def configure_model(self) -> None:
        """Load the policy and, for a KL term, the reference."""
        super().configure_model()
        if self.kl.placement != "none" and not self._adapter_off_is_reference and not self._reference:
            reference = self.load_policy(self.reference_config or self.policy_config)
            shard_model(reference, self)
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
        means += ["actor/ratio_mean", "actor/positive_nll_loss", *self._off_policy_means]
        means += [f"actor/{name}" for name in self.policy_loss.metric_names if name != "ratio"]
        if self.critic_config is not None:
            means += ["critic/loss", "critic/vpred", "critic/error", "critic/clipfrac"]
        return WeightedMeans(means, ["actor/ratio_max", *self.off_policy.max_names], ["actor/ratio_min"])

    @property
    def _off_policy_means(self) -> list[str]:
        """Those of single steps: what rejection masks see is known before, and logged with the rollouts."""
        return [] if self.off_policy.masks else [n for n in self.off_policy.mean_names if "mask_mean" not in n]

    def make_experience(self, rollouts: Sequence[Rollout], iteration: int) -> Experience:
        """From the rollouts of all ranks to tensors to train on; collective.

        The mask is final before anything is planned: rows that could not be scored leave it, and so do groups that
        teach nothing. Old and reference log-probabilities are then computed with the micro-batches of the first pass,
        so that the first ratio is 1 exactly.
        """
        experience = self.maker.start(rollouts, self._comparable)
        windows = self._first_pass(experience, iteration)
        if self.maker.needs_old_logprobs(self._data.windows_per_epoch()):
            experience.old_logprobs = experience_logprobs(
                self.trainer, self.ready_policy, experience, windows, self._rollout.temperature
            )
        if self.kl.placement != "none":
            experience.ref_logprobs = self._reference_logprobs(experience, windows)
        if self.critic_config is not None:
            experience.values = self.experience_values(experience, windows)
        self.maker.finish(experience, rollouts)
        return experience

    @property
    def _comparable(self) -> bool:
        """Whether engine and trainer give log-probabilities of the same distribution."""
        return bool(self._rollout.top_p == 1 and self._rollout.top_k == 0)

    @property
    def needs_greedy_baseline(self) -> bool:
        """Whether each prompt is to be answered greedily as well."""
        return self.advantage.needs_greedy_baseline

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

    def _first_pass(self, experience: Experience, iteration: int) -> list[Window]:
        windows = self._data.plan_experience(experience, iteration)
        return windows[: len(windows) // self._data.ppo_epochs]

    def training_step(self, batch: ExperienceBatch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """This micro-batch's share of the window loss."""
        self.ready_policy.values_reach_body = not self.critic_warms_up
        now = self.token_logprobs(batch, self._rollout.temperature, entropy=True)
        old = now.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        policy = self.policy_loss(now.logprobs, old, batch.advantages, batch.loss_mask)
        total = pg_loss = self._share(self._weighted(policy.per_token, batch, old), batch)
        if batch.ref_logprobs is not None and self.kl.placement == "loss":
            divergence = kl_estimate(now.logprobs, batch.ref_logprobs, self.kl.estimator, batch.loss_mask)
            kl_loss = self._share(divergence, batch)
            total = total + self.maker.kl_controller.coefficient * kl_loss
            self.record_share("actor/kl_loss", kl_loss, batch)
            self.window_metrics.update_masked("critic/kl", now.logprobs - batch.ref_logprobs, batch.loss_mask)
        if self.entropy_coefficient:
            assert now.entropy is not None, "it was asked for"
            total = total - self.entropy_coefficient * self._share(now.entropy, batch)
        if self.positive_nll_coefficient:
            nll = self._share(torch.where(batch.advantages > 0, -now.logprobs, 0.0), batch)
            total = total + self.positive_nll_coefficient * nll
            self.record_share("actor/positive_nll_loss", nll, batch)
        self.record_share("actor/pg_loss", pg_loss, batch)
        self.record_share("actor/total_loss", total, batch)
        if self.critic_config is not None:
            # With weight 0 instead of left out: DDP waits for the gradient of every parameter.
            total = (0.0 if self.critic_warms_up else 1.0) * total + self.value_share(batch, now.values)
        self._record_tokens(batch, old, policy.metrics, now.entropy)
        return self.scale_loss(total)

    def _weighted(self, per_token: Tensor, batch: ExperienceBatch, old: Tensor) -> Tensor:
        """The policy loss times the weights of samples and of off-policy tokens."""
        if batch.policy_weights is not None:
            per_token = per_token * batch.policy_weights
        # With rejection masks the weights are in those already: they need the mask as it was.
        weighs = self.off_policy.weight is not None and not self.off_policy.masks
        if weighs and batch.behaviour_logprobs is not None:
            per_token = per_token * self.off_policy(old, batch.behaviour_logprobs, batch.loss_mask).weights
        return per_token

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
        if batch.behaviour_logprobs is not None and not self.off_policy.masks:
            watched = self.off_policy(old, batch.behaviour_logprobs, mask).metrics
            for name in (*self._off_policy_means, *self.off_policy.max_names):
                record(name, watched[name], mask)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what estimator and KL controller remember."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["experience_maker"] = self.maker.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what estimator and KL controller remember."""
        super().on_load_checkpoint(checkpoint)
        if "experience_maker" in checkpoint:
            self.maker.load_state_dict(checkpoint["experience_maker"])
