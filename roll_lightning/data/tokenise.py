"""Rows of supervised data to token ids with a loss mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from roll_lightning.data.columns import Form, find_form
from roll_lightning.data.jsonl import Row
from roll_lightning.data.sources import RowSource, read_rows
from roll_lightning.data.supervised import Turns, encode_row
from roll_lightning.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenisedRow:
    """One training sequence.

    Args:
        input_ids: its tokens, unpadded.
        loss_mask: 1 on the tokens that are learned, else 0; as long as ``input_ids``. The first is 0, because no token
            stands before it that could predict it.
        line: the row's line in its file, or its number.
    """

    input_ids: list[int]
    loss_mask: list[int]
    line: int


@dataclass(frozen=True)
class TokenisedDataset:
    """The rows that are trained on, and how many were not taken as they are.

    Args:
        rows: every row has at least one token with loss.
        truncated: rows that were cut at ``max_length`` (some of them may then have been left out as fully masked).
        dropped: rows left out because they are longer than ``max_length``.
        fully_masked: rows left out because no token of them carries loss.
    """

    rows: list[TokenisedRow]
    truncated: int
    dropped: int
    fully_masked: int

    def summary(self) -> str:
        """One line for the log."""
        tokens = sum(len(row.input_ids) for row in self.rows)
        loss_tokens = sum(sum(row.loss_mask) for row in self.rows)
        return (
            f"{len(self.rows)} rows, {tokens} tokens, {loss_tokens} with loss; "
            f"{self.truncated} truncated, {self.dropped} dropped as too long, {self.fully_masked} without loss"
        )


def load_rows(
    source: str | Path | RowSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    overlong: Literal["truncate", "drop", "error"] = "truncate",
    form: Form | None = None,
    turns: Turns = "all",
) -> TokenisedDataset:
    """Read the rows of a source and tokenise them; see :func:`read_rows` and :func:`tokenise_rows`."""
    rows = read_rows(str(source) if isinstance(source, Path) else source)
    return tokenise_rows(rows, tokenizer, max_length=max_length, overlong=overlong, form=form, turns=turns)


def tokenise_rows(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    overlong: Literal["truncate", "drop", "error"] = "truncate",
    form: Form | None = None,
    turns: Turns = "all",
) -> TokenisedDataset:
    """Tokenise rows of supervised data.

    Columns are ``messages``; or ``prompt`` and ``completion``, two strings or two lists of messages; or
    ``instruction``, perhaps ``input``, and ``output``; or ``text``. All rows have the form of the first. Where the loss
    lies is said in :func:`~roll_lightning.data.supervised.encode_row`. Prompt and completion are tokenised separately,
    so a prompt has the same tokens here as when a response to it is sampled.

    Args:
        rows: rows of one dataset.
        tokenizer: with an EOS token, and a chat template if there are messages or instructions.
        max_length: longest row in tokens; ``None`` sets no limit.
        overlong: what becomes of a longer row: ``"truncate"`` keeps its beginning, ``"drop"`` leaves it out; both are
            counted. ``"error"`` refuses it.
        form: which columns to read; ``None`` finds out from the first row.
        turns: loss on ``"all"`` assistant turns of a row, or on the ``"last"`` one.

    Raises:
        ConfigError: a wrong setting, or a chat template that cannot be trained with.
        DataError: a missing column, a malformed or (``overlong="error"``) too long row, or no row left to train on.
    """
    if max_length is not None and max_length < 2:
        raise ConfigError(f"max_length is {max_length}; it must be 2 or more")
    if overlong not in ("truncate", "drop", "error"):
        raise ConfigError(f"overlong is {overlong!r}; it must be 'truncate', 'drop' or 'error'")
    if turns not in get_args(Turns):
        raise ConfigError(f"turns is {turns!r}; it must be 'all' or 'last'")
    form = find_form(rows, form)
    kept, truncated, dropped, fully_masked = [], 0, 0, 0
    for row in rows:
        ids, mask = encode_row(row, form, tokenizer, turns)
        if max_length is not None and len(ids) > max_length:
            if overlong == "error":
                raise DataError(
                    f"{row.where} has {len(ids)} tokens, more than max_length {max_length}; raise max_length, or set "
                    "overlong to truncate or drop"
                )
            if overlong == "drop":
                dropped += 1
                continue
            truncated += 1
        # Position 0 has nothing before it that could predict it.
        ids, mask = ids[:max_length], [0, *mask[1:max_length]]
        if any(mask):
            kept.append(TokenisedRow(ids, mask, row.line))
        else:
            fully_masked += 1
    dataset = TokenisedDataset(kept, truncated, dropped, fully_masked)
    _report(dataset, rows)
    return dataset


def _report(dataset: TokenisedDataset, rows: Sequence[Row]) -> None:
    from lightning.pytorch.utilities.rank_zero import rank_zero_warn

    if not dataset.rows:
        raise DataError(
            f"{rows[0].file}: none of {len(rows)} rows is left to train on: {dataset.dropped} dropped as too long, "
            f"{dataset.fully_masked} without a token that carries loss (no assistant turn, or cut off by max_length)"
        )
    if dataset.fully_masked:
        rank_zero_warn(
            f"{rows[0].file}: {dataset.fully_masked} of {len(rows)} rows left out because none of their tokens carries "
            "loss (no assistant turn, or cut off by max_length)"
        )
