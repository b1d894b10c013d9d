"""The types that travel between DataModule, collector, engine, reward and module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length"]
Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """One task of an RL dataset.

    Args:
        id: unique within its dataset; part of the seed of each sample.
        token_ids: what the engine continues, after the chat template.
        text: the same for people (and for rewards that read the question).
        answer: what a verifier compares with; ``None`` where the reward needs none.
        domain: routes the prompt to its rewards and metrics.
        messages: the chat turns that ``token_ids`` was made from, if it was.
        columns: every further column of the row, by name.
    """

    id: str
    token_ids: tuple[int, ...]
    text: str
    answer: Any = None
    domain: str = "default"
    messages: tuple[Message, ...] = ()
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass
class Rollout:
    """One sampled answer to a prompt. Token ids are the only truth; ``text`` is for people and rewards.

    Args:
        prompt: the task.
        group: the number of the group, unique within an iteration. The samples of one prompt share it; the same
            prompt drawn twice makes two groups.
        sample: the sample's number within its group.
        token_ids: prompt and response.
        loss_mask: 1 on the tokens that the policy wrote, else 0. As long as ``token_ids``.
        logprobs: log-probability of each token under the distribution that it was sampled from; 0.0 where
            ``loss_mask`` is 0. As long as ``token_ids``.
        text: the decoded response, without stop token and stop string.
        finish_reason: ``"stop"``, or ``"length"`` for a response that was cut.
        weight_version: lowest and highest version of the weights that wrote it.
        turns: assistant turns in it.
        score: what the verifiers say (raw), ``None`` when no reward could score it.
        reward: what is trained on: the score and all shaping terms.
        components: raw value of each reward that serves the prompt's domain, by name.
        reward_faults: by name, the rewards that hung or crashed on it: ``"overrun"`` where that counts as a value,
            ``"failure"`` where it could not be scored.
        baseline: reward of the greedy answer to the same prompt, where the advantage estimator asks for one.
    """

    prompt: Prompt
    group: int
    sample: int
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    text: str
    finish_reason: FinishReason
    weight_version: tuple[int, int]
    turns: int = 1
    score: float | None = None
    reward: float | None = None
    components: dict[str, float | None] = field(default_factory=dict)
    reward_faults: dict[str, str] = field(default_factory=dict)
    baseline: float | None = None

    def to(self, device: object) -> Rollout:  # noqa: ARG002
        """Nothing to move; Lightning asks this of everything that a step returns."""
        return self

    @property
    def response_length(self) -> int:
        """Number of tokens that the policy wrote."""
        return sum(self.loss_mask)
