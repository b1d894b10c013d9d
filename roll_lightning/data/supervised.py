"""One supervised row of any form to token ids with a loss mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from roll_lightning.data.chat import check_messages, encode_messages, masked_runs
from roll_lightning.data.columns import Form
from roll_lightning.data.encode import encode_completion_text, encode_prompt_text, end_with_eos
from roll_lightning.data.jsonl import Row
from roll_lightning.data.types import Message
from roll_lightning.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turns = Literal["all", "last"]
Encoded = tuple[list[int], list[int]]


def encode_row(row: Row, form: Form, tokenizer: PreTrainedTokenizerBase, turns: Turns = "all") -> Encoded:
    """Token ids of a row and its loss mask, as long as the ids.

    Loss is on each assistant turn from its first token to its end-of-turn token (``messages``, and ``instruction``,
    which becomes a user and an assistant message), on the completion and its EOS token or its assistant turns
    (``completion``), or on everything (``text``, ended by EOS).

    Args:
        row: has the columns of the form.
        form: how to read it.
        tokenizer: with an EOS token, and a chat template if there are messages.
        turns: ``"last"`` takes the loss from all assistant turns but the last one.

    Raises:
        ConfigError: the tokenizer or its chat template cannot be trained with.
        DataError: the row is malformed; names it.
    """
    if form == "text":
        return _encode_text(row, tokenizer)
    if form == "messages":
        ids, mask = encode_messages(tokenizer, check_messages(row.values["messages"], row.where), row.where)
    elif form == "instruction":
        ids, mask = encode_messages(tokenizer, _instruction_messages(row), row.where)
    elif isinstance(row.values["prompt"], list):
        ids, mask = _encode_message_pair(row, tokenizer)
    else:
        return _encode_text_pair(row, tokenizer)
    return ids, _last_run(mask) if turns == "last" else mask


def _encode_text(row: Row, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    ids = end_with_eos(tokenizer, encode_prompt_text(tokenizer, _string(row, "text"), row.where))
    return ids, [1] * len(ids)


def _encode_text_pair(row: Row, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    prompt, completion = row.values["prompt"], row.values["completion"]
    if not (isinstance(prompt, str) and isinstance(completion, str)):
        raise _pair_fault(row)
    prompt_ids = encode_prompt_text(tokenizer, prompt, row.where)
    completion_ids = encode_completion_text(tokenizer, completion, row.where)
    return prompt_ids + completion_ids, [0] * len(prompt_ids) + [1] * len(completion_ids)


def _encode_message_pair(row: Row, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    if not isinstance(row.values["completion"], list):
        raise _pair_fault(row)
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


def _pair_fault(row: Row) -> DataError:
    kinds = [type(row.values[name]).__name__ for name in ("prompt", "completion")]
    return DataError(
        f"{row.where}: prompt is a {kinds[0]} and completion a {kinds[1]}; both must be strings, or both lists of "
        "messages"
    )


def _instruction_messages(row: Row) -> list[Message]:
    """What Alpaca's rows say, as a conversation: the input stands below the instruction, after an empty line."""
    given = _string(row, "input") if row.values.get("input") is not None else ""
    parts = [part for part in (_string(row, "instruction"), given) if part]
    return [
        {"role": "user", "content": "\n\n".join(parts)},
        {"role": "assistant", "content": _string(row, "output")},
    ]


def _string(row: Row, column: str) -> str:
    value = row.values[column]
    if not isinstance(value, str):
        raise DataError(f"{row.where}: {column} must be a string, not a {type(value).__name__}")
    return value


def _last_run(mask: list[int]) -> list[int]:
    """The mask with its last run of ones only."""
    runs = masked_runs(mask)
    if not runs:
        return mask
    start = runs[-1][0]
    return [0] * start + mask[start:]
