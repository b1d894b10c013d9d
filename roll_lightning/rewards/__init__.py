"""What scores: plain callables over rollouts, one per file, and the pool that runs them with a deadline.

Importing this package makes the short class names known to YAML. It imports no torch: reward workers start fast.
"""

from roll_lightning.rewards.base import Reward, RewardFunction, RewardResult, reward_name
from roll_lightning.rewards.exact_match import ExactMatch
from roll_lightning.rewards.function import FunctionReward
from roll_lightning.rewards.length import LengthPenalty
from roll_lightning.rewards.math_verify import MathVerify
from roll_lightning.rewards.pool import RewardPool
from roll_lightning.rewards.reasoning_gym import ReasoningGymReward
from roll_lightning.rewards.regex import RegexMatch
from roll_lightning.rewards.scorer import RewardScorer
from roll_lightning.rewards.weighted import WeightedReward

__all__ = [
    "ExactMatch",
    "FunctionReward",
    "LengthPenalty",
    "MathVerify",
    "ReasoningGymReward",
    "RegexMatch",
    "Reward",
    "RewardFunction",
    "RewardPool",
    "RewardResult",
    "RewardScorer",
    "WeightedReward",
    "reward_name",
]
