"""Generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutput,
    check_rewards,
    check_share,
    reward_at_end,
)
from roll_lightning.functional.advantages.credit import token_rewards_with_outcome


class GAE(AdvantageEstimator):
    """Temporal differences of a critic, summed with decay (arXiv 1506.02438).

    ``δ_t = r_t + γ V_{t+1} - V_t`` and ``A_t = Σ_{k ≥ t} (γλ)^{k-t} δ_k`` over the row's own tokens; after its last one
    V is 0, whatever the critic says about padding. The critic learns ``A_t + V_t``.

    Args:
        gamma: discount per token, in (0, 1].
        lam: decay of the differences, in [0, 1]: 0 trusts the critic, 1 the rewards.

    Raises:
        ConfigError: an argument is out of range.
    """

    needs_values = True

    def __init__(self, gamma: float = 1.0, lam: float = 0.95) -> None:
        self.gamma = check_share("GAE", "gamma", gamma)
        self.lam = check_share("GAE", "lam", lam, zero=True)

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutput:
        """Compute advantages and returns; see :class:`AdvantageEstimator`.

        Raises:
            ConfigError: there are no values.
            RewardError: a reward is infinite.
        """
        if inputs.values is None:
            raise ConfigError("GAE needs a critic: set model.critic, or choose an estimator without one")
        check_rewards(inputs.rewards)
        scored = ~inputs.rewards.isnan()
        outcomes = torch.where(scored, inputs.rewards, 0.0).double()
        mask = inputs.response_mask.bool() & scored[:, None]
        values = torch.where(mask, inputs.values.double(), 0.0)
        rewards = token_rewards_with_outcome(outcomes, mask, inputs.token_rewards)
        advantages = self._advantages(rewards, values, mask)
        returns = torch.where(mask, advantages + values, 0.0)
        dtype = inputs.rewards.dtype
        return AdvantageOutput(advantages.to(dtype), returns.to(dtype))

    def formula(self, penalty: str = "") -> str:
        """See :class:`AdvantageEstimator`; ``V_old(k+1)`` is 0 after the last token."""
        following = "V_old(k+1)" if self.gamma == 1 else f"{self.gamma:g} V_old(k+1)"
        difference = f"({reward_at_end('r_i', penalty)} + {following} - V_old(k))"
        return f"Σ_{{k≥t}} {self.gamma * self.lam:g}^(k-t) {difference}"

    def _advantages(self, rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        advantages = torch.zeros_like(rewards)
        next_value = torch.zeros_like(rewards[:, 0])
        following = torch.zeros_like(next_value)
        for place in reversed(range(rewards.shape[1])):
            here, value = mask[:, place], values[:, place]
            difference = rewards[:, place] + self.gamma * next_value - value
            following = torch.where(here, difference + self.gamma * self.lam * following, following)
            next_value = torch.where(here, value, next_value)
            advantages[:, place] = torch.where(here, following, 0.0)
        return advantages
