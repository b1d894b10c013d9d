"""Rows of reinforcement learning data to prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roll_lightning.data.chat import check_messages, encode_prompt, render_prompt
from roll_lightning.data.encode import encode_prompt_text
from roll_lightning.data.jsonl import Row, read_jsonl, require_column
from roll_lightning.data.types import Prompt
from roll_lightning.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PromptDataset:
    """Prompts in the order of the file.

    Args:
        prompts: with unique ids.
        dropped: rows left out because their prompt is too long.
    """

    prompts: list[Prompt]
    dropped: int

    def summary(self) -> str:
        """One line for the log."""
        longest = max(len(prompt.token_ids) for prompt in self.prompts)
        domains = sorted({prompt.domain for prompt in self.prompts})
        return (
            f"{len(self.prompts)} prompts of up to {longest} tokens, domains {', '.join(domains)}; "
            f"{self.dropped} dropped as too long"
        )


def load_prompts(
    path: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt_column: str | None = None,
    answer_column: str | None = "answer",
    max_prompt_length: int | None = None,
    overlong: Literal["error", "drop"] = "error",
) -> PromptDataset:
    """Read a JSON Lines file of prompts; see :func:`tokenise_prompts`."""
    return tokenise_prompts(
        read_jsonl(path),
        tokenizer,
        prompt_column=prompt_column,
        answer_column=answer_column,
        max_prompt_length=max_prompt_length,
        overlong=overlong,
    )


def tokenise_prompts(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt_column: str | None = None,
    answer_column: str | None = "answer",
    max_prompt_length: int | None = None,
    overlong: Literal["error", "drop"] = "error",
) -> PromptDataset:
    """Make prompts from rows.

    A prompt is a string (tokenised as it is) or a list of messages (by the chat template, up to where the assistant
    begins). Optional columns are ``domain`` (a string, default ``"default"``) and ``id`` (a string or whole number,
    default ``file:line``). Every further column is kept in ``Prompt.columns``.

    Args:
        rows: rows of one file.
        tokenizer: with a chat template if there are messages.
        prompt_column: ``None`` takes ``prompt`` or ``messages``, whichever is there.
        answer_column: what verifiers compare with; ``None`` if the rewards need no answer.
        max_prompt_length: longest prompt in tokens; ``None`` sets no limit.
        overlong: ``"error"`` refuses a longer prompt, ``"drop"`` leaves it out and counts it.

    Raises:
        ConfigError: a wrong ``max_prompt_length`` or ``overlong``, or no chat template.
        DataError: a missing column, a malformed row, a too long or empty prompt, a repeated id, or no prompt left.
    """
    if max_prompt_length is not None and max_prompt_length < 1:
        raise ConfigError(f"max_prompt_length is {max_prompt_length}; it must be 1 or more")
    if overlong not in ("error", "drop"):
        raise ConfigError(f"overlong is {overlong!r}; it must be 'error' or 'drop'")
    prompt_column = prompt_column or _find_prompt_column(rows)
    require_column(rows, prompt_column, "another name: prompt_column")
    if answer_column is not None:
        require_column(rows, answer_column, "another name, or null for rewards that need none: answer_column")
    prompts: list[Prompt] = []
    dropped, lines = 0, dict[str, int]()
    for row in rows:
        prompt = _make_prompt(row, tokenizer, prompt_column, answer_column)
        if prompt.id in lines:
            raise DataError(f"{row.where} has the id {prompt.id!r} of line {lines[prompt.id]}; ids must be unique")
        lines[prompt.id] = row.line
        length = len(prompt.token_ids)
        if max_prompt_length is None or length <= max_prompt_length:
            prompts.append(prompt)
        elif overlong == "drop":
            dropped += 1
        else:
            raise DataError(
                f"{row.where}: the prompt has {length} tokens, more than max_prompt_length {max_prompt_length}; raise "
                "max_prompt_length, or set overlong to drop"
            )
    if not prompts:
        raise DataError(
            f"{rows[0].file}: all {len(rows)} prompts are longer than max_prompt_length {max_prompt_length}"
        )
    return PromptDataset(prompts, dropped)


def _find_prompt_column(rows: Sequence[Row]) -> str:
    if not rows:
        raise DataError("there are no rows to make prompts from")
    found = [name for name in ("prompt", "messages") if name in rows[0].values]
    if len(found) == 2:
        raise DataError(f"{rows[0].where} has both prompt and messages; choose one with prompt_column")
    return found[0] if found else "prompt"


def _make_prompt(row: Row, tokenizer: PreTrainedTokenizerBase, prompt_column: str, answer_column: str | None) -> Prompt:
    value = row.values[prompt_column]
    messages: list[dict[str, str]] = []
    if isinstance(value, str):
        text, token_ids = value, encode_prompt_text(tokenizer, value, row.where)
    elif isinstance(value, list):
        messages = check_messages(value, row.where)
        if messages[-1]["role"] == "assistant":
            raise DataError(
                f"{row.where}: the messages end with an assistant turn, so there is nothing to answer; remove it"
            )
        token_ids, text = encode_prompt(tokenizer, messages, row.where), render_prompt(tokenizer, messages)
    else:
        raise DataError(
            f"{row.where}: {prompt_column} must be a string or a list of messages, not {type(value).__name__}"
        )
    if not token_ids:
        raise DataError(f"{row.where}: the prompt is empty")
    used = {prompt_column, answer_column, "domain", "id"}
    return Prompt(
        id=_prompt_id(row),
        token_ids=tuple(token_ids),
        text=text,
        answer=None if answer_column is None else row.values[answer_column],
        domain=_domain(row),
        messages=tuple(messages),
        columns={name: column for name, column in row.values.items() if name not in used},
    )


def _prompt_id(row: Row) -> str:
    value: Any = row.values.get("id", row.where)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{row.where}: id must be a string or a whole number, not {value!r}")
    return str(value)


def _domain(row: Row) -> str:
    value: Any = row.values.get("domain", "default")
    if not isinstance(value, str) or not value:
        raise DataError(f"{row.where}: domain must be a string, not {value!r}")
    return value
