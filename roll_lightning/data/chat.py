"""Messages to token ids by the tokenizer's chat template, with a loss mask on what the assistant said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import groupby
from typing import TYPE_CHECKING, Any

from roll_lightning.data.encode import encoding_error, first_line
from roll_lightning.data.types import Message
from roll_lightning.errors import ConfigError, DataError
from roll_lightning.models.tokenizer import special_token_ids, template_name, tokenizer_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = ("system", "developer", "user", "assistant", "tool")
_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
_WAY_OUT = "use chat_template: chatml, or a .jinja file that is right"


def check_messages(messages: Any, where: str = "messages") -> list[Message]:
    """Check that a value from a file is a conversation: at least one object with a role and a text.

    Raises:
        DataError: says what is wrong; the message starts with ``where``.
    """
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: messages must be a list of at least one message, not {_short(messages)}")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise DataError(f"{where}: message {number} must be an object with role and content, not {_short(message)}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                found = _short(message[key]) if key in message else "missing"
                raise DataError(f"{where}: the {key} of message {number} must be a string, but it is {found}")
        if message["role"] not in ROLES:
            near = get_close_matches(message["role"], ROLES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"roles are {', '.join(ROLES)}"
            raise DataError(f"{where}: message {number} has the unknown role {_short(message['role'])}; {hint}")
    return messages


def encode_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], where: str = "messages"
) -> tuple[list[int], list[int]]:
    """Token ids of a conversation and its loss mask.

    The mask is what the template marks with ``{% generation %}``: 1 on each assistant turn from its first token to its
    end-of-turn token, 0 on everything else. It is as long as the ids.

    Raises:
        ConfigError: the template has no generation marker, leaves a turn unmarked, or leaves the end of a turn
            unmarked (the model would never learn to stop).
        DataError: the template or the tokenizer refuses these messages; the message starts with ``where``.
    """
    if not _GENERATION_MARKER.search(_template(tokenizer)):
        raise ConfigError(
            f"{template_name(tokenizer)} has no {{% generation %}} marker, so no token would carry loss; "
            "use chat_template: chatml, or a .jinja file with the markers"
        )
    if not tokenizer.is_fast:
        raise ConfigError(
            f"tokenizer {tokenizer_name(tokenizer)!r} is a slow one and cannot tell which tokens the assistant wrote; "
            "save it as a fast one, or pass another as `tokenizer: path`"
        )
    encoded = _apply(tokenizer, messages, where, return_assistant_tokens_mask=True)
    ids, mask = list(encoded["input_ids"]), list(encoded["assistant_masks"])
    _check_turns(tokenizer, messages, mask, where)
    _check_stops(tokenizer, ids, mask, where)
    return ids, mask


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], where: str = "prompt") -> list[int]:
    """Token ids of a conversation up to where the assistant begins to speak.

    Raises:
        ConfigError: the tokenizer has no chat template.
        DataError: the template or the tokenizer refuses these messages; the message starts with ``where``.
    """
    _template(tokenizer)
    encoded = _apply(tokenizer, messages, where, add_generation_prompt=True)
    return list(encoded["input_ids"])


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    """The text that :func:`encode_prompt` tokenises, for people and rewards."""
    return _render(tokenizer, messages, add_generation_prompt=True)


def masked_runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end (exclusive) of each run of ones."""
    runs, start = [], 0
    for value, run in groupby(mask):
        end = start + sum(1 for _ in run)
        if value:
            runs.append((start, end))
        start = end
    return runs


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            f"tokenizer {tokenizer_name(tokenizer)!r} has no chat template, and the data has messages; "
            "use chat_template: chatml (or plain), or a .jinja file"
        )
    return tokenizer.get_chat_template()


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], add_generation_prompt: bool) -> str:
    return str(
        tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=add_generation_prompt)
    )


def _apply(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    where: str,
    add_generation_prompt: bool = False,
    return_assistant_tokens_mask: bool = False,
) -> Any:
    # A template or tokenizer may raise anything, so nothing narrower can be caught.
    try:
        return tokenizer.apply_chat_template(
            list(messages),
            tokenize=True,
            return_dict=True,
            add_generation_prompt=add_generation_prompt,
            return_assistant_tokens_mask=return_assistant_tokens_mask,
        )
    except Exception as error:
        try:
            text = _render(tokenizer, messages, add_generation_prompt)
        except Exception as refusal:
            raise DataError(f"{where}: {template_name(tokenizer)} refuses it: {first_line(refusal)}") from error
        raise encoding_error(tokenizer, text, error, where) from error


def _check_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], mask: Sequence[int], where: str
) -> None:
    """Refuse a mask that misses an assistant turn or runs over its end.

    The second happens where the tokenizer drops the last character of a marked span, e.g. a line break.
    """
    roles = [role for role, _ in groupby(message["role"] for message in messages)]
    turns, marked = roles.count("assistant"), len(masked_runs(mask))
    if marked < turns:
        raise ConfigError(
            f"{where}: {template_name(tokenizer)} marks {marked} of {turns} assistant turns with {{% generation %}}; "
            f"{_WAY_OUT}"
        )
    if roles[-1] != "assistant" and mask[-1]:
        raise ConfigError(
            f"{where}: {template_name(tokenizer)} marks the last token, which is not the assistant's; {_WAY_OUT}"
        )


def _check_stops(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], mask: Sequence[int], where: str) -> None:
    """Refuse a mask in which an assistant turn does not end with a special token (white space may follow it)."""
    special = special_token_ids(tokenizer)
    for start, end in masked_runs(mask):
        last = end - 1
        while last > start and ids[last] not in special and not str(tokenizer.decode([ids[last]])).strip():
            last -= 1
        if ids[last] in special:
            continue
        if end < len(ids) and ids[end] in special:
            token = tokenizer.convert_ids_to_tokens(ids[end])
            fault = f"leaves the end-of-turn token {token} outside {{% generation %}}"
        else:
            fault = "ends an assistant turn without a special token of the tokenizer"
        raise ConfigError(
            f"{where}: {template_name(tokenizer)} {fault}, so the model would not learn to stop; {_WAY_OUT}"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
