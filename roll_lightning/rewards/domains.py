"""Which rewards score the prompts of which domain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from roll_lightning.errors import ConfigError
from roll_lightning.rewards.base import Reward

if TYPE_CHECKING:
    from roll_lightning.rewards.weighted import WeightedReward


def serves(reward: Reward, domain: str) -> bool:
    """Whether ``reward`` scores prompts of ``domain``: without ``domains`` it scores all."""
    domains = getattr(reward, "domains", None)
    return domains is None or domain in domains


def refuse_unknown_domains(rewards: Sequence[WeightedReward], present: Mapping[str, Collection[str]]) -> None:
    """Refuse a reward for a domain that no prompt has.

    Args:
        rewards: the list of rewards.
        present: the prompts' domains by the key that names their source, such as ``data.train``.

    Raises:
        ConfigError: names reward, domain, and the nearest that is there.
    """
    known = sorted({domain for domains in present.values() for domain in domains})
    for reward in rewards:
        for domain in reward.domains or ():
            if domain not in known:
                near = get_close_matches(domain, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"their domains are {', '.join(known)}"
                raise ConfigError(
                    f"rollout.rewards: {reward.name!r} names the domain {domain!r}, which no prompt of "
                    f"{' or '.join(present)} has; {hint}"
                )


def refuse_unserved_domains(rewards: Sequence[WeightedReward], present: Mapping[str, Collection[str]]) -> None:
    """Refuse prompts that no verifier would score.

    Args:
        rewards: the list of rewards.
        present: the prompts' domains by the key that names their source, such as ``data.train``.

    Raises:
        ConfigError: names source, domain and way out.
    """
    for key, domains in present.items():
        for domain in sorted(domains):
            if not has_verifier(rewards, domain):
                raise ConfigError(
                    f"{key} has prompts of the domain {domain!r}, for which rollout.rewards has no verifier "
                    f"({_described(rewards)}); add one, or add {domain!r} to the `domains` of one"
                )


def has_verifier(rewards: Sequence[WeightedReward], domain: str) -> bool:
    """Whether a reward that is no shaping serves the domain."""
    return any(serves(reward, domain) and not reward.shaping for reward in rewards)


def _described(rewards: Sequence[WeightedReward]) -> str:
    return "; ".join(
        f"{reward.name} serves {'all' if reward.domains is None else ', '.join(reward.domains)}"
        f"{', but only shapes' if reward.shaping else ''}"
        for reward in rewards
    )
