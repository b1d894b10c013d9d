"""Leave-one-out baselines."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_lightning.functional.advantages.base import AdvantageInputs, OutcomeEstimator, uniform_groups


class LeaveOneOut(OutcomeEstimator):
    """A row's reward against the mean of the others of its group (RLOO, arXiv 2402.14740).

    ``x_i = r_i - mean_{j ≠ i}(r_j) = n / (n - 1) (r_i - mean(r))``: unbiased, since a row is not part of its own
    baseline. A group with a single score gets 0.

    Args:
        gamma: discount per token, in (0, 1].
    """

    needs_groups = True

    def outcome_formula(self) -> str:
        """See :class:`OutcomeEstimator`."""
        return "r_i - mean_others"

    def outcomes(self, inputs: AdvantageInputs) -> Tensor:
        """Rewards less the mean of the others."""
        rewards = inputs.rewards.double()
        uniform, _ = uniform_groups(rewards, inputs.group_ids)
        result = torch.zeros_like(rewards)
        for group in inputs.group_ids.unique():
            members = (inputs.group_ids == group) & ~rewards.isnan() & ~uniform
            values = rewards[members]
            if len(values):
                result[members] = (values - values.sort().values.mean()) * len(values) / (len(values) - 1)
        return result
