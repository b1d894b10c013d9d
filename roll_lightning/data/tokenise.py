"""Rows of supervised data to token ids with a loss mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from roll_lightning.data.chat import check_messages, encode_messages, masked_runs
from roll_lightning.data.encode import encode_completion_text, encode_prompt_text
from roll_lightning.data.jsonl import Row, read_jsonl, require_column
from roll_lightning.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Encoded = tuple[list[int], list[int]]


@dataclass(frozen=True)
class TokenisedRow:
    """One training sequence.

    Args:
        input_ids: its tokens, unpadded.
        loss_mask: 1 on the tokens that are learned, else 0; as long as ``input_ids``. The first is 0, because no token
            stands before it that could predict it.
        line: the row's line in its file.
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
    path: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    overlong: Literal["truncate", "drop", "error"] = "truncate",
) -> TokenisedDataset:
    """Read a JSON Lines file and tokenise it; see :func:`tokenise_rows`."""
    return tokenise_rows(read_jsonl(path), tokenizer, max_length=max_length, overlong=overlong)


def tokenise_rows(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    overlong: Literal["truncate", "drop", "error"] = "truncate",
) -> TokenisedDataset:
    """Tokenise rows of supervised data.

    Columns are ``messages`` (loss on every assistant turn), or ``prompt`` and ``completion``: two strings (loss on the
    completion and the EOS token behind it), or two lists of messages (loss on the completion's assistant turns). The
    first row decides between the two forms. Strings are tokenised separately, so a prompt has the same tokens
    here as when a response to it is sampled.

    Args:
        rows: rows of one file.
        tokenizer: with an EOS token, and a chat template if there are messages.
        max_length: longest row in tokens; ``None`` sets no limit.
        overlong: what becomes of a longer row: ``"truncate"`` keeps its beginning, ``"drop"`` leaves it out; both are
            counted. ``"error"`` refuses it.

    Raises:
        ConfigError: a wrong ``max_length`` or ``overlong``, or a chat template that cannot be trained with.
        DataError: a missing column, a malformed or (``overlong="error"``) too long row, or no row left to train on.
    """
    if max_length is not None and max_length < 2:
        raise ConfigError(f"max_length is {max_length}; it must be 2 or more")
    if overlong not in ("truncate", "drop", "error"):
        raise ConfigError(f"overlong is {overlong!r}; it must be 'truncate', 'drop' or 'error'")
    has_messages = _has_messages(rows)
    kept, truncated, dropped, fully_masked = [], 0, 0, 0
    for row in rows:
        ids, mask = _encode_messages_row(row, tokenizer) if has_messages else _encode_pair_row(row, tokenizer)
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


def _has_messages(rows: Sequence[Row]) -> bool:
    if not rows:
        raise DataError("there are no rows to tokenise")
    first = rows[0].values
    pair = "prompt" in first and "completion" in first
    if "messages" in first and pair:
        raise DataError(f"{rows[0].where} has both messages and prompt/completion; keep one form")
    if "messages" in first or not ("prompt" in first or "completion" in first):
        require_column(rows, "messages", "supervised rows have messages, or prompt and completion")
        return True
    require_column(rows, "prompt")
    require_column(rows, "completion")
    return False


def _encode_messages_row(row: Row, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    return encode_messages(tokenizer, check_messages(row.values["messages"], row.where), row.where)


def _encode_pair_row(row: Row, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    prompt, completion = row.values["prompt"], row.values["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        prompt_ids = encode_prompt_text(tokenizer, prompt, row.where)
        completion_ids = encode_completion_text(tokenizer, completion, row.where)
        return prompt_ids + completion_ids, [0] * len(prompt_ids) + [1] * len(completion_ids)
    if isinstance(prompt, list) and isinstance(completion, list):
        return _encode_message_pair(row, tokenizer)
    raise DataError(
        f"{row.where}: prompt is a {type(prompt).__name__} and completion a {type(completion).__name__}; both must be "
        "strings, or both lists of messages"
    )


def _encode_message_pair(row: Row, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    prompt = check_messages(row.values["prompt"], f"{row.where}: prompt")
    completion = check_messages(row.values["completion"], f"{row.where}: completion")
    if prompt[-1]["role"] == "assistant" or completion[0]["role"] != "assistant":
        raise DataError(
            f"{row.where}: the completion must begin with an assistant message, and the prompt must not end so"
        )
    ids, mask = encode_messages(tokenizer, prompt + completion, row.where)
    if any(message["role"] == "assistant" for message in prompt):
        # Loss only on what was said after the prompt: its own assistant turns come first.
        turns_of_prompt = len(masked_runs(encode_messages(tokenizer, prompt, row.where)[1]))
        end = masked_runs(mask)[turns_of_prompt - 1][1]
        mask = [0] * end + mask[end:]
    return ids, mask


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
