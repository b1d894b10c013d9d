"""Means that are exact over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class WeightedMeans(Metric):
    """Named means, each kept as a sum with its weight, and named maxima.

    All ranks know the same names from the start, so one collective merges everything.

    Args:
        means: names of the means.
        maxima: names of the maxima.
    """

    full_state_update = False
    totals: Tensor
    peaks: Tensor

    def __init__(self, means: Sequence[str], maxima: Sequence[str] = ()) -> None:
        super().__init__(sync_on_compute=True)
        self.mean_names = {name: index for index, name in enumerate(means)}
        self.max_names = {name: index for index, name in enumerate(maxima)}
        self.add_state("totals", torch.zeros(max(1, len(means)), 2, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("peaks", torch.full((max(1, len(maxima)),), -torch.inf), dist_reduce_fx="max")

    def update(self, name: str, total: Tensor | float, weight: Tensor | float = 1.0) -> None:
        """Add a sum of values and the weight (number) of them; for a maximum, a value."""
        if name in self.max_names:
            index = self.max_names[name]
            value = torch.as_tensor(total, dtype=self.peaks.dtype, device=self.peaks.device)
            self.peaks[index] = torch.maximum(self.peaks[index], value.detach())
        else:
            index = self.mean_names[name]
            self.totals[index, 0] += torch.as_tensor(total).detach()
            self.totals[index, 1] += torch.as_tensor(weight).detach()

    def update_masked(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add the values ``[batch, tokens]`` where ``mask`` is true."""
        self.update(name, torch.where(mask, values, 0).sum(), mask.sum())

    def compute(self) -> dict[str, Tensor]:
        """Each mean and maximum that got a value."""
        found = {
            name: self.totals[i, 0] / self.totals[i, 1] for name, i in self.mean_names.items() if self.totals[i, 1] > 0
        }
        found |= {name: self.peaks[i] for name, i in self.max_names.items() if self.peaks[i] > -torch.inf}
        return {name: value.float() for name, value in found.items()}

    def pop(self) -> dict[str, Any]:
        """Compute, then start again from nothing."""
        values = self.compute()
        self.reset()
        return values
