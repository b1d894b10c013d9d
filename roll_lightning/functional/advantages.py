"""From rewards to advantages."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError, RewardError


@dataclass(frozen=True)
class AdvantageOutput:
    """What an advantage estimator gives.

    Args:
        advantages: ``[rows, tokens]``, 0 where the response mask is false.
        zero_variance: ``[rows]`` bool, true on the rows of a group whose scored members all got the same reward (or
            that has at most one): it teaches nothing.
    """

    advantages: Tensor
    zero_variance: Tensor


class AdvantageEstimator(ABC):
    """Says how much better each token was than expected. Chosen in YAML by ``class_path``."""

    @abstractmethod
    def __call__(self, rewards: Tensor, group_ids: Tensor, response_mask: Tensor) -> AdvantageOutput:
        """Compute the advantages of a whole iteration, all ranks together.

        Args:
            rewards: ``[rows]`` float; NaN where a row could not be scored.
            group_ids: ``[rows]`` integer; the rows of one group are the samples of one prompt. Any order.
            response_mask: ``[rows, tokens]``, true on the tokens that the policy wrote.
        """


class GroupRelative(AdvantageEstimator):
    """A row's reward against its group's (GRPO, arXiv 2402.03300), the same for all tokens of the row.

    ``A_i = (r_i - mean(r)) / (std(r) + eps)`` with the sample standard deviation (divided by n - 1). Without the
    division (``scale="none"``) hard and easy prompts weigh by their spread (Dr. GRPO, arXiv 2503.20783).

    A row without a score leaves the group's statistics and gets 0. A group whose scores are all equal gets exactly 0,
    and so does a group with a single score, with a warning that counts such groups.

    Args:
        scale: ``"std"`` divides by the group's standard deviation, ``"none"`` does not.
        eps: added to the standard deviation; 0 or more. Unused without scaling.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(self, scale: Literal["std", "none"] = "std", eps: float = 1e-6) -> None:
        if scale not in get_args(Literal["std", "none"]):
            raise ConfigError(f"GroupRelative.scale is {scale!r}; it must be std or none")
        if not eps >= 0:
            raise ConfigError(f"GroupRelative.eps is {eps}; it must be 0 or more")
        self.scale = scale
        self.eps = eps

    def __call__(self, rewards: Tensor, group_ids: Tensor, response_mask: Tensor) -> AdvantageOutput:
        """Compute the advantages; see :class:`AdvantageEstimator`.

        Raises:
            RewardError: a reward is infinite.
        """
        if rewards.isinf().any():
            row = int(rewards.isinf().nonzero()[0])
            raise RewardError(f"the reward of row {row} is {float(rewards[row])}; a reward must be finite")
        per_row = torch.zeros(len(rewards), dtype=torch.float64, device=rewards.device)
        zero_variance = torch.zeros(len(rewards), dtype=torch.bool, device=rewards.device)
        lone = 0
        for group in group_ids.unique():
            members = group_ids == group
            scored = members & ~rewards.isnan()
            values = rewards[scored].double()
            lone += len(values) == 1
            # Compared, not derived from the deviation: the mean of equal numbers may be off by a rounding.
            if bool((values == values[:1]).all()):
                zero_variance |= members
            else:
                per_row[scored] = self._relative(values)
        if lone:
            warnings.warn(
                f"{lone} groups have a single scored rollout: there is nothing to compare it with, "
                f"so its advantage is 0",
                stacklevel=2,
            )
        spread = torch.where(response_mask.bool(), per_row[:, None], 0.0)
        return AdvantageOutput(spread.to(rewards.dtype), zero_variance)

    def _relative(self, values: Tensor) -> Tensor:
        # Sums run over sorted values, so that the order of the rows cannot change even the last bit.
        ordered = values.sort().values
        centred = values - ordered.mean()
        return centred / (ordered.std(correction=1) + self.eps) if self.scale == "std" else centred
