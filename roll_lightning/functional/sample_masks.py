"""Which samples are trained on, and how much each weighs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError, DataError

if TYPE_CHECKING:
    from roll_lightning.data.types import Rollout


@dataclass(frozen=True)
class SampleFacts:
    """What is known of the rollouts of an iteration, all ranks together; all ``[rows]``.

    Args:
        scores: float, the raw scores (not the shaped rewards); NaN where a row could not be scored.
        group_ids: integer; the rows of one group are the samples of one prompt. Any order.
        lengths: tokens that the policy wrote.
        finished: bool, false where the answer was cut at the limit. An answer of just the longest length that ends with
            its stop token is finished.
        difficulty: float of the prompt, from 0 (easy) to 1 (hard); ``None`` if nobody asked for it.
    """

    scores: Tensor
    group_ids: Tensor
    lengths: Tensor
    finished: Tensor
    difficulty: Tensor | None = None

    @classmethod
    def from_rollouts(cls, rollouts: Sequence[Rollout], difficulty_column: str | None = None) -> SampleFacts:
        """Read them off; the difficulty from a column of the prompts, if one is named.

        Raises:
            DataError: a difficulty is missing, no number, or outside [0, 1]; names the prompt.
        """
        difficulty = None
        if difficulty_column is not None:
            difficulty = torch.tensor([_difficulty(r, difficulty_column) for r in rollouts], dtype=torch.float64)
        scores = [math.nan if rollout.score is None else rollout.score for rollout in rollouts]
        return cls(
            scores=torch.tensor(scores, dtype=torch.float64),
            group_ids=torch.tensor([rollout.group for rollout in rollouts]),
            lengths=torch.tensor([rollout.response_length for rollout in rollouts]),
            finished=torch.tensor([rollout.finish_reason != "length" for rollout in rollouts], dtype=torch.bool),
            difficulty=difficulty,
        )


class SampleMask(ABC):
    """Says which samples are trained on. Chosen in YAML by ``class_path``.

    ``metric_name`` is that of the share of rows that it keeps.
    """

    metric_name: str

    @abstractmethod
    def __call__(self, facts: SampleFacts) -> Tensor:
        """``[rows]`` bool, true on rows to keep. A row without a score is somebody else's to leave out."""

    def formula(self) -> str:
        """What it leaves out, in words, for ``roll-lightning explain``; a class that does not say is named."""
        return f"what {type(self).__name__} leaves out"


class OverlongMask(SampleMask):
    """Leaves out answers that were cut at the length limit: their score says little (DAPO, arXiv 2503.14476).

    Metric: ``actor/max_len_mask_ratio``.
    """

    metric_name = "actor/max_len_mask_ratio"

    def __call__(self, facts: SampleFacts) -> Tensor:
        """Keep what ended by itself."""
        return facts.finished.bool()

    def formula(self) -> str:
        """See :class:`SampleMask`."""
        return "answers that were cut at the length limit"


class DifficultyMask(SampleMask):
    """Keeps groups whose mean score lies strictly between two bounds: neither too hard nor too easy.

    The mean is over the group's scored rows; a group without any is left out. Metric: ``actor/difficulty_mask_ratio``.

    Args:
        low: lower bound, itself left out; 0 leaves out groups that are all wrong.
        high: upper bound, itself left out; above ``low``. 1 leaves out groups that are all right.

    Raises:
        ConfigError: the bounds leave no room.
    """

    metric_name = "actor/difficulty_mask_ratio"

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        if not low < high:
            raise ConfigError(f"DifficultyMask.low is {low} and high is {high}; low must be below high")
        self.low = low
        self.high = high

    def __call__(self, facts: SampleFacts) -> Tensor:
        """Keep the rows of groups inside the band."""
        means = _group_means(facts.scores, facts.group_ids)
        return (means > self.low) & (means < self.high)

    def formula(self) -> str:
        """See :class:`SampleMask`."""
        return f"groups but those with {self.low:g} < mean score < {self.high:g}"


