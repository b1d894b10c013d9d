"""Log-probabilities of a whole experience, computed rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from roll_lightning.data.experience import Experience
from roll_lightning.data.planner import Window
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.strategies.scale import data_parallel_rank


@torch.no_grad()
def experience_logprobs(
    trainer: Trainer, policy: CausalPolicy, experience: Experience, windows: Sequence[Window], temperature: float
) -> Tensor:
    """Log-probabilities ``[rows, tokens]`` on the CPU of every rank.

    Each rank scores the micro-batches that it will train on; every rank makes the same number of forward passes, so
    this works under sharding.

    Args:
        trainer: gives precision, device and ranks.
        policy: scores the tokens.
        experience: tokens and masks of all ranks.
        windows: one pass over the experience.
        temperature: divides the logits.
    """
    rank, device = data_parallel_rank(trainer), trainer.strategy.root_device
    scored = torch.zeros(experience.input_ids.shape, dtype=torch.float32)
    with trainer.precision_plugin.forward_context():
        for window in windows:
            for rows in window.micro_batches[rank]:
                batch = experience.batch(rows).to(device)
                logprobs = policy(batch.input_ids, batch.loss_mask, temperature).logprobs.float().cpu()
                if rows:
                    scored[list(rows), : logprobs.shape[1]] = logprobs
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        everywhere = scored.to(device)
        torch.distributed.all_reduce(everywhere)
        scored = everywhere.cpu()
    return scored
