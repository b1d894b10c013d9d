"""Per-token policy losses. ``functional.aggregation`` turns them into one number."""

from roll_lightning.functional.policy_losses.base import LossTerms, PolicyLoss, PolicyLossOutput
from roll_lightning.functional.policy_losses.cispo import CISPO
from roll_lightning.functional.policy_losses.kimi15 import Kimi15
from roll_lightning.functional.policy_losses.ppo_clip import PPOClip
from roll_lightning.functional.policy_losses.tis import TIS
from roll_lightning.functional.policy_losses.topr import TOPR
from roll_lightning.functional.policy_losses.vanilla import Vanilla

__all__ = [
    "CISPO",
    "TIS",
    "TOPR",
    "Kimi15",
    "LossTerms",
    "PPOClip",
    "PolicyLoss",
    "PolicyLossOutput",
    "Vanilla",
]