class WrongAndLongMask(SampleMask):
    """Leaves out answers that are wrong (score below 1, so fractions of a point count as wrong) and long.

    A row without a score is not wrong. Metric: ``actor/error_len_mask_ratio``.

    Args:
        threshold: longest wrong answer that is kept, in tokens; 1 or more.

    Raises:
        ConfigError: it is less.
    """

    metric_name = "actor/error_len_mask_ratio"

    def __init__(self, threshold: int) -> None:
        if threshold < 1:
            raise ConfigError(f"WrongAndLongMask.threshold is {threshold}; it must be 1 token or more")
        self.threshold = threshold

    def __call__(self, facts: SampleFacts) -> Tensor:
        """Keep what is right, short or both."""
        return ~((facts.scores < 1) & (facts.lengths > self.threshold))

    def formula(self) -> str:
        """See :class:`SampleMask`."""
        return f"answers with score < 1 and more than {self.threshold} tokens"


class SampleWeight(ABC):
    """Says how much each sample weighs. Chosen in YAML by ``class_path``.

    ``difficulty_column`` is the column of the prompts that it reads, if any.
    """

    difficulty_column: str | None = None

    @abstractmethod
    def __call__(self, facts: SampleFacts, counts: Tensor) -> Tensor:
        """``[rows]`` float, positive and finite on the rows where ``counts`` ``[rows]`` is true; only those matter."""

    def formula(self) -> str:
        """A row's weight in words, for ``roll-lightning explain``; a class that does not say is named."""
        return f"{type(self).__name__}(row)"


class DifficultyWeight(SampleWeight):
    """``0.5 + 1.5 d`` with d the prompt's difficulty in [0, 1]: from 0.5 for the easiest to 2 for the hardest.

    Args:
        column: the column of the prompts that holds d.
    """

    def __init__(self, column: str = "difficulty") -> None:
        self.difficulty_column = column

    def __call__(self, facts: SampleFacts, counts: Tensor) -> Tensor:  # noqa: ARG002
        """Weights by difficulty.

        Raises:
            ConfigError: the facts have none.
        """
        if facts.difficulty is None:
            raise ConfigError(f"DifficultyWeight needs the column {self.difficulty_column}, and the rollouts have none")
        return 0.5 + 1.5 * facts.difficulty.double()

    def formula(self) -> str:
        """See :class:`SampleWeight`."""
        return "0.5 + 1.5 difficulty"


class LengthWeight(SampleWeight):
    """``1.5 - (length - min) / (max - min)``: from 1.5 for the shortest answer that counts to 0.5 for the longest.

    Answers of one length all weigh 1.5, which is 1 after renormalising.
    """

    def __call__(self, facts: SampleFacts, counts: Tensor) -> Tensor:
        """Weights by length."""
        lengths = facts.lengths.double()
        if not counts.any():
            return torch.ones_like(lengths)
        shortest, longest = lengths[counts].min(), lengths[counts].max()
        return 1.5 - (lengths - shortest) / (longest - shortest).clamp(min=1)

    def formula(self) -> str:
        """See :class:`SampleWeight`; shortest and longest of the rows that count."""
        return "1.5 - (length - shortest) / max(longest - shortest, 1)"


@dataclass(frozen=True)
class SelectionOutput:
    """What :class:`SampleSelection` gives.

    Args:
        keep: ``[rows]`` bool. The others must leave the response mask before windows are planned, so that they leave
            numerator and denominators and cost no compute.
        weights: ``[rows]`` float64, of mean 1 over ``keep`` and 0 elsewhere; they multiply the rows' policy loss.
        metrics: numbers of the iteration; see :class:`SampleSelection`.
    """

    keep: Tensor
    weights: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True)
