"""Corrections for tokens that were not sampled from the policy that is trained.

The engine that sampled (behaviour) and the trainer disagree: other kernels and precision, or weights some updates old.
``ℓ_t = old_logprobs - behaviour_logprobs`` says by how much. Both must be of the same, unfiltered distribution: with
top-p, top-k or min-p the ratio would be the mass that was kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from roll_lightning.errors import ConfigError
from roll_lightning.functional.ratios import MAX_LOG_RATIO, masked_log_ratio, pool_log_ratio, ratio_formula

CorrectionLevel = Literal["token", "segment", "geometric", "sequence"]
Measure = Literal["ratio", "difference"]

LEVELS: tuple[CorrectionLevel, ...] = get_args(CorrectionLevel)


def pool_at_level(values: Tensor, mask: Tensor, level: CorrectionLevel) -> Tensor:
    """Give all tokens of a unit the value of the unit.

    - ``token``: the token's own value.
    - ``segment``: the mean over a contiguous run of the mask (a turn).
    - ``geometric``: the mean over the row's mask tokens; of log-ratios it makes the geometric mean of the ratios, which
      a policy ratio calls ``sequence`` (GSPO).
    - ``sequence``: the sum over the row's mask tokens; of log-ratios it makes the ratio of whole answers. It is the
      only one without bias, and its spread grows with the length.

    Args:
        values: ``[batch, tokens]``, 0 where the mask is false.
        mask: ``[batch, tokens]``, true on tokens that count.
        level: see above.

    Returns:
        ``[batch, tokens]``, 0 where the mask is false.
    """
    if level == "sequence":
        return torch.where(mask.bool(), values.sum(-1, keepdim=True), 0.0)
    return pool_log_ratio(values, mask, "sequence" if level == "geometric" else level)


def level_ratio_formula(level: CorrectionLevel) -> str:
    """The ratio of trainer to engine at a level in words, for ``roll-lightning explain``."""
    if level == "sequence":
        return "exp(Σ_t log(π_old / π_engine))"
    return ratio_formula("sequence" if level == "geometric" else level, "π_old", "π_engine")


@dataclass(frozen=True)
class Mismatch:
    """How behaviour and trainer differ, at one level; both ``[batch, tokens]``, 0 where the mask is false.

    Args:
        log_ratio: pooled ``ℓ``.
        difference: pooled ``exp(old_logprobs) - exp(behaviour_logprobs)``, in units of probability.
    """

    log_ratio: Tensor
    difference: Tensor

    @classmethod
    def at(cls, level: CorrectionLevel, old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor) -> Mismatch:
        """Compute both from the log-probabilities ``[batch, tokens]``."""
        log_ratio = masked_log_ratio(old_logprobs, behaviour_logprobs, mask)
        # No probability is above 1; rounding may put its logarithm a little above 0.
        change = old_logprobs.clamp(max=0).exp() - behaviour_logprobs.clamp(max=0).exp()
        change = torch.where(mask.bool(), change, 0.0)
        return cls(pool_at_level(log_ratio, mask, level), pool_at_level(change, mask, level))

    @property
    def ratio(self) -> Tensor:
        """``exp`` of the log-ratio, which is clamped to ±20; 1 where the mask is false."""
        return self.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True)
class ImportanceWeight:
    """A truncated importance weight, ``clip(exp(ℓ), lower, upper)``; it multiplies each token's policy loss.

    TIS of Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", is level ``token``
    with ``upper`` 2. Without truncation, level ``sequence`` makes the gradient unbiased; for answers of one token
    every level does. A bound below most ratios flattens the weights of just those answers that the policy has come to
    prefer, and can point further away than no weight.

    Args:
        level: the unit that has one weight; see :func:`pool_at_level`.
        upper: the largest weight, above 1; ``None`` for no truncation.
        lower: the smallest weight, in (0, 1); ``None`` for no bound.

    Raises:
        ConfigError: an argument is out of its range.
    """

    level: CorrectionLevel = "token"
    upper: float | None = 2.0
    lower: float | None = None

    def __post_init__(self) -> None:
        _check_level("ImportanceWeight", self.level)
        _check_bounds("ImportanceWeight", ("lower", self.lower), ("upper", self.upper), "ratio")

    def truncate(self, ratio: Tensor) -> Tensor:
        """The weights of ratios of this level."""
        return ratio.clamp(min=0 if self.lower is None else self.lower, max=self.upper)

    def formula(self) -> str:
        """The weight in words, for ``roll-lightning explain``."""
        ratio = level_ratio_formula(self.level)
        if self.upper is not None:
            ratio = f"min({ratio}, {self.upper:g})"
        return f"sg({ratio})" if self.lower is None else f"sg(max({ratio}, {self.lower:g}))"


@dataclass(frozen=True)
class RejectionMask:
    """Leaves out the tokens, segments or rows that differ too much (masked importance sampling).

    Kept is what lies in ``[low, high]``, bounds included. At level ``geometric`` or ``sequence`` whole rows go. This is
    against the mismatch of engines: where behaviour weights are some updates old, a tight ``high`` leaves out the
    answers that the policy has come to prefer, and can point further away than no correction. See
    Liu et al. 2025, "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch";
    IcePop (arXiv 2510.18855) is level ``token`` with 0.5 and 5.

    Args:
        level: the unit that is kept or left out; see :func:`pool_at_level`.
        low: of a ratio in (0, 1), of a difference below 0; ``None`` for no bound.
        high: of a ratio above 1, of a difference above 0; ``None`` for no bound.
        measure: what is held against the bounds: the ``ratio``, ``exp(ℓ)``, or the ``difference`` of probabilities.

    Raises:
        ConfigError: an argument is out of its range, or there is no bound at all.
    """

    level: CorrectionLevel = "token"
    low: float | None = None
    high: float | None = None
    measure: Measure = "ratio"

    def __post_init__(self) -> None:
        _check_level("RejectionMask", self.level)
        if self.measure not in get_args(Measure):
            raise ConfigError(f"RejectionMask.measure is {self.measure!r}; it must be ratio or difference")
        if self.low is None and self.high is None:
            raise ConfigError("RejectionMask has neither low nor high, so it would reject nothing; set one of them")
        _check_bounds("RejectionMask", ("low", self.low), ("high", self.high), self.measure)

    def keep(self, mismatch: Mismatch) -> Tensor:
        """``[batch, tokens]`` bool, true where the mismatch of this level is within bounds; NaN is not."""
        if self.measure == "ratio":
            # Logarithms are compared, so that no bound meets the clamp of the ratio.
            value = mismatch.log_ratio
            low, high = (bound if bound is None else math.log(bound) for bound in (self.low, self.high))
        else:
            value, low, high = mismatch.difference, self.low, self.high
        return (value >= (-math.inf if low is None else low)) & (value <= (math.inf if high is None else high))

    def formula(self) -> str:
        """What it keeps, in words, for ``roll-lightning explain``."""
        if self.measure == "ratio":
            value = level_ratio_formula(self.level)
        else:
            pool = {"token": "", "segment": "mean_turn", "geometric": "mean_row", "sequence": "Σ_t"}[self.level]
            value = f"{pool}(π_old - π_engine)" if pool else "π_old - π_engine"
        low = "" if self.low is None else f"{self.low:g} ≤ "
        return low + value + ("" if self.high is None else f" ≤ {self.high:g}")

    @property
    def metric_name(self) -> str:
        """Under which the share of tokens that it keeps is logged."""
        kind = "ratio" if self.measure == "ratio" else "diff"
        return f"actor/train_infer_{self.level}_{kind}_mask_mean"


@dataclass(frozen=True)
class CorrectionOutput:
    """What :class:`OffPolicyCorrection` gives; all ``[batch, tokens]`` and without gradient.

    Args:
        weights: multiply each token's policy loss (not its KL term); 0 where the mask is false, 1 without a weight.
        keep: bool, the part of the mask that is trained on. It must become the one mask of numerator and denominators
            before windows are counted.
        metrics: by name, values of single tokens, to be averaged over the *whole* mask; 0 where it is false.
    """

    weights: Tensor
    keep: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class OffPolicyCorrection:
    """Importance weights and rejection masks, and what to watch with or without them.

    Metrics, of every level of :data:`LEVELS` always (a unit's value counts once per token of it):
    ``actor/train_infer_ratio_{level}_mean`` and ``…_max`` (ratio before truncation),
    ``actor/train_infer_diff_{level}_mean`` (difference of probabilities), ``actor/is_weight_clipfrac`` (share of
    tokens with a truncated weight), ``actor/train_infer_final_mask_mean`` (share of tokens that all masks keep), and
    for each mask ``actor/train_infer_{level}_ratio_mask_mean`` or ``…_diff_mask_mean``.

    Args:
        weight: the weight of the policy loss; ``None`` for none.
        masks: each sees all tokens of the mask, so their order does not matter; a token must pass all.

    Raises:
        ConfigError: two masks have the same level and measure.
    """

    weight: ImportanceWeight | None = None
    masks: Sequence[RejectionMask] = ()

    def __post_init__(self) -> None:
        names = [mask.metric_name for mask in self.masks]
        for number, mask in enumerate(self.masks):
            if mask.metric_name in names[:number]:
                raise ConfigError(
                    f"OffPolicyCorrection.masks has two of level {mask.level} on the {mask.measure}; give one with "
                    f"both low and high"
                )

    @property
    def mean_names(self) -> tuple[str, ...]:
        """Metrics to be averaged over tokens."""
        of_levels = [f"actor/train_infer_{kind}_{level}_mean" for kind in ("ratio", "diff") for level in LEVELS]
        of_masks = [mask.metric_name for mask in self.masks]
        return (*of_levels, "actor/is_weight_clipfrac", "actor/train_infer_final_mask_mean", *of_masks)

    @property
    def max_names(self) -> tuple[str, ...]:
        """Metrics to be maximised over tokens."""
        return tuple(f"actor/train_infer_ratio_{level}_max" for level in LEVELS)

    @torch.no_grad()
    def __call__(self, old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor) -> CorrectionOutput:
        """Compute weights, mask and metrics. Rows do not know of one another.

        Args:
            old_logprobs: ``[batch, tokens]`` of the trainer's policy before its first update on these tokens.
            behaviour_logprobs: ``[batch, tokens]`` that the tokens were sampled with.
            mask: ``[batch, tokens]``, true on tokens that count. What stands elsewhere, NaN included, changes nothing.
        """
        mask = mask.bool()
        at = {level: Mismatch.at(level, old_logprobs, behaviour_logprobs, mask) for level in LEVELS}
        weights = ratio = mask.to(at["token"].log_ratio.dtype)
        if self.weight is not None:
            ratio = torch.where(mask, at[self.weight.level].ratio, 0.0)
            weights = torch.where(mask, self.weight.truncate(ratio), 0.0)
        metrics = {"actor/is_weight_clipfrac": weights != ratio}
        for level, mismatch in at.items():
            metrics[f"actor/train_infer_ratio_{level}_mean"] = mismatch.ratio
            metrics[f"actor/train_infer_ratio_{level}_max"] = mismatch.ratio
            metrics[f"actor/train_infer_diff_{level}_mean"] = mismatch.difference
        keep = mask
        for rejection in self.masks:
            passed = rejection.keep(at[rejection.level])
            metrics[rejection.metric_name] = passed
            keep = keep & passed
        metrics["actor/train_infer_final_mask_mean"] = keep
        clean = {name: torch.where(mask, value.to(weights.dtype), 0.0) for name, value in metrics.items()}
        return CorrectionOutput(weights, keep, clean)


def _check_level(owner: str, level: str) -> None:
    if level not in LEVELS:
        raise ConfigError(f"{owner}.level is {level!r}; it must be one of {', '.join(LEVELS)}")


def _check_bounds(owner: str, low: tuple[str, float | None], high: tuple[str, float | None], measure: Measure) -> None:
    """``low`` and ``high`` are (name, value)."""
    floor, neutral = (0.0, 1) if measure == "ratio" else (-math.inf, 0)
    allowed = "between 0 and 1" if measure == "ratio" else "a finite number below 0"
    name, value = low
    if value is not None and not floor < value < neutral:
        raise ConfigError(f"{owner}.{name} is {value}; it must be {allowed}, or null for no bound")
    name, value = high
    if value is not None and not neutral < value < math.inf:
        raise ConfigError(
            f"{owner}.{name} is {value}; it must be a finite number above {neutral}, or null for no bound"
        )
