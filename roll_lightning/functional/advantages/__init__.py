"""From rewards to advantages: who is compared with whom, and which token gets the credit."""

from roll_lightning.functional.advantages.base import AdvantageEstimator, AdvantageInputs, AdvantageOutput
from roll_lightning.functional.advantages.gae import GAE
from roll_lightning.functional.advantages.group import GroupRelative
from roll_lightning.functional.advantages.leave_one_out import LeaveOneOut
from roll_lightning.functional.advantages.reinforce import Reinforce, ReinforcePlusPlus, ReMax, SegmentReinforce
from roll_lightning.functional.advantages.shaping import AdvantageShaping

__all__ = [
    "GAE",
    "AdvantageEstimator",
    "AdvantageInputs",
    "AdvantageOutput",
    "AdvantageShaping",
    "GroupRelative",
    "LeaveOneOut",
    "ReMax",
    "Reinforce",
    "ReinforcePlusPlus",
    "SegmentReinforce",
]