class SampleSelection:
    """Masks and weights of whole samples. Without any it keeps all rows, each with weight 1.

    Metrics: of each mask the share of all rows that it keeps, whatever the others do, under its own name;
    ``actor/final_mask_ratio`` (share that is kept in the end), ``actor/samples_used``, ``actor/samples_total``;
    ``actor/sample_weights_mean``, ``…_min``, ``…_max`` over the rows that are kept, if there are any.

    Args:
        masks: a row must pass all.
        weights: multiplied, then divided by their mean over the rows that are kept.

    Raises:
        ConfigError: two masks are of one kind, or two weights read different columns.
    """

    masks: Sequence[SampleMask] = ()
    weights: Sequence[SampleWeight] = ()

    def __post_init__(self) -> None:
        names = [mask.metric_name for mask in self.masks]
        for mask in self.masks:
            if names.count(mask.metric_name) > 1:
                raise ConfigError(f"the sample masks have {type(mask).__name__} twice; give it once")
        columns = sorted({weight.difficulty_column for weight in self.weights if weight.difficulty_column is not None})
        if len(columns) > 1:
            raise ConfigError(f"the sample weights read the difficulty from {' and '.join(columns)}; choose one column")

    @property
    def difficulty_column(self) -> str | None:
        """The column that :meth:`SampleFacts.from_rollouts` must read."""
        return next((w.difficulty_column for w in self.weights if w.difficulty_column is not None), None)

    def __call__(self, facts: SampleFacts, counts: Tensor | None = None) -> SelectionOutput:
        """Apply the masks, then the weights.

        Args:
            facts: of all rows of the iteration.
            counts: ``[rows]`` bool, rows that are trained on as far as others decide (scored ones, say); ``None`` for
                all.

        Raises:
            DataError: a weight of a row that is kept is not finite or not above 0.
        """
        total = len(facts.scores)
        keep = torch.ones_like(facts.finished, dtype=torch.bool) if counts is None else counts.bool()
        metrics = {}
        for mask in self.masks:
            passed = mask(facts)
            metrics[mask.metric_name] = float(passed.sum()) / max(1, total)
            keep = keep & passed
        used = int(keep.sum())
        metrics |= {"actor/final_mask_ratio": used / max(1, total), "actor/samples_used": float(used)}
        metrics["actor/samples_total"] = float(total)
        weights = self._weights(facts, keep)
        if used:
            kept = weights[keep]
            metrics |= {f"actor/sample_weights_{name}": float(getattr(kept, name)()) for name in ("mean", "min", "max")}
        return SelectionOutput(keep, weights, metrics)

    def _weights(self, facts: SampleFacts, keep: Tensor) -> Tensor:
        product = torch.ones_like(facts.scores, dtype=torch.float64)
        for weight in self.weights:
            values = weight(facts, keep)
            wrong = keep & ~((values > 0) & values.isfinite())
            if wrong.any():
                row = int(wrong.nonzero()[0])
                raise DataError(
                    f"{type(weight).__name__} gave row {row} the weight {float(values[row])}; it must be above 0"
                )
            product = product * values
        product = torch.where(keep, product, 0.0)
        return product / product[keep].mean() if keep.any() else product


def _difficulty(rollout: Rollout, column: str) -> float:
    value = rollout.prompt.columns.get(column)
    if value is None:
        raise DataError(f"prompt {rollout.prompt.id} has no column {column}, which the sample weights read; add it")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise DataError(
            f"column {column} of prompt {rollout.prompt.id} is {value!r}; a difficulty is a number in [0, 1]"
        )
    return number


def _group_means(scores: Tensor, group_ids: Tensor) -> Tensor:
    """Mean score of each row's group ``[rows]``, NaN for a group without a score."""
    _, group = group_ids.unique(return_inverse=True)
    scored = ~scores.isnan()
    sums = torch.zeros_like(scores).scatter_add_(0, group, scores.nan_to_num(nan=0.0))
    counts = torch.zeros_like(scores).scatter_add_(0, group, scored.to(scores.dtype))
    return (sums / counts)[group]
