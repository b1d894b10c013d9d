"""Returns without a group: REINFORCE and its relatives."""

from __future__ import annotations

from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages.base import AdvantageInputs, AdvantageOutput, OutcomeEstimator, reward_at_end
from roll_lightning.functional.advantages.credit import segment_returns
from roll_lightning.functional.advantages.shaping import masked_whiten


class Reinforce(OutcomeEstimator):
    """Discounted returns (Williams 1992), without a baseline.

    Args:
        gamma: discount per token, in (0, 1].
    """

    def outcomes(self, inputs: AdvantageInputs) -> Tensor:
        """The rewards themselves."""
        return inputs.rewards.double().nan_to_num(nan=0.0)

    def outcome_formula(self) -> str:
        """See :class:`OutcomeEstimator`."""
        return "r_i"


class ReinforcePlusPlus(Reinforce):
    """Discounted returns, whitened over all tokens of the batch (REINFORCE++, arXiv 2501.03262).

    The paper has a KL penalty in the reward beside it.

    Args:
        gamma: discount per token, in (0, 1].
    """

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutput:
        """Compute the advantages; see :class:`~roll_lightning.functional.advantages.base.AdvantageEstimator`."""
        plain = super().__call__(inputs)
        mask = inputs.response_mask.bool() & ~inputs.rewards.isnan()[:, None]
        return AdvantageOutput(masked_whiten(plain.advantages, mask))

    def formula(self, penalty: str = "") -> str:
        """See :class:`AdvantageEstimator`."""
        return f"whiten({super().formula(penalty)})"


class ReMax(Reinforce):
    """A row's reward less that of the greedy answer to its prompt (ReMax, arXiv 2310.10505).

    A row whose greedy answer could not be scored gets 0.

    Args:
        gamma: discount per token, in (0, 1].
    """

    needs_greedy_baseline = True

    def outcomes(self, inputs: AdvantageInputs) -> Tensor:
        """Rewards less their baselines."""
        if inputs.baselines is None:
            raise ConfigError("ReMax needs the reward of a greedy answer to each prompt, and the rollouts have none")
        return (inputs.rewards.double() - inputs.baselines.double()).nan_to_num(nan=0.0)

    def outcome_formula(self) -> str:
        """See :class:`OutcomeEstimator`."""
        return "r_i - r_greedy"


class SegmentReinforce(Reinforce):
    """Returns that are discounted from turn to turn; all tokens of a turn share one.

    For answers of several turns: ``G_s = r_s + γ G_{s+1}`` over the runs of the response mask.

    Args:
        gamma: discount per turn, in (0, 1].
    """

    def returns(self, rewards: Tensor, mask: Tensor) -> Tensor:
        """Returns of turns."""
        return segment_returns(rewards, mask, self.gamma)

    def formula(self, penalty: str = "") -> str:
        """See :class:`AdvantageEstimator`; k runs from the first token of t's turn, the discount over turns."""
        discount = "" if self.gamma == 1 else f"{self.gamma:g}^(turn(k)-turn(t)) "
        return f"Σ_{{turn(k)≥turn(t)}} {discount}({reward_at_end(self.outcome_formula(), penalty)})"
