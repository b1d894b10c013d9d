"""Per-token policy losses. ``functional.aggregation`` turns them into one number."""

from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput
from roll_lightning.functional.policy_losses.ppo_clip import PPOClip

__all__ = [
    "LossTerms",
    "PPOClip",
    "PolicyLoss",
    "PolicyLossOutput",
]
