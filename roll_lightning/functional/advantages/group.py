"""Rewards against the rewards of others."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages.base import AdvantageInputs, OutcomeEstimator, uniform_groups

Over = Literal["group", "batch", "running", "none"]


class GroupRelative(OutcomeEstimator):
    """A row's reward against those of its group (GRPO, arXiv 2402.03300), of the batch, or of the run so far.

    ``x_i = (r_i - mean(r)) / (std(r) + eps)`` with the sample standard deviation (divided by n - 1). Without the
    division (``std="none"``) hard and easy prompts weigh by their spread (Dr. GRPO, arXiv 2503.20783); a mean of the
    group with a deviation of the batch is Lite PPO (arXiv 2508.08221).

    A row without a score leaves the statistics and gets 0. Where mean or deviation is of the group, a group whose
    scores are all equal gets exactly 0, and so does a group with a single score.

    Args:
        mean: what is subtracted: the mean of the ``group``, the ``batch`` (all rows of the iteration), all rows so far
            (``running``, this iteration included), or ``none``.
        std: by whose standard deviation it is divided; ``none`` does not divide.
        eps: added to the standard deviation; 0 or more. Unused without division.
        gamma: discount per token, in (0, 1].

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(self, mean: Over = "group", std: Over = "group", eps: float = 1e-6, gamma: float = 1.0) -> None:
        super().__init__(gamma)
        for name, value in (("mean", mean), ("std", std)):
            if value not in get_args(Over):
                raise ConfigError(f"GroupRelative.{name} is {value!r}; it must be one of {', '.join(get_args(Over))}")
        if not eps >= 0:
            raise ConfigError(f"GroupRelative.eps is {eps}; it must be 0 or more")
        self.mean, self.std, self.eps = mean, std, eps
        self.needs_groups = "group" in (mean, std)
        self._running = _Moments()

    def outcomes(self, inputs: AdvantageInputs) -> Tensor:
        """Normalised rewards."""
        rewards, groups = inputs.rewards.double(), inputs.group_ids
        scored = ~rewards.isnan()
        if "running" in (self.mean, self.std):
            self._running.add(rewards[scored])
        teaches = scored & ~uniform_groups(rewards, groups)[0] if self.needs_groups else scored
        result = torch.zeros_like(rewards)
        for members in _parts(groups, teaches, self.needs_groups):
            values = rewards[members]
            result[members] = (values - self._mean(values, rewards[scored])) / self._scale(values, rewards[scored])
        return result

    def _mean(self, own: Tensor, every: Tensor) -> Tensor | float:
        if self.mean == "none":
            return 0.0
        if self.mean == "running":
            return self._running.mean
        # Sums run over sorted values, so that the order of the rows cannot change even the last bit.
        return (own if self.mean == "group" else every).sort().values.mean()

    def _scale(self, own: Tensor, every: Tensor) -> Tensor | float:
        if self.std == "none":
            return 1.0
        deviation = self._running.std if self.std == "running" else _std(own if self.std == "group" else every)
        # Without any spread there is no scale: eps alone would blow up whatever is not subtracted.
        return deviation + self.eps if deviation > 0 else 1.0

    def outcome_formula(self) -> str:
        """See :class:`OutcomeEstimator`."""
        centred = "r_i" if self.mean == "none" else f"r_i - mean_{self.mean}"
        if self.std == "none":
            return centred
        return f"({centred}) / (std_{self.std} + {self.eps:g})"

    def state_dict(self) -> dict[str, Any]:
        """The moments of all rewards so far."""
        return self._running.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the moments."""
        self._running.load_state_dict(state)


def _std(values: Tensor) -> float:
    ordered = values.sort().values
    return float(ordered.std(correction=1)) if len(ordered) > 1 else 0.0


def _parts(groups: Tensor, chosen: Tensor, by_group: bool) -> list[Tensor]:
    """Masks ``[rows]`` of the chosen rows, group by group or all at once."""
    if not by_group:
        return [chosen] if bool(chosen.any()) else []
    parts = [(groups == group) & chosen for group in groups.unique()]
    return [part for part in parts if bool(part.any())]


class _Moments:
    """Count, mean and squared deviations of all values so far (Chan et al. 1979, merging of two samples)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        if not len(values):
            return
        ordered = values.sort().values
        mean, squares = float(ordered.mean()), float((ordered - ordered.mean()).square().sum())
        total, shift = self.count + len(values), mean - self.mean
        self.squares += squares + shift**2 * self.count * len(values) / total
        self.mean += shift * len(values) / total
        self.count = total

    @property
    def std(self) -> float:
        return (self.squares / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.squares = int(state["count"]), float(state["mean"]), float(state["squares"])
