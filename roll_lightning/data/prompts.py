"""Rows of reinforcement learning data to prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from roll_lightning.data.chat import encode_prompt, render_prompt
from roll_lightning.data.domains import DomainConfig, conversation
from roll_lightning.data.encode import encode_prompt_text
from roll_lightning.data.jsonl import Row, require_column
from roll_lightning.data.sources import RowSource, read_rows
from roll_lightning.data.types import Message, Prompt
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


@dataclass(frozen=True)
class PromptSettings:
    """How rows become prompts.

    Args:
        prompt_column: ``None`` takes ``prompt`` or ``messages``, whichever is there.
        answer_column: what verifiers compare with; ``None`` if the rewards need no answer.
        answer_pattern: a regular expression with one group; the group of its last match in the answer is the answer,
            e.g. ``#### (.+)`` for GSM8K. ``None`` takes it whole.
        chat: a prompt that is a string becomes a user turn of the chat template; it does so anyway in a domain with a
            system prompt or examples. Otherwise it is tokenised as it is.
        domains: what the prompts of a domain have in common, by its name.
        max_prompt_length: longest prompt in tokens; ``None`` sets no limit.
        overlong: ``"error"`` refuses a longer prompt, ``"drop"`` leaves it out and counts it.

    Raises:
        ConfigError: a wrong ``max_prompt_length``, ``overlong`` or ``answer_pattern``.
    """

    prompt_column: str | None = None
    answer_column: str | None = "answer"
    answer_pattern: str | None = None
    chat: bool = False
    domains: Mapping[str, DomainConfig] = field(default_factory=dict)
    max_prompt_length: int | None = None
    overlong: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        if self.max_prompt_length is not None and self.max_prompt_length < 1:
            raise ConfigError(f"max_prompt_length is {self.max_prompt_length}; it must be 1 or more")
        if self.overlong not in ("error", "drop"):
            raise ConfigError(f"overlong is {self.overlong!r}; it must be 'error' or 'drop'")
        if self.answer_pattern is None:
            return
        if self.answer_column is None:
            raise ConfigError("answer_pattern is set, but answer_column is null; set both, or leave the pattern out")
        try:
            groups = re.compile(self.answer_pattern).groups
        except re.error as error:
            raise ConfigError(f"answer_pattern {self.answer_pattern!r} is no regular expression: {error}") from error
        if groups != 1:
            raise ConfigError(
                f"answer_pattern {self.answer_pattern!r} has {groups} groups; it needs exactly one, around the answer"
            )


def load_prompts(
    source: str | RowSource, tokenizer: PreTrainedTokenizerBase, settings: PromptSettings, split: str = "train"
) -> PromptDataset:
    """Read the rows of a source and make prompts of them; see :func:`tokenise_prompts`."""
    return tokenise_prompts(read_rows(source, split), tokenizer, settings)


def tokenise_prompts(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    settings: PromptSettings = PromptSettings(),
) -> PromptDataset:
    """Make prompts from rows.

    A prompt is a string (tokenised as it is, or as a user turn) or a list of messages (by the chat template, up to
    where the assistant begins). Optional columns are ``domain`` (a string, default ``"default"``) and ``id`` (a string
    or whole number, default ``file:line``). Every further column is kept in ``Prompt.columns``.

    Args:
        rows: rows of one source.
        tokenizer: with a chat template if there are messages.
        settings: see :class:`PromptSettings`.

    Raises:
        ConfigError: no chat template.
        DataError: a missing column, a malformed row, a too long or empty prompt, a repeated id, or no prompt left.
    """
    prompt_column = settings.prompt_column or _find_prompt_column(rows)
    require_column(rows, prompt_column, "another name: prompt_column")
    if settings.answer_column is not None:
        require_column(rows, settings.answer_column, "another name, or null for rewards that need none: answer_column")
    prompts: list[Prompt] = []
    dropped, places = 0, dict[str, str]()
    for row in rows:
        prompt = _make_prompt(row, tokenizer, prompt_column, settings)
        if prompt.id in places:
            raise DataError(f"{row.where} has the id {prompt.id!r} of {places[prompt.id]}; ids must be unique")
        places[prompt.id] = row.where
        length, limit = len(prompt.token_ids), settings.max_prompt_length
        if limit is None or length <= limit:
            prompts.append(prompt)
        elif settings.overlong == "drop":
            dropped += 1
        else:
            raise DataError(
                f"{row.where}: the prompt has {length} tokens, more than max_prompt_length {limit}; raise "
                "max_prompt_length, or set overlong to drop"
            )
    if not prompts:
        raise DataError(
            f"{rows[0].file}: all {len(rows)} prompts are longer than max_prompt_length {settings.max_prompt_length}"
        )
    return PromptDataset(prompts, dropped)


def apart(train: list[Prompt], held_out: Sequence[Prompt], overlap: Literal["warn", "drop"]) -> list[Prompt]:
    """The training prompts, with or without those whose tokens a held-out prompt has, which measures memory.

    Args:
        train: to train on.
        held_out: to validate on.
        overlap: ``"warn"`` keeps them and counts them in a warning, ``"drop"`` leaves them out and says how many.

    Raises:
        DataError: none is left.
    """
    seen = {prompt.token_ids for prompt in held_out}
    left = [prompt for prompt in train if prompt.token_ids not in seen]
    shared = len(train) - len(left)
    if not shared:
        return train
    if overlap == "warn":
        rank_zero_warn(
            f"{shared} of {len(train)} training prompts are validation prompts, too; set data.overlap to drop to leave "
            "them out of training"
        )
        return train
    if not left:
        raise DataError(f"all {shared} training prompts are validation prompts, too; give other ones as data.val")
    rank_zero_info(f"{shared} of {len(train)} training prompts are left out: they are validation prompts, too")
    return left


def _find_prompt_column(rows: Sequence[Row]) -> str:
    if not rows:
        raise DataError("there are no rows to make prompts from")
    # A format with a schema gives every row all columns, null where there is nothing.
    found = [name for name in ("prompt", "messages") if rows[0].values.get(name) is not None]
    if len(found) == 2:
        raise DataError(f"{rows[0].where} has both prompt and messages; choose one with prompt_column")
    return found[0] if found else "prompt"


def _make_prompt(row: Row, tokenizer: PreTrainedTokenizerBase, prompt_column: str, settings: PromptSettings) -> Prompt:
    value, name = row.values[prompt_column], _domain(row)
    if not isinstance(value, str | list):
        raise DataError(
            f"{row.where}: {prompt_column} must be a string or a list of messages, not {type(value).__name__}"
        )
    domain = settings.domains.get(name, DomainConfig())
    messages: list[Message] = []
    if isinstance(value, str) and not settings.chat and not domain.has_turns:
        text, token_ids = value, encode_prompt_text(tokenizer, value, row.where)
    else:
        messages = conversation(value, domain, row.where)
        if messages[-1]["role"] == "assistant":
            raise DataError(
                f"{row.where}: the messages end with an assistant turn, so there is nothing to answer; remove it"
            )
        token_ids, text = encode_prompt(tokenizer, messages, row.where), render_prompt(tokenizer, messages)
    if not token_ids:
        raise DataError(f"{row.where}: the prompt is empty")
    used = {prompt_column, settings.answer_column, "domain", "id"}
    return Prompt(
        id=_prompt_id(row),
        token_ids=tuple(token_ids),
        text=text,
        answer=_answer(row, settings),
        domain=name,
        messages=tuple(messages),
        columns={column: value for column, value in row.values.items() if column not in used},
    )


def _answer(row: Row, settings: PromptSettings) -> Any:
    if settings.answer_column is None:
        return None
    answer = row.values[settings.answer_column]
    if settings.answer_pattern is None:
        return answer
    found = re.findall(settings.answer_pattern, answer) if isinstance(answer, str) else []
    if not found:
        raise DataError(
            f"{row.where}: answer_pattern {settings.answer_pattern!r} does not occur in {settings.answer_column} "
            f"{str(answer)[-40:]!r}"
        )
    last = str(found[-1]).strip()
    if not last:
        raise DataError(f"{row.where}: answer_pattern {settings.answer_pattern!r} finds an empty answer; mend the row")
    return last


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
