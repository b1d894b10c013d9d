"""From scored rollouts to tensors to train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from roll_lightning.data.experience import Experience
from roll_lightning.data.types import Rollout
from roll_lightning.functional.advantages import AdvantageEstimator, AdvantageInputs, AdvantageShaping
from roll_lightning.functional.kl import kl_estimate
from roll_lightning.functional.kl_controller import KLController
from roll_lightning.functional.off_policy import OffPolicyCorrection
from roll_lightning.functional.sample_masks import SampleFacts, SampleSelection
from roll_lightning.functional.values import explained_variance
from roll_lightning.modules.kl_term import KLConfig


@dataclass
class ExperienceMaker:
    """The steps between rollouts and training, in their order.

    Which rows count, old and reference log-probabilities, rejection of what is too far off policy, advantages, weights.

    Args:
        advantage: from rewards to advantages.
        shaping: of rewards and advantages.
        kl: the KL penalty.
        off_policy: correction between engine and trainer.
        samples: masks and weights of whole samples.
        drop_zero_variance: whether groups that teach nothing leave the response mask.
    """

    advantage: AdvantageEstimator
    shaping: AdvantageShaping
    kl: KLConfig
    off_policy: OffPolicyCorrection
    samples: SampleSelection
    drop_zero_variance: bool
    kl_controller: KLController = field(init=False)

    def __post_init__(self) -> None:
        self.kl_controller = self.kl.controller()

    def needs_old_logprobs(self, updates: int) -> bool:
        """Whether the weights at the start must score the tokens beforehand.

        With a single update of an iteration the old log-probabilities are the first forward pass itself.
        """
        return updates > 1 or self.kl.placement == "reward" or self.kl.target is not None or bool(self.off_policy.masks)

    def start(self, rollouts: Sequence[Rollout], comparable: bool) -> Experience:
        """Tokens and a response mask from which all rows are gone that are not trained on.

        Args:
            rollouts: of all ranks.
            comparable: whether the engine's log-probabilities are of the whole, unfiltered distribution.
        """
        experience = Experience.from_rollouts(rollouts)
        if not comparable:
            experience.behaviour_logprobs = None
        rewards = _rewards(rollouts)
        uniform = self.advantage.zero_variance(rewards, _groups(rollouts))
        counts = ~(rewards.isnan() | (uniform & self.drop_zero_variance))
        facts = SampleFacts.from_rollouts(rollouts, self.samples.difficulty_column)
        selection = self.samples(facts, counts)
        experience.response_mask[~selection.keep] = False
        experience.metrics |= selection.metrics
        if self.samples.weights:
            weights = selection.weights.float()[:, None] * experience.response_mask
            experience.policy_weights = weights
        return experience

    def finish(self, experience: Experience, rollouts: Sequence[Rollout]) -> None:
        """Everything that needs old and reference log-probabilities and values, which must be there by now."""
        self._reject(experience)
        rewards, clipped = self.shaping.rewards(_rewards(rollouts))
        baselines = [math.nan if rollout.baseline is None else rollout.baseline for rollout in rollouts]
        inputs = AdvantageInputs(
            rewards,
            _groups(rollouts),
            experience.response_mask,
            token_rewards=self._kl_rewards(experience),
            values=experience.values,
            baselines=torch.tensor(baselines, dtype=torch.float64) if self.advantage.needs_greedy_baseline else None,
        )
        estimated = self.advantage(inputs)
        advantages, changed = self.shaping.advantages(estimated.advantages, experience.response_mask)
        experience.advantages = advantages.float()
        self._keep_returns(experience, estimated.returns)
        experience.metrics |= {"critic/reward_clip_frac": clipped, "critic/advantage_clip_frac": changed}
        self._adapt_kl(experience)

    def _keep_returns(self, experience: Experience, returns: Tensor | None) -> None:
        """What the critic learns, and how good it is before it does."""
        values, mask = experience.values, experience.response_mask
        if values is None or returns is None:
            return
        experience.returns = returns.float()
        experience.metrics["critic/explained_variance"] = explained_variance(values, experience.returns, mask)
        if mask.any():
            experience.metrics["critic/value"] = float(values[mask].mean())

    def _reject(self, experience: Experience) -> None:
        """Take out of the mask what is too far off policy, before windows are counted.

        Weights and metrics are taken here, too, since those of segments and rows need the whole mask.
        """
        old, behaviour, mask = experience.old_logprobs, experience.behaviour_logprobs, experience.response_mask
        if not self.off_policy.masks or old is None or behaviour is None:
            return
        found = self.off_policy(old, behaviour, mask)
        if mask.any():
            means = {name: float(found.metrics[name][mask].mean()) for name in self.off_policy.mean_names}
            largest = {name: float(found.metrics[name][mask].max()) for name in self.off_policy.max_names}
            experience.metrics |= means | largest
        if self.off_policy.weight is not None:
            others = 1.0 if experience.policy_weights is None else experience.policy_weights
            experience.policy_weights = found.weights * others
        experience.response_mask = mask & found.keep

    def _kl_rewards(self, experience: Experience) -> Tensor | None:
        """Minus the KL penalty of each token, for a KL in the reward."""
        old, reference = experience.old_logprobs, experience.ref_logprobs
        if self.kl.placement != "reward" or old is None or reference is None:
            return None
        penalty = kl_estimate(old, reference, self.kl.estimator, experience.response_mask)
        return -self.kl_controller.coefficient * penalty

    def _adapt_kl(self, experience: Experience) -> None:
        old, reference, mask = experience.old_logprobs, experience.ref_logprobs, experience.response_mask
        if reference is None:
            return
        experience.metrics["critic/kl_coef"] = self.kl_controller.coefficient
        if old is None or not mask.any():
            return
        difference = torch.where(mask, old - reference, 0.0)
        if self.kl.placement == "reward":
            experience.metrics["critic/kl"] = float(difference.sum() / mask.sum())
        responses = int(mask.any(1).sum())
        self.kl_controller.update(float(difference.sum()) / responses, responses)

    def state_dict(self) -> dict[str, Any]:
        """What estimator and KL controller remember from iteration to iteration."""
        return {"advantage": self.advantage.state_dict(), "kl": self.kl_controller.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state_dict` gave."""
        if state["advantage"]:
            self.advantage.load_state_dict(state["advantage"])
        self.kl_controller.load_state_dict(state["kl"])


def _rewards(rollouts: Sequence[Rollout]) -> Tensor:
    """``[rows]`` float64, NaN where a row could not be scored."""
    return torch.tensor([math.nan if r.reward is None else r.reward for r in rollouts], dtype=torch.float64)


def _groups(rollouts: Sequence[Rollout]) -> Tensor:
    return torch.tensor([rollout.group for rollout in rollouts])
