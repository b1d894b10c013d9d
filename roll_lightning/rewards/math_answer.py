r"""Finds the answer in a mathematical text: the last ``\boxed{…}``, or what stands at the end."""

from __future__ import annotations

import re
from decimal import Decimal

_BOX = re.compile(r"\\boxed\s*\{")
_SCIENTIFIC = re.compile(r"(?<![\w.])([+-]?\d{1,30}(?:\.\d{0,30})?)[eE]([+-]?\d+)(?!\w)", re.ASCII)
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_THIN_THOUSANDS = re.compile(r"(?<=\d)\\[,;: ](?=\d{3}(?!\d))")
_IN_BASE = re.compile(r"(?=[0-9A-F]*\d)[0-9A-F]+_\{?(\d+)\}?", re.ASCII)
_ORDINARY = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "\u202f": " ", "\u2009": " "})
# GSM8K writes its answers as a worked solution that ends with this mark and the number.
_GSM8K_MARK = "####"


def last_boxed(text: str) -> str | None:
    r"""What the last ``\boxed{…}`` holds; ``None`` without one, and when its brace is never closed (a cut response)."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for end in range(starts[-1], len(text)):
        if text[end] in "{}" and text[end - 1] != "\\":
            depth += 1 if text[end] == "{" else -1
            if depth == 0:
                return text[starts[-1] : end]
    return None


def has_box(text: str) -> bool:
    r"""Whether a ``\boxed{`` begins in the text."""
    return _BOX.search(text) is not None


def end_of(text: str, length: int) -> str:
    """The last ``length`` characters, without a word or number that this would cut in two."""
    if len(text) <= length:
        return text
    start = len(text) - length
    cut = text[start:]
    return cut if text[start - 1].isspace() else "".join(re.split(r"(\s)", cut, maxsplit=1)[1:])


def gold_of(answer: object) -> str:
    """An answer of the data as one expression or text: behind GSM8K's ``####``, out of its box and its dollars."""
    text = str(answer)
    if _GSM8K_MARK in text:
        text = text.rpartition(_GSM8K_MARK)[2]
    boxed = last_boxed(text)
    return tidy(text if boxed is None else boxed)


def tidy(expression: str) -> str:
    """The expression without delimiters, and with signs, powers and numbers that LaTeX knows."""
    text = (
        _THIN_THOUSANDS.sub("", ordinary(expression).replace(r"\$", "")).strip().removesuffix(".").strip("*`").strip()
    )
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(opening) : len(text) - len(closing)]
        if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
            text = inner.strip() if opening not in inner else text
    text = text.removesuffix(".").strip()
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    return text.replace("**", "^")


def other_base(gold: str, found: str) -> bool:
    """Whether the answer is a number in one base and what was found is one in another: ``2516_8`` and ``2516_9``.

    A number without a base agrees with each.
    """
    wanted, bases = _IN_BASE.fullmatch(gold), _IN_BASE.findall(found)
    return wanted is not None and bool(bases) and bases[-1] != wanted[1]


def ordinary(text: str) -> str:
    """The text with ASCII minus signs and spaces, and with ``1.5e-3`` written out as ``0.0015``."""
    return _SCIENTIFIC.sub(_written_out, text.translate(_ORDINARY))


def _written_out(number: re.Match[str]) -> str:
    mantissa, exponent = number[1], number[2]
    # The exponent is the model's to choose, and a digit takes a byte.
    return f"{Decimal(number[0]):f}" if len(exponent) <= 3 else rf"{mantissa} \cdot 10^{{{exponent}}}"
