"""What the objective divides by, and what does not count."""

from __future__ import annotations

from collections.abc import Iterator

from roll_lightning.explain.numbers import IterationNumbers
from roll_lightning.explain.objective import window_loss
from roll_lightning.explain.parts import advantage_formula, mask_formula
from roll_lightning.explain.text import Line, Section
from roll_lightning.modules.rlvr import RLVRModule


def symbols(formula: str, rows: str, token: str) -> Iterator[Line]:
    """What the denominators of an aggregation are.

    Args:
        formula: the window loss.
        rows: what a row is called.
        token: what a token that counts is called.
    """
    if "N" in formula:
        yield Line("N", f"{token}s of the optimizer step, over all ranks and micro-batches")
    if "S" in formula:
        yield Line("S", f"{rows} of the optimizer step with a {token}, over all ranks and micro-batches")
    if "n_i" in formula:
        yield Line("n_i", f"{token}s of answer i")


def denominators(module: RLVRModule, numbers: IterationNumbers) -> Section:
    """What the loss and the statistics of advantages divide by."""
    lines = list(symbols(window_loss(module, numbers), "answers", "counted response token"))
    if module.aggregation == "seq-mean-token-sum-norm":
        lines.append(Line("", "and a constant, rollout.max_new_tokens"))
    lines.append(Line("left out", "of sums and denominators alike:"))
    lines += [Line("", f"- {text}") for text in _left_out(module)]
    lines += [Line("counted", text) for text in _counted(module)]
    return Section("denominators", lines)


def _left_out(module: RLVRModule) -> Iterator[str]:
    """Neither in the numerator nor in the denominators."""
    advantage = advantage_formula(module.advantage, "")
    statistics = "mean_" in advantage or "std_" in advantage
    yield "answers that could not be scored" + ("; they leave the statistics of A, too" if statistics else "")
    if module.advantage.needs_groups and module.maker.drop_zero_variance:
        yield "groups whose rewards are all equal, or with a single one (model.drop_zero_variance)"
    for mask in module.maker.samples.masks:
        stay = "; their rewards stay in the statistics of A" if statistics else ""
        yield f"{mask_formula(mask)} ({type(mask).__name__}){stay}"
    for rejection in module.off_policy.masks:
        yield f"tokens without {rejection.formula()} (off_policy.masks)"


def _counted(module: RLVRModule) -> Iterator[str]:
    if module.advantage.needs_groups and not module.maker.drop_zero_variance:
        yield "groups whose rewards are all equal, with advantage 0 (model.drop_zero_variance false)"
