"""What the prompts of one domain have in common: a system prompt, worked examples, a share of each iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from roll_lightning.data.chat import check_messages
from roll_lightning.data.types import Message
from roll_lightning.errors import ConfigError, DataError


@dataclass(frozen=True)
class Example:
    """A worked example: one user turn and the assistant's answer to it."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class DomainConfig:
    """One domain of an RL dataset.

    Args:
        share: of the prompts of each iteration; either every domain has one or none has, and they add up to 1.
        system: system prompt of each of its prompts.
        examples: turns that stand before each of its prompts.
    """

    share: float | None = None
    system: str | None = None
    examples: list[Example] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise ConfigError(f"data.domains: a share is {self.share}; it must be above 0 and at most 1")

    @property
    def has_turns(self) -> bool:
        """Whether it puts turns before a prompt."""
        return self.system is not None or bool(self.examples)


def conversation(prompt: Any, domain: DomainConfig, where: str) -> list[Message]:
    """The turns of a prompt: system prompt, worked examples, then its own.

    Args:
        prompt: a string, which becomes a user turn, or messages.
        domain: what stands before it.
        where: the row, for messages.

    Raises:
        DataError: the prompt is neither, or has a system turn as the domain has.
    """
    own = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else check_messages(prompt, where)
    head: list[Message] = []
    if own[0]["role"] in ("system", "developer"):
        if domain.system is not None:
            raise DataError(f"{where}: the prompt has a system turn, and so has its domain; remove one of them")
        head, own = own[:1], own[1:]
    elif domain.system is not None:
        head = [{"role": "system", "content": domain.system}]
    for example in domain.examples:
        head += [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": example.answer}]
    return head + own


def check_domains(domains: Mapping[str, DomainConfig], present: set[str], source: str) -> None:
    """Refuse settings for a domain that no prompt has.

    Raises:
        ConfigError: names it, and the nearest that is there.
    """
    for name in domains:
        if name not in present:
            near = get_close_matches(name, present, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its domains are {', '.join(sorted(present))}"
            raise ConfigError(f"data.domains has {name}, but no prompt of {source} is of that domain; {hint}")


def domain_shares(domains: Mapping[str, DomainConfig], present: set[str], source: str) -> dict[str, float] | None:
    """The shares by domain; ``None`` where no domain has one.

    Raises:
        ConfigError: some have one and others not, or they do not add up to 1.
    """
    shares = {name: config.share for name, config in domains.items() if config.share is not None}
    if not shares:
        return None
    without = sorted(present - shares.keys())
    if without:
        raise ConfigError(
            f"data.domains gives shares, but none to {without[0]}, which {source} has; set data.domains.{without[0]}."
            f"share, or remove its rows"
        )
    total = sum(shares.values())
    if abs(total - 1) > 1e-6:
        listed = ", ".join(f"{name} {share:g}" for name, share in shares.items())
        raise ConfigError(f"the shares of data.domains add up to {total:g}, not 1: {listed}")
    return shares
