"""Sections of plain text, as wide as a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH = 96
MARGIN = "  "


@dataclass(frozen=True)
class Line:
    """A name and what is said about it.

    Args:
        name: a key, a symbol, or nothing.
        text: broken into several lines where it is long, but not at a no-break space.
    """

    name: str
    text: str

    def render(self, indent: int) -> str:
        """The line, its text from column ``indent`` on."""
        lead = f"{MARGIN}{self.name:<{indent}}"
        wrapped = textwrap.wrap(
            self.text, WIDTH - len(lead), break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        text = f"\n{' ' * len(lead)}".join([lead + wrapped[0], *wrapped[1:]]) if wrapped else lead.rstrip()
        return text.replace("\xa0", " ")


@dataclass(frozen=True)
class Definition:
    """``symbol = formula``, and which choice it comes from.

    Args:
        symbol: what is defined.
        formula: its expression.
        note: the part that was chosen, or on what it is taken.
    """

    symbol: str
    formula: str
    note: str = ""

    def render(self, indent: int) -> str:
        """The formula, and its note beside it where there is room, else below."""
        line = f"{MARGIN}{self.symbol:<{indent}}= {self.formula}"
        if not self.note:
            return line
        beside = f"{line:<{NOTES}}  {self.note}"
        if len(line) <= NOTES and len(beside) <= WIDTH:
            return beside
        below = textwrap.wrap(self.note, WIDTH - len(MARGIN) - indent - 2, break_long_words=False)
        return "\n".join([line, *(f"{MARGIN}{' ' * indent}  {part}" for part in below)])


# Where notes stand beside short formulas.
NOTES = 60


@dataclass(frozen=True)
class Section:
    """A title and its lines; without lines it is not shown."""

    title: str
    lines: Sequence[Line | Definition] = field(default_factory=tuple)

    def render(self) -> str:
        """The section as text."""
        names = [len(line.name) for line in self.lines if isinstance(line, Line)]
        symbols = [len(line.symbol) for line in self.lines if isinstance(line, Definition)]
        indents = {Line: max(names, default=0) + 2, Definition: max(symbols, default=0) + 1}
        return "\n".join([self.title, *(line.render(indents[type(line)]) for line in self.lines)])


def render(sections: Sequence[Section]) -> str:
    """Sections one below the other, empty ones left out."""
    return "\n\n".join(section.render() for section in sections if section.lines)


def count(number: int, one: str, more: str | None = None) -> str:
    """``1 step``, ``12 000 steps``."""
    return f"{grouped(number)} {one if number == 1 else more or one + 's'}"


def grouped(number: int) -> str:
    """A number in groups of three digits."""
    return f"{number:,}".replace(",", " ")
