"""The name that somebody meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 12


def nearest(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The candidate that looks most like ``name``, case ignored; ``None`` when none looks like it."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def listed(names: Iterable[str]) -> str:
    """Names in a row, cut after a dozen."""
    every = list(names)
    rest = len(every) - MAX_LISTED
    return ", ".join(every[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
