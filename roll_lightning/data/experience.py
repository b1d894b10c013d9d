"""The experience of one rollout iteration: what the policy is trained on until the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from roll_lightning.data.batch import ExperienceBatch, WindowTotals, pad_rows
from roll_lightning.data.types import Rollout
from roll_lightning.errors import EngineError

# Rounding may put the log-probability of a certain token a little above 0.
LOGPROB_SLACK = 1e-4


@dataclass
class Experience:
    """Right-padded tensors on the CPU, the same on every rank.

    Args:
        input_ids: ``[rows, tokens]`` prompt and response.
        lengths: ``[rows]`` real tokens of each row.
        response_mask: ``[rows, tokens]`` bool; true on tokens that the policy wrote and that are trained on. The one
            mask of numerator and denominator.
        advantages: ``[rows, tokens]`` float32.
        old_logprobs: ``[rows, tokens]`` float32 log-probabilities of the weights that start the iteration, or ``None``
            where they are the first forward pass itself.
        ref_logprobs: ``[rows, tokens]`` float32, or ``None``.
        behaviour_logprobs: ``[rows, tokens]`` float32 log-probabilities that the engine gave, or ``None`` where they
            are of a filtered distribution (top-p, top-k) and so cannot be compared with the trainer's.
        policy_weights: ``[rows, tokens]`` float32, factors of the policy loss, or ``None`` where all are 1.
        values: ``[rows, tokens]`` float32 of the critic that starts the iteration, or ``None`` without a critic.
        returns: ``[rows, tokens]`` float32, what the critic learns, or ``None``.
        metrics: what was found while it was made, to be logged once; not part of its state.
    """

    input_ids: Tensor
    lengths: Tensor
    response_mask: Tensor
    advantages: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    behaviour_logprobs: Tensor | None = None
    policy_weights: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_rollouts(cls, rollouts: Sequence[Rollout]) -> Experience:
        """Tokens, masks and the engine's log-probabilities; advantages are zero until somebody sets them.

        Raises:
            EngineError: a log-probability is missing, not finite, or above 0.
        """
        for rollout in rollouts:
            check_logprobs(rollout)
        input_ids = pad_rows([rollout.token_ids for rollout in rollouts], torch.long)
        return cls(
            input_ids=input_ids,
            lengths=torch.tensor([len(rollout.token_ids) for rollout in rollouts]),
            response_mask=pad_rows([rollout.loss_mask for rollout in rollouts], torch.bool),
            advantages=torch.zeros(input_ids.shape, dtype=torch.float32),
            behaviour_logprobs=pad_rows([rollout.logprobs for rollout in rollouts], torch.float32),
        )

    def __len__(self) -> int:
        """Number of rows."""
        return self.input_ids.shape[0]

    def batch(self, rows: Sequence[int], window: WindowTotals | None = None) -> ExperienceBatch:
        """The rows as a micro-batch, padded to the longest of them; no rows make a filler of weight zero."""
        index = torch.tensor(list(rows) or [0])
        width = int(self.lengths[index].max()) if rows else 2

        def take(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[index, :width].clone()

        mask = self.response_mask[index, :width].clone()
        lengths = self.lengths[index]
        return ExperienceBatch(
            input_ids=self.input_ids[index, :width].clone(),
            attention_mask=torch.arange(width)[None] < lengths[:, None],
            loss_mask=mask if rows else torch.zeros_like(mask),
            advantages=self.advantages[index, :width].clone(),
            old_logprobs=take(self.old_logprobs),
            ref_logprobs=take(self.ref_logprobs),
            behaviour_logprobs=take(self.behaviour_logprobs),
            policy_weights=take(self.policy_weights),
            values=take(self.values),
            returns=take(self.returns),
            window=window,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor]) -> Experience:
        """The inverse of :meth:`state_dict`."""
        tensors: dict[str, Any] = dict(state)
        return cls(**tensors)


def check_logprobs(rollout: Rollout) -> None:
    """Refuse impossible log-probabilities instead of training on them.

    Raises:
        EngineError: names the prompt, the token and the value; also for a response without a prompt, whose first token
            nothing predicts.
    """
    if not len(rollout.token_ids) == len(rollout.loss_mask) == len(rollout.logprobs):
        raise EngineError(
            f"the rollout of prompt {rollout.prompt.id} has {len(rollout.token_ids)} tokens, "
            f"{len(rollout.loss_mask)} mask entries and {len(rollout.logprobs)} log-probabilities; the engine must "
            f"give one for each"
        )
    if rollout.loss_mask and rollout.loss_mask[0]:
        raise EngineError(
            f"the rollout of prompt {rollout.prompt.id} begins with a token of the policy; its prompt must have one at "
            f"least, since nothing predicts the first token"
        )
    for place, (logprob, trained) in enumerate(zip(rollout.logprobs, rollout.loss_mask, strict=True)):
        if trained and (logprob is None or not -math.inf < logprob <= LOGPROB_SLACK):
            raise EngineError(
                f"the engine gave log-probability {logprob} for token {place} of prompt {rollout.prompt.id}; "
                f"a log-probability is finite and at most 0"
            )
