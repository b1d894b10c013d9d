"""Text to token ids. Nothing here goes back from ids to text: ids are the only truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roll_lightning.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_prompt_text(tokenizer: PreTrainedTokenizerBase, text: str, where: str = "prompt") -> list[int]:
    """Token ids of a raw prompt, for training and for generation alike.

    What the tokenizer puts before a text (a BOS token, say) is there once, also when the text already begins with it.
    What it would put after one (an EOS token) is left out, because the prompt goes on.

    Raises:
        DataError: the tokenizer cannot encode the text; the message starts with ``where``.
    """
    plain = _encode(tokenizer, text, False, where)
    prefix = _prefix(tokenizer, plain, _encode(tokenizer, text, True, where))
    return plain if plain[: len(prefix)] == prefix else prefix + plain


def encode_completion_text(tokenizer: PreTrainedTokenizerBase, text: str, where: str = "completion") -> list[int]:
    """Token ids of a completion, ended by the EOS token (once, also when the text already ends with it).

    It is tokenised by itself, so the ids of the prompt are those that a generation starts from. A tokenizer that sets a
    space before every text (SentencePiece's dummy prefix) sets one before the completion.

    Raises:
        ConfigError: the tokenizer has no EOS token.
        DataError: the tokenizer cannot encode the text; the message starts with ``where``.
    """
    return end_with_eos(tokenizer, _encode(tokenizer, text, False, where))


def end_with_eos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    """The ids with the EOS token at their end, once.

    Raises:
        ConfigError: the tokenizer has no EOS token.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ConfigError("the tokenizer has no eos_token, so a text could not end; set tokenizer.eos_token")
    return ids if ids and ids[-1] == eos else [*ids, eos]


def encoding_error(tokenizer: PreTrainedTokenizerBase, text: str, error: Exception, where: str) -> DataError:
    """The error for a text that the tokenizer refuses, naming the first character that it does not know."""
    for position, character in enumerate(text):
        try:
            tokenizer(character, add_special_tokens=False)
        except Exception:
            return DataError(
                f"{where}: the tokenizer cannot encode {character!r} (U+{ord(character):04X}, character {position + 1})"
            )
    return DataError(f"{where}: the tokenizer cannot encode the text: {first_line(error)}")


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool, where: str) -> list[int]:
    # A tokenizer's own faults are bare `Exception`s, so nothing narrower can be caught.
    try:
        return list(tokenizer(text, add_special_tokens=special_tokens)["input_ids"])
    except Exception as error:
        raise encoding_error(tokenizer, text, error, where) from error


def _prefix(tokenizer: PreTrainedTokenizerBase, plain: list[int], full: list[int]) -> list[int]:
    """What stands before ``plain`` in ``full``."""
    if plain:
        starts = range(len(full) - len(plain) + 1)
        return next((full[:start] for start in starts if full[start : start + len(plain)] == plain), [])
    # Around an empty text nothing shows where the front ends; only a BOS token is known to belong there.
    return full[:1] if full and full[0] == tokenizer.bos_token_id else []
