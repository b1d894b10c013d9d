"""How often answers to held-out prompts are right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from roll_lightning.data.types import Rollout
from roll_lightning.metrics.weighted import WeightedMeans


class ValidationMetrics(WeightedMeans):
    """Share of right answers, greedy and sampled, and pass@k; an answer is right when its score is 1 or more.

    An answer that could not be scored is in no mean; it is counted as ``val_correct/unscored``.

    Args:
        num_samples: sampled answers to each prompt, the k of pass@k.
        domains: where there are several, each gets its own mean.
    """

    def __init__(self, num_samples: int, domains: Sequence[str]) -> None:
        self.num_samples = num_samples
        self.domains = list(domains) if len(domains) > 1 else []
        kinds = ["greedy", "sampled", f"pass@{num_samples}"]
        names = [f"val_correct/{kind}/mean" for kind in kinds]
        names += [f"val_correct/{domain}/{kind}/mean" for domain in self.domains for kind in kinds]
        names += ["val_score/greedy/mean", "val_score/sampled/mean", "val_response_length/mean", "val_correct/unscored"]
        super().__init__(names)

    def add_greedy(self, rollouts: Sequence[Rollout]) -> None:
        """Add one answer to each of some prompts."""
        self._add("greedy", rollouts)

    def add_sampled(self, rollouts: Sequence[Rollout]) -> None:
        """Add ``num_samples`` answers to each of some prompts, group by group."""
        self._add("sampled", rollouts)
        for _, members in groupby(rollouts, key=lambda rollout: rollout.group):
            group = [rollout for rollout in members if rollout.score is not None]
            if group:
                solved = any((rollout.score or 0) >= 1 for rollout in group)
                self._update(f"pass@{self.num_samples}", group[0].prompt.domain, float(solved))

    def _add(self, kind: str, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self.update("val_correct/unscored", float(rollout.score is None))
            self.update("val_response_length/mean", rollout.response_length)
            if rollout.score is not None:
                self._update(kind, rollout.prompt.domain, float(rollout.score >= 1))
                self.update(f"val_score/{kind}/mean", rollout.score)

    def _update(self, kind: str, domain: str, value: float) -> None:
        self.update(f"val_correct/{kind}/mean", value)
        if domain in self.domains:
            self.update(f"val_correct/{domain}/{kind}/mean", value)
