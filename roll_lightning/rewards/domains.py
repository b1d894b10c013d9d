"""Which rewards score the prompts of which domain."""

from __future__ import annotations

from roll_lightning.rewards.base import Reward


def serves(reward: Reward, domain: str) -> bool:
    """Whether ``reward`` scores prompts of ``domain``: without ``domains`` it scores all."""
    domains = getattr(reward, "domains", None)
    return domains is None or domain in domains
