"""A part of the rows set apart for validation."""

from __future__ import annotations

from collections.abc import Sequence

from roll_lightning.data.jsonl import Row
from roll_lightning.data.planner import permutation
from roll_lightning.errors import ConfigError


def check_fraction(fraction: float) -> None:
    """Refuse a share that is none.

    Raises:
        ConfigError: it is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"data.val_fraction is {fraction}; it must be more than 0 and less than 1")


def split_rows(rows: Sequence[Row], fraction: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Training and validation rows, each in the order of the file.

    Which row goes where depends on the number of rows and the seed alone, so it is the same on every rank and after a
    resume. No row is in both; of rows that are there twice, one may be in each.

    Args:
        rows: of one dataset.
        fraction: share of the validation rows, rounded to whole rows.
        seed: of the choice.

    Raises:
        ConfigError: one of the parts would be empty.
    """
    check_fraction(fraction)
    count = round(len(rows) * fraction)
    if count == 0 or count == len(rows):
        part, way_out = ("validation", "raise") if count == 0 else ("training", "lower")
        raise ConfigError(
            f"data.val_fraction {fraction} of {len(rows)} rows leaves none for {part}; {way_out} it, or give data.val "
            "rows of its own"
        )
    chosen = set(permutation(len(rows), "val_fraction", seed)[:count])
    train = [row for number, row in enumerate(rows) if number not in chosen]
    return train, [row for number, row in enumerate(rows) if number in chosen]
