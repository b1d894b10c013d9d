"""What an advantage estimator gets and gives."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.functional.advantages.credit import discounted_returns, token_rewards_with_outcome


@dataclass(frozen=True)
class AdvantageInputs:
    """A whole iteration, all ranks together. What stands where ``response_mask`` is false changes nothing.

    Args:
        rewards: ``[rows]`` float, of whole answers; NaN where a row could not be scored.
        group_ids: ``[rows]`` integer; the rows of one group are the samples of one prompt. Any order.
        response_mask: ``[rows, tokens]``, true on the tokens that the policy wrote.
        token_rewards: ``[rows, tokens]`` rewards of single tokens beside those of the rows (a KL penalty, say), or
            ``None``.
        values: ``[rows, tokens]`` of a critic: what it expects from each token on, before it is written; or ``None``.
        baselines: ``[rows]`` reward of the greedy answer to the row's prompt, NaN where there is none; or ``None``.
    """

    rewards: Tensor
    group_ids: Tensor
    response_mask: Tensor
    token_rewards: Tensor | None = None
    values: Tensor | None = None
    baselines: Tensor | None = None


@dataclass(frozen=True)
class AdvantageOutput:
    """What an advantage estimator gives.

    Args:
        advantages: ``[rows, tokens]``, 0 where the response mask is false, and on rows without a score.
        returns: ``[rows, tokens]``, what a critic learns; ``None`` from estimators without one.
    """

    advantages: Tensor
    returns: Tensor | None = None


class AdvantageEstimator(ABC):
    """Says how much better each token was than expected. Chosen in YAML by ``class_path``.

    Attributes:
        needs_values: it needs a critic.
        needs_greedy_baseline: it needs the reward of a greedy answer to each prompt.
        needs_groups: it compares the samples of a prompt, so a group whose members all got the same reward (or that
            has a single scored one) teaches nothing.
    """

    needs_values: bool = False
    needs_greedy_baseline: bool = False
    needs_groups: bool = False

    @abstractmethod
    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutput:
        """Compute the advantages of a whole iteration, all ranks together."""

    def formula(self, penalty: str = "") -> str:  # noqa: ARG002
        """The advantage of token t in words that ``roll-lightning explain`` prints, its numbers filled in.

        ``r_i`` is the row's reward. A class that does not say is named.

        Args:
            penalty: what is taken from the reward of each token k, a KL penalty say; empty for nothing.
        """
        return f"{type(self).__name__}(rewards)"

    def zero_variance(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """``[rows]`` bool: rows of groups that teach nothing; none of them where groups are not compared."""
        if not self.needs_groups:
            return torch.zeros_like(rewards, dtype=torch.bool)
        uniform, lone = uniform_groups(rewards, group_ids)
        if lone:
            warnings.warn(
                f"{lone} groups have a single scored rollout: there is nothing to compare it with, so its advantage "
                f"is 0",
                stacklevel=2,
            )
        return uniform

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from iteration to iteration, as tensors and primitives."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take up what :meth:`state_dict` gave."""


class OutcomeEstimator(AdvantageEstimator):
    """Turns the reward of each row into one number, and gives each token its discounted return.

    ``A_t = Σ_{k ≥ t} γ^{k-t} (r_k + [k is last] x)`` over the row's own tokens, ``x`` the row's number and ``r_k`` the
    rewards of single tokens. With γ = 1 and no token rewards each token gets ``x``.

    Args:
        gamma: discount per token, in (0, 1].

    Raises:
        ConfigError: it is out of range.
    """

    def __init__(self, gamma: float = 1.0) -> None:
        self.gamma = check_share(type(self).__name__, "gamma", gamma)

    @abstractmethod
    def outcomes(self, inputs: AdvantageInputs) -> Tensor:
        """``[rows]`` float64 numbers, 0 for rows without a score."""

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutput:
        """Compute the advantages; see :class:`AdvantageEstimator`.

        Raises:
            RewardError: a reward is infinite.
        """
        check_rewards(inputs.rewards)
        rewards = token_rewards_with_outcome(self.outcomes(inputs), inputs.response_mask, inputs.token_rewards)
        returns = self.returns(rewards, inputs.response_mask)
        scored = ~inputs.rewards.isnan()
        return AdvantageOutput(torch.where(scored[:, None], returns, 0.0).to(inputs.rewards.dtype))

    def returns(self, rewards: Tensor, mask: Tensor) -> Tensor:
        """From rewards of tokens ``[rows, tokens]`` to what each token gets."""
        return discounted_returns(rewards, mask, self.gamma)

    def outcome_formula(self) -> str:
        """The row's number in words, ``x`` above; a class that does not say is named."""
        return f"{type(self).__name__}(r_i)"

    def formula(self, penalty: str = "") -> str:
        """See :class:`AdvantageEstimator`."""
        outcome = self.outcome_formula()
        if self.gamma == 1:
            return f"{outcome} - Σ_{{k≥t}} {penalty}" if penalty else outcome
        return f"Σ_{{k≥t}} {self.gamma:g}^(k-t) ({reward_at_end(outcome, penalty)})"


def uniform_groups(rewards: Tensor, group_ids: Tensor) -> tuple[Tensor, int]:
    """``[rows]`` bool, the rows of groups whose scored members all got the same reward; and how many have just one."""
    uniform = torch.zeros_like(rewards, dtype=torch.bool)
    lone = 0
    for group in group_ids.unique():
        members = group_ids == group
        values = rewards[members & ~rewards.isnan()]
        lone += len(values) == 1
        # Compared, not derived from the deviation: the mean of equal numbers may be off by a rounding.
        if bool((values == values[:1]).all()):
            uniform |= members
    return uniform, lone


def reward_at_end(outcome: str, penalty: str) -> str:
    """The reward of token k in words: the row's on its last token, less a penalty on each."""
    outcome = f"({outcome})" if " " in outcome else outcome
    return f"[k is last] {outcome}" + (f" - {penalty}" if penalty else "")


def check_rewards(rewards: Tensor) -> None:
    """Refuse infinite rewards; NaN means "could not score".

    Raises:
        RewardError: names the row.
    """
    if rewards.isinf().any():
        row = int(rewards.isinf().nonzero()[0])
        raise RewardError(f"the reward of row {row} is {float(rewards[row])}; a reward must be finite")


def check_share(owner: str, name: str, value: float, zero: bool = False) -> float:
    """The value, which must lie in (0, 1], with ``zero`` in [0, 1].

    Raises:
        ConfigError: it does not.
    """
    if not (0 <= value <= 1 if zero else 0 < value <= 1):
        raise ConfigError(f"{owner}.{name} is {value}; it must be {'0 to' if zero else 'above 0 and at most'} 1")
    return value
