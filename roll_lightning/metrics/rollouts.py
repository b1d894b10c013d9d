"""What the rollouts of an iteration look like, under ROLL's metric names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean, pstdev

from roll_lightning.data.experience import Experience
from roll_lightning.data.types import Rollout


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Scores, reward components, lengths, stop reasons and groups of an iteration, per domain where there are several.

    Every rank has all rollouts, so nothing needs to be merged.
    """
    metrics = _metrics_of(rollouts)
    domains = sorted({rollout.prompt.domain for rollout in rollouts})
    if len(domains) > 1:
        for domain in domains:
            part = [rollout for rollout in rollouts if rollout.prompt.domain == domain]
            metrics |= {f"{domain}/{name}": value for name, value in _metrics_of(part).items()}
    return metrics


def experience_metrics(experience: Experience) -> dict[str, float]:
    """Advantages of the tokens that are trained on, and how many samples are."""
    mask = experience.response_mask
    trained = int(mask.any(1).sum())
    metrics = {"actor/valid_samples": float(trained), "actor/valid_sample_ratio": trained / max(1, len(experience))}
    if trained:
        values = experience.advantages[mask]
        metrics |= {
            "critic/advantages/mean": float(values.mean()),
            "critic/advantages/max": float(values.max()),
            "critic/advantages/min": float(values.min()),
        }
    return metrics


def _metrics_of(rollouts: Sequence[Rollout]) -> dict[str, float]:
    scored = [rollout for rollout in rollouts if rollout.score is not None]
    metrics: dict[str, float] = {
        "system/samples": len(rollouts),
        "critic/unscored_samples": len(rollouts) - len(scored),
        "token/total_response_length/clip": fmean(rollout.finish_reason == "length" for rollout in rollouts),
    }
    prompts = [len(rollout.token_ids) - rollout.response_length for rollout in rollouts]
    metrics |= _spread("token/prompt_length", prompts)
    metrics |= _spread("token/response_length", [rollout.response_length for rollout in rollouts])
    if scored:
        metrics |= _score_metrics(scored)
    return metrics | _component_metrics(rollouts) | _group_metrics(scored)


def _component_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Each reward over the rollouts that it serves: values, and how many it could not score or overran on."""
    metrics: dict[str, float] = {}
    for name in sorted({name for rollout in rollouts for name in rollout.components}):
        served = [rollout for rollout in rollouts if name in rollout.components]
        values = [value for rollout in served if (value := rollout.components[name]) is not None]
        prefix = f"critic/reward_component/{name}"
        if values:
            metrics |= _spread(prefix, values)
        faults = [rollout.reward_faults.get(name) for rollout in served]
        metrics[f"{prefix}/unscored"] = len(served) - len(values)
        metrics[f"{prefix}/failures"] = faults.count("failure")
        metrics[f"{prefix}/overruns"] = faults.count("overrun")
    return metrics


def _score_metrics(scored: Sequence[Rollout]) -> dict[str, float]:
    scores = [rollout.score for rollout in scored if rollout.score is not None]
    metrics = _spread("critic/score", scores)
    rewards = [rollout.reward for rollout in scored if rollout.reward is not None]
    if rewards:
        metrics |= _spread("critic/rewards", rewards)
    metrics["critic/correct/mean"] = fmean(score >= 1 for score in scores)
    right = [rollout.response_length for rollout in scored if (rollout.score or 0) >= 1]
    wrong = [rollout.response_length for rollout in scored if (rollout.score or 0) < 1]
    if right:
        metrics |= _spread("token/right_response_length", right)
    if wrong:
        metrics |= _spread("token/error_response_length", wrong)
    return metrics


def _group_metrics(scored: Iterable[Rollout]) -> dict[str, float]:
    ordered = sorted(scored, key=lambda rollout: rollout.group)
    groups = [list(members) for _, members in groupby(ordered, key=lambda rollout: rollout.group)]
    if not groups:
        return {}
    ratios = [fmean((rollout.score or 0) >= 1 for rollout in group) for group in groups]
    # What could not be scored is in no group's statistics; a group without a second reward has no variance.
    flat = [len({r.reward for r in group if r.reward is not None}) <= 1 for group in groups]
    return {
        "group/correct_ratio/mean": fmean(ratios),
        "group/correct_ratio/std": pstdev(ratios),
        "group/all_correct_groups_ratio": fmean(ratio == 1 for ratio in ratios),
        "group/all_incorrect_groups_ratio": fmean(ratio == 0 for ratio in ratios),
        "group/mixed_groups_ratio": fmean(0 < ratio < 1 for ratio in ratios),
        "group/zero_variance_groups_ratio": fmean(flat),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}/mean": fmean(values), f"{name}/max": max(values), f"{name}/min": min(values)}
