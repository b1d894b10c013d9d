"""Loading tokenizers and chat templates, and a small tokenizer of single characters."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_lightning.data.encode import first_line
from roll_lightning.errors import ConfigError
from roll_lightning.hub import hub_fault, is_below_local_folder, is_hub_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TEMPLATE_FOLDER = Path(__file__).parents[1] / "data" / "chat_templates"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.*",
    "*.tiktoken",
)
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")


def load_tokenizer(path: str, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer that has an EOS and a padding token.

    Without a padding token of its own it pads with EOS; masks come from lengths, so nothing is lost by that.

    Args:
        path: a local folder, or a name on the Hugging Face hub.
        chat_template: ``None`` keeps the tokenizer's own; else the name of a shipped one (``chatml``, ``plain``) or the
            path of a ``.jinja`` file.

    Raises:
        ConfigError: no tokenizer there, no EOS token, or a template that is unknown, not Jinja or unsuitable.
    """
    template = None if chat_template is None else read_chat_template(chat_template)
    tokenizer = _load(path)
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"the tokenizer of {path!r} has no eos_token, so nothing that the model writes could end; set "
            "tokenizer.eos_token, save it with save_pretrained and pass that folder as `tokenizer: path`"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = template
        tokenizer.chat_template_source = chat_template
        _check_syntax(tokenizer, chat_template)
    if chat_template == "chatml":
        _check_chatml(tokenizer, path)
    return tokenizer


def read_chat_template(name: str) -> str:
    """The text of a shipped chat template (by name) or of a ``.jinja`` file.

    Raises:
        ConfigError: there is no such template or file.
    """
    shipped = {file.stem: file for file in sorted(TEMPLATE_FOLDER.glob("*.jinja"))}
    file = shipped.get(name, Path(name).expanduser())
    if name not in shipped and file.suffix != ".jinja":
        near = get_close_matches(name, shipped, n=1)
        hint = f"did you mean {near[0]!r}? It is" if near else "give"
        raise ConfigError(f"chat_template {name!r} is unknown; {hint} one of {', '.join(shipped)}, or a .jinja file")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template {name!r} cannot be read: {first_line(error)}") from None


def tokenizer_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """Where the tokenizer came from, for messages."""
    return tokenizer.name_or_path or type(tokenizer).__name__


def template_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template in words, for messages."""
    source = getattr(tokenizer, "chat_template_source", None)
    return f"chat template {source!r}" if source else f"the chat template of tokenizer {tokenizer_name(tokenizer)!r}"


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of every special token, also of those without a role (``<|im_end|>`` often has none)."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)


def stop_token_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Tokens that end a response: EOS and, where the chat template ends an assistant turn with another, that one too.

    The end of a turn is the last special token of a conversation of one question and one answer.
    """
    stops = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if tokenizer.chat_template is None:
        return tuple(stops)
    special = special_token_ids(tokenizer)
    word = str(tokenizer.decode([next(number for number in range(len(tokenizer)) if number not in special)]))
    messages = [{"role": "user", "content": word}, {"role": "assistant", "content": word}]
    encoded: Any = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
    end = next((token for token in reversed(encoded["input_ids"]) if token in special), None)
    if end is not None and end not in stops:
        stops.append(end)
    return tuple(stops)


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """A tokenizer of one token per character, for small models that start from scratch.

    ``<pad>`` is token 0, ``<eos>`` token 1, then each character in the order given; a repeated one counts once. The
    last is ``<unknown>``, which encoding never gives: some model types add an unknown token of their own to a tokenizer
    without one when it is loaded beside them. Decoding gives back the text exactly. A character outside ``characters``
    is refused when it is encoded, and the encoders of ``roll_lightning.data`` name it.

    Raises:
        ConfigError: no characters.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if not characters:
        raise ConfigError("characters is empty; give the alphabet, e.g. '0123456789='")
    tokens = dict.fromkeys(["<pad>", "<eos>", *characters, "<unknown>"])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unknown>",
        clean_up_tokenization_spaces=False,
    )


def _load(path: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    folder = Path(path).expanduser()
    source = str(folder) if folder.is_dir() else path
    if folder.is_dir():
        if not any(True for pattern in _TOKENIZER_FILES for _ in folder.glob(pattern)):
            raise ConfigError(f"folder {path!r} has no tokenizer; save one there, or pass another as `tokenizer: path`")
    elif not is_hub_name(path) or is_below_local_folder(path):
        raise ConfigError(f"there is no folder {path!r}; correct the path, or pass another as `tokenizer: path`")
    else:
        fault = hub_fault(path, "model")
        if fault is not None:
            raise ConfigError(f"the tokenizer of {fault}")
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:
        if folder.is_dir():
            raise ConfigError(
                f"the tokenizer in {path!r} cannot be loaded ({first_line(error)}); save it anew with "
                "save_pretrained, or pass another as `tokenizer: path`"
            ) from error
        raise ConfigError(
            f"{path!r} is no local folder, and the hub did not give a tokenizer of that name ({first_line(error)}); "
            "correct it, or pass a local folder as `tokenizer: path`"
        ) from error


def _check_syntax(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    except TemplateSyntaxError as error:
        raise ConfigError(f"chat_template {name!r} is not valid Jinja: line {error.lineno}: {error.message}") from error
    except TemplateError:
        # A template may refuse an empty turn; only its syntax is looked at here.
        return


def _check_chatml(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in _CHATML_TOKENS if token not in vocabulary]
    if missing:
        raise ConfigError(
            f"chat_template 'chatml' needs the token {missing[0]}, which the tokenizer of {path!r} lacks; "
            "use chat_template: plain, or a .jinja file made for this tokenizer"
        )
