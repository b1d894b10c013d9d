"""Supervised fine-tuning explained."""

from __future__ import annotations

from collections.abc import Iterator

from lightning.pytorch import Trainer

from roll_lightning.data.sources import read_rows
from roll_lightning.data.split import split_rows
from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.errors import ConfigError
from roll_lightning.explain.denominators import symbols
from roll_lightning.explain.notices import endless_warm_up
from roll_lightning.explain.numbers import StepNumbers, limited, run_steps
from roll_lightning.explain.sources import counted_rows, source_state, trained
from roll_lightning.explain.steps import optimizer_step, run_length
from roll_lightning.explain.text import Definition, Line, Section, count
from roll_lightning.functional.aggregation import aggregation_formula
from roll_lightning.modules.sft import SFTModule


def explain_sft(module: SFTModule) -> list[Section]:
    """The sections of a module that has a trainer, which has data.

    Raises:
        ConfigError: data of another kind.
    """
    trainer = module.trainer
    data = trainer.datamodule
    if not isinstance(data, SFTDataModule):
        raise ConfigError(
            f"data is {type(data).__name__}, which has no rows for {type(module).__name__}; name SFTDataModule"
        )
    return [
        Section("one epoch", tuple(_epoch(trainer, data))),
        optimizer_step(StepNumbers.of(trainer, data), None, data.max_length),
        Section("model", (Line("π", trained(module.policy_config)),)),
        Section("objective: an optimizer step minimises L", tuple(_objective(data))),
        Section("denominators", tuple(_denominators(data))),
        Section("notices", tuple(_notices(trainer, module, data))),
    ]


def training_rows(data: SFTDataModule) -> int | None:
    """Rows of an epoch, before any is left out as too long; ``None`` where they are not counted."""
    rows = counted_rows(data.train)
    if rows is None or data.val_fraction is None:
        return rows
    return len(split_rows(read_rows(data.train or ""), data.val_fraction, data.val_seed)[0])


def updates_of(trainer: Trainer, data: SFTDataModule) -> int | None:
    """Optimizer steps of an epoch; ``None`` where the rows are not counted."""
    rows = training_rows(data)
    return None if rows is None else limited(trainer, data.planner.windows_per_epoch(rows))


def _epoch(trainer: Trainer, data: SFTDataModule) -> Iterator[Line]:
    rows, updates = training_rows(data), updates_of(trainer, data)
    if rows is None or updates is None:
        yield Line("rows", f"{source_state(data.train)}; not counted")
        yield Line("optimizer steps", f"rows / {data.batch_size}, rounded up")
        return
    less = "; fewer if some are longer than data.max_length (data.overlong drop)" if data.overlong == "drop" else ""
    yield Line("rows", f"{source_state(data.train)}: {count(rows, 'row')}{less}")
    every = data.planner.windows_per_epoch(rows)
    last = rows - (every - 1) * data.batch_size
    short = f", the last of {count(last, 'row')}" if last < data.batch_size else ""
    yield Line("optimizer steps", f"{rows} rows / {data.batch_size} per step, rounded up = {every}{short}")
    if updates < every:
        yield Line("", f"of which trainer.limit_train_batches leaves {updates}")
    yield Line("the run", run_length(trainer, updates, "epoch"))


def _objective(data: SFTDataModule) -> Iterator[Definition | Line]:
    yield Definition("L", aggregation_formula("token-mean", "l"), "token-mean")
    yield Definition("l", "-log π", "cross-entropy of token t of row i")
    turns = "every assistant turn" if data.turns == "all" else "the last assistant turn"
    yield Line("t", f"loss tokens: completion, output or text, in conversations those of {turns}")


def _denominators(data: SFTDataModule) -> Iterator[Line]:
    yield from symbols(aggregation_formula("token-mean", "l"), "rows", "loss token")
    cut = {
        "truncate": f"what lies beyond {data.max_length} tokens of a row (data.overlong truncate)",
        "drop": f"rows of more than {data.max_length} tokens (data.overlong drop)",
        "error": f"nothing: a row of more than {data.max_length} tokens ends the run (data.overlong error)",
    }
    yield Line("left out", f"prompts, other turns, padding; {cut[data.overlong]}")


def _notices(trainer: Trainer, module: SFTModule, data: SFTDataModule) -> Iterator[Line]:
    if type(module).training_step is not SFTModule.training_step:
        yield Line("-", f"{type(module).__name__} has its own training_step; what is printed here is SFTModule's")
    updates = updates_of(trainer, data)
    steps = trainer.max_steps if updates is None else run_steps(trainer, updates)
    yield from (Line("-", text) for text in endless_warm_up(module.schedule_config, steps))
