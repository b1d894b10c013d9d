"""One answer per sample: engine, then rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from roll_lightning.collectors.base import Collector, Purpose, RolloutTask
from roll_lightning.data.types import Rollout
from roll_lightning.engines.base import Completion, Engine, Request, SamplingParams, derive_seed

if TYPE_CHECKING:
    from roll_lightning.rewards.scorer import RewardScorer


class SingleTurnCollector(Collector):
    """Asks an engine for the answers and a pool of rewards for their scores.

    Args:
        engine: generates; bound to the policy already.
        rewards: scores.
        sampling: how training answers are drawn.
        seed: the run's; with iteration, prompt and sample number it seeds every answer.
    """

    def __init__(self, engine: Engine, rewards: RewardScorer, sampling: SamplingParams, seed: int) -> None:
        self.engine = engine
        self.rewards = rewards
        self.sampling = sampling
        self.greedy = SamplingParams(
            max_new_tokens=sampling.max_new_tokens,
            temperature=0.0,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
        )
        self.seed = seed

    def collect(self, tasks: Sequence[RolloutTask], iteration: int, purpose: Purpose) -> list[Rollout]:
        """Generate, then score."""
        samples = [(task, number) for task in tasks for number in range(task.samples)]
        completions = self.engine.generate([self._request(task, n, iteration, purpose) for task, n in samples])
        rollouts = [_rollout(task, n, done) for (task, n), done in zip(samples, completions, strict=True)]
        self.rewards.score(rollouts)
        return rollouts

    def _request(self, task: RolloutTask, sample: int, iteration: int, purpose: Purpose) -> Request:
        # Two groups of one prompt in one iteration must differ; elsewhere a prompt comes once, and the number of its
        # group depends on the ranks.
        group = task.group if purpose == "train" else 0
        seed = derive_seed(self.seed, purpose, iteration, task.prompt.id, group, sample)
        params = self.greedy if task.greedy else self.sampling
        return Request(task.prompt.token_ids, params, seed, task.group)

    def close(self) -> None:
        """Close engine and rewards."""
        self.engine.close()
        self.rewards.close()


def _rollout(task: RolloutTask, sample: int, completion: Completion) -> Rollout:
    prompt = list(task.prompt.token_ids)
    return Rollout(
        prompt=task.prompt,
        group=task.group,
        sample=sample,
        token_ids=prompt + completion.token_ids,
        loss_mask=[0] * len(prompt) + [1] * len(completion.token_ids),
        logprobs=[0.0] * len(prompt) + completion.logprobs,
        text=completion.text,
        finish_reason=completion.finish_reason,
        weight_version=completion.weight_version,
    )
