"""Which prompts an iteration gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roll_lightning.data.planner import permutation
from roll_lightning.data.types import Prompt
from roll_lightning.errors import ConfigError

# As exact as the sum of the shares has to be: thirds written with seven digits are thirds.
_SHARE_TOLERANCE = 1e-6
_WIDEST_SEARCH = 100


class PromptSchedule:
    """Pass after pass over the prompts, each in an order of its own.

    With shares, each domain goes through its own passes. What an iteration gets depends on the seed and its number
    alone, so a resumed run draws the same.

    Args:
        prompts: to draw from.
        seed: of every order.
        shares: share of each domain in each iteration; ``None`` takes the prompts as they come.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, shares: Mapping[str, float] | None = None) -> None:
        self.seed = seed
        self.shares = shares
        self._all = prompts
        self._domains = {name: [prompt for prompt in prompts if prompt.domain == name] for name in shares or ()}

    def check(self, count: int) -> None:
        """See that an iteration of ``count`` prompts can be drawn.

        Raises:
            ConfigError: there are fewer, or the shares do not come out whole.
        """
        if self.shares is None:
            _check_enough(count, count, len(self._all), "prompts")
            return
        if not self._is_whole(count):
            wider = range(1, _WIDEST_SEARCH * count)
            below = next((near for near in reversed(range(1, count)) if self._is_whole(near)), None)
            above = next((count + more for more in wider if self._is_whole(count + more)), None)
            near = " or ".join(str(number) for number in (below, above) if number)
            raise ConfigError(
                f"the shares of data.domains do not divide rollout.prompts_per_iteration {count} into whole prompts; "
                + (f"set it to {near}" if near else "take rounder shares")
            )
        for name, share in self.shares.items():
            _check_enough(count, round(share * count), len(self._domains[name]), f"prompts of domain {name}")

    def _is_whole(self, count: int) -> bool:
        exact = [share * count for share in (self.shares or {}).values()]
        whole = [round(number) for number in exact]
        slack = _SHARE_TOLERANCE * count
        return (
            min(whole) > 0
            and sum(whole) == count
            and all(abs(a - b) <= slack for a, b in zip(exact, whole, strict=True))
        )

    def draw(self, iteration: int, count: int) -> list[Prompt]:
        """The ``count`` prompts of an iteration."""
        if self.shares is None:
            return self._stream(self._all, iteration, count)
        drawn = [
            prompt
            for name, share in self.shares.items()
            for prompt in self._stream(self._domains[name], iteration, round(share * count), name)
        ]
        # Mixed, since ranks take every so-manieth: each gets some of every domain.
        return [drawn[place] for place in permutation(count, self.seed, "mix", iteration)]

    def _stream(self, prompts: Sequence[Prompt], iteration: int, count: int, *name: str) -> list[Prompt]:
        orders: dict[int, list[int]] = {}
        chosen = []
        for position in range(iteration * count, (iteration + 1) * count):
            number, place = divmod(position, len(prompts))
            if number not in orders:
                orders[number] = permutation(len(prompts), self.seed, "prompts", *name, number)
            chosen.append(prompts[orders[number][place]])
        return chosen


def _check_enough(count: int, wanted: int, have: int, what: str) -> None:
    if wanted > have:
        raise ConfigError(
            f"rollout.prompts_per_iteration {count} needs {wanted} {what}, but data.train has {have}; lower it, or "
            f"give more rows"
        )
