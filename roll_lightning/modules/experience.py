"""Numbers of every token of a whole experience, computed rank by rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from roll_lightning.data.batch import ExperienceBatch
from roll_lightning.data.experience import Experience
from roll_lightning.data.planner import Window
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.strategies.scale import data_parallel_rank


@torch.no_grad()
def score_experience(
    trainer: Trainer,
    score: Callable[[ExperienceBatch], Tensor],
    experience: Experience,
    windows: Sequence[Window],
) -> Tensor:
    """What a model says of each token, ``[rows, tokens]`` float32 on the CPU of every rank.

    Each rank scores the micro-batches that it will train on; every rank makes the same number of forward passes, so
    this works under sharding.

    Args:
        trainer: gives precision, device and ranks.
        score: from a micro-batch on the device to ``[batch, tokens]``.
        experience: tokens and masks of all ranks.
        windows: one pass over the experience.
    """
    rank, device = data_parallel_rank(trainer), trainer.strategy.root_device
    scored = torch.zeros(experience.input_ids.shape, dtype=torch.float32)
    with trainer.precision_plugin.forward_context():
        for window in windows:
            for rows in window.micro_batches[rank]:
                found = score(experience.batch(rows).to(device)).float().cpu()
                if rows:
                    scored[list(rows), : found.shape[1]] = found
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        everywhere = scored.to(device)
        torch.distributed.all_reduce(everywhere)
        scored = everywhere.cpu()
    return scored


def experience_logprobs(
    trainer: Trainer, policy: CausalPolicy, experience: Experience, windows: Sequence[Window], temperature: float
) -> Tensor:
    """Log-probabilities ``[rows, tokens]``, the logits divided by ``temperature``; see :func:`score_experience`."""

    def score(batch: ExperienceBatch) -> Tensor:
        return policy(batch.input_ids, batch.loss_mask, temperature).logprobs

    return score_experience(trainer, score, experience, windows)
