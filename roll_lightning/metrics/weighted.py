"""Means that are exact over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class WeightedMeans(Metric):
    """Named means, each kept as a sum with its weight, and named extremes.

    All ranks know the same names from the start, so one collective merges everything.

    Args:
        means: names of the means.
        maxima: names of the maxima.
        minima: names of the minima.
    """

    full_state_update = False
    totals: Tensor
    peaks: Tensor

    def __init__(self, means: Sequence[str], maxima: Sequence[str] = (), minima: Sequence[str] = ()) -> None:
        super().__init__(sync_on_compute=True)
        self.mean_names = {name: index for index, name in enumerate(means)}
        # A minimum is kept as the maximum of the negative, so that one state merges both.
        self.extremes = {name: (index, 1.0) for index, name in enumerate(maxima)}
        self.extremes |= {name: (len(maxima) + index, -1.0) for index, name in enumerate(minima)}
        self.add_state("totals", torch.zeros(max(1, len(means)), 2, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("peaks", torch.full((max(1, len(self.extremes)),), -torch.inf), dist_reduce_fx="max")

    def update(self, name: str, total: Tensor | float, weight: Tensor | float = 1.0) -> None:
        """Add a sum of values and the weight (number) of them to a mean."""
        index = self.mean_names[name]
        self.totals[index, 0] += torch.as_tensor(total).detach()
        self.totals[index, 1] += torch.as_tensor(weight).detach()

    def update_masked(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add the values ``[batch, tokens]`` where ``mask`` is true, to a mean or an extreme."""
        if name in self.mean_names:
            self.update(name, torch.where(mask, values, 0).sum(), mask.sum())
        elif mask.any():
            index, sign = self.extremes[name]
            peak = (sign * values.detach())[mask].max().to(self.peaks.dtype)
            self.peaks[index] = torch.maximum(self.peaks[index], peak)

    def compute(self) -> dict[str, Tensor]:
        """Each mean and extreme that got a value."""
        totals, peaks = self.totals.cpu(), self.peaks.cpu()
        found = {name: totals[i, 0] / totals[i, 1] for name, i in self.mean_names.items() if totals[i, 1] > 0}
        found |= {name: sign * peaks[i] for name, (i, sign) in self.extremes.items() if peaks[i] > -torch.inf}
        return {name: value.float() for name, value in found.items()}

    def pop(self) -> dict[str, Any]:
        """Compute, then start again from nothing."""
        values = self.compute()
        self.reset()
        return values
