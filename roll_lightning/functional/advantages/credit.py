"""Which token gets the credit: sums over a row's own tokens, from its end to its beginning.

All run over the tokens where the mask is true only, as if the others were not there: tool output and padding between
them neither discount nor contribute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roll_lightning.functional.ratios import segment_ids


def token_rewards_with_outcome(outcomes: Tensor, mask: Tensor, token_rewards: Tensor | None) -> Tensor:
    """Rewards of single tokens ``[rows, tokens]`` in float64, the row's outcome ``[rows]`` added on its last token."""
    mask = mask.bool()
    if token_rewards is None:
        rewards = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    else:
        rewards = torch.where(mask, token_rewards.double(), 0.0)
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, -1).amax(1)
    return rewards + torch.where((places == last[:, None]) & mask, outcomes.double()[:, None], 0.0)


def discounted_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """``R_t = Σ_{k ≥ t} γ^{k-t} r_k`` ``[rows, tokens]`` over the mask's tokens; 0 elsewhere."""
    mask = mask.bool()
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for place in reversed(range(rewards.shape[1])):
        here = mask[:, place]
        following = torch.where(here, rewards[:, place] + gamma * following, following)
        returns[:, place] = torch.where(here, following, 0.0)
    return returns


def segment_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Returns that are discounted between segments, the runs of the mask (turns), and shared inside one.

    ``G_s = Σ_{t in s} r_t + γ G_{s+1}``; each token of segment s gets ``G_s``.
    """
    mask = mask.bool()
    owner = segment_ids(mask)
    last = owner.amax(1)
    count = int(last.max())
    sums = rewards.new_zeros(len(rewards), count + 1).scatter_add_(1, owner, torch.where(mask, rewards, 0.0))
    returns = torch.zeros_like(sums)
    following = torch.zeros_like(sums[:, 0])
    for segment in range(count, 0, -1):
        following = torch.where(segment <= last, sums[:, segment] + gamma * following, following)
        returns[:, segment] = following
    return torch.where(mask, returns.gather(1, owner), 0.0)
