"""Computes the formulas that ``roll-lightning explain`` prints, read as a person reads them.

Factors stand side by side, ``log`` takes the factor that follows, Σ all factors that follow, ``²`` squares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

TOKEN = re.compile(
    r"(?P<sum>Σ_\{k≥t\}(?: [\d.]+\^\(k-t\))?|Σ_\{turn\(k\)≥turn\(t\)\}(?: [\d.]+\^\(turn\(k\)-turn\(t\)\))?|Σ_\w)"
    r"|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<name>\[k is last\]|V_old\(k(?:\+1)?\)|[^\W\d²][^\W²]*)|(?P<sign>[-+/(),²\[\]<>≤])"
    r"|(?P<space>\s+)"
)


class Formulas:
    """Formulas by their symbols, computed on rows of tokens.

    Args:
        definitions: formula of each symbol.
        values: tensor of each name that no formula defines.
        mask: ``[rows, tokens]``.
    """

    def __init__(self, definitions: Mapping[str, str], values: Mapping[str, Any], mask: Tensor) -> None:
        self.definitions, self.values, self.mask = definitions, values, mask.bool()
        self.functions: dict[str, Callable[..., Tensor]] = {
            "min": torch.minimum,
            "max": torch.maximum,
            "clip": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
            "exp": torch.exp,
            "log": torch.log,
            "abs": torch.abs,
            "sg": torch.Tensor.detach,
            "mean_row": lambda x: self._by(self._rows(), x),
            "mean_turn": lambda x: self._by(self._turns(), x),
            "mean": lambda x: x[self.values["counts"]].mean(),
            "whiten": self._whiten,
        }

    def __getitem__(self, symbol: str) -> Tensor:
        if symbol in self.values:
            return torch.as_tensor(self.values[symbol], dtype=torch.float64)
        if symbol in self.definitions:
            return self.compute(self.definitions[symbol])
        base = symbol.removesuffix("_k")
        assert base != symbol, f"nobody says what {symbol} is"
        return self[base]

    def compute(self, formula: str) -> Tensor:
        case = re.fullmatch(r"(.*) if (.*) else (.*)", formula)
        if case:
            return torch.where(self.holds(case[2]), self.compute(case[1]), self.compute(case[3]))
        reader = Reader(self, formula)
        value = reader.sum()
        assert reader.peek() is None, f"{formula!r}: {reader.peek()} is left over"
        return value

    def holds(self, condition: str) -> Tensor:
        """Comparisons, perhaps chained, joined by ``and`` and ``or``."""
        if " or " in condition:
            left, right = condition.split(" or ", 1)
            return self.holds(left) | self.holds(right)
        if " and " in condition:
            left, right = condition.split(" and ", 1)
            return self.holds(left) & self.holds(right)
        first, *rest = re.split(r" ([<>≤]) ", condition)
        result, left = torch.tensor(True), self.compute(first)
        for sign, text in zip(rest[::2], rest[1::2], strict=True):
            right = self.compute(text)
            result = result & {"<": left < right, ">": left > right, "≤": left <= right}[sign]
            left = right
        return result

    def add_up(self, operator: str, x: Tensor) -> Tensor:
        x = torch.where(self.mask, x, 0.0) if x.shape[-1:] != (1,) else x
        discount = re.search(r" ([\d.]+)\^", operator)
        gamma = float(discount[1]) if discount else 1.0
        if operator == "Σ_t":
            return x.sum(1, keepdim=True)
        if operator == "Σ_i":
            return x.sum()
        return self._ahead(x, gamma, by_turn="turn" in operator)

    def _ahead(self, x: Tensor, gamma: float, by_turn: bool) -> Tensor:
        result, turns = torch.zeros_like(x), self._turns()
        for row in range(len(x)):
            own = self.mask[row].nonzero().flatten().tolist()
            for place, t in enumerate(own):
                for distance, k in enumerate(own[place:]):
                    if not by_turn:
                        result[row, t] += gamma**distance * x[row, k]
                for k in own if by_turn else ():
                    if turns[row, k] >= turns[row, t]:
                        result[row, t] += gamma ** int(turns[row, k] - turns[row, t]) * x[row, k]
        return result

    def _rows(self) -> Tensor:
        return torch.arange(len(self.mask))[:, None].expand_as(self.mask)

    def _turns(self) -> Tensor:
        numbers = torch.zeros_like(self.mask, dtype=torch.long)
        number = 0
        for row in range(len(self.mask)):
            before = False
            for t, here in enumerate(self.mask[row].tolist()):
                number += here and not before
                numbers[row, t], before = number, here
        return numbers

    def _by(self, owner: Tensor, x: Tensor) -> Tensor:
        means = torch.zeros_like(x)
        for number in owner[self.mask].unique():
            members = (owner == number) & self.mask
            means = torch.where(members, x[members].mean(), means)
        return means

    def _whiten(self, x: Tensor) -> Tensor:
        chosen = x.expand_as(self.mask)[self.mask]
        return (x - chosen.mean()) / (chosen.var(correction=1) + 1e-8).sqrt()


class Reader:
    """Reads one formula from left to right."""

    def __init__(self, formulas: Formulas, text: str) -> None:
        self.formulas = formulas
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text):
            match = TOKEN.match(text, place)
            assert match, f"{text!r}: cannot read {text[place:]!r}"
            place = match.end()
            if match.lastgroup != "space":
                self.tokens.append((str(match.lastgroup), match[0]))

    def peek(self) -> str | None:
        return self.tokens[0][1] if self.tokens else None

    def take(self, expected: str | None = None) -> str:
        _, text = self.tokens.pop(0)
        assert expected in (None, text)
        return text

    def sum(self) -> Tensor:
        value = self.product()
        while self.peek() in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> Tensor:
        if self.peek() == "-":
            self.take()
            return -self.product()
        value = self.factor()
        while self.tokens and (self.tokens[0][0] in ("sum", "number", "name") or self.peek() in ("(", "[", "/")):
            if self.peek() == "/":
                self.take()
                value = value / self.factor()
            else:
                value = value * self.factor()
        return value

    def factor(self) -> Tensor:
        value = self.atom()
        if self.peek() == "²":
            self.take()
            value = value**2
        return value

    def atom(self) -> Tensor:
        kind, text = self.tokens[0]
        self.take()
        if kind == "sum":
            return self.formulas.add_up(text, self.product())
        if kind == "number":
            return torch.tensor(float(text), dtype=torch.float64)
        if text == "(":
            value = self.sum()
            self.take(")")
            return value
        if text == "[":
            left = self.sum()
            sign, right = self.take(), self.sum()
            self.take("]")
            return ({"<": left < right, ">": left > right}[sign]).double()
        if text in self.formulas.functions:
            return self.function(text)
        return self.formulas[text]

    def function(self, name: str) -> Tensor:
        call = self.formulas.functions[name]
        if name == "log":
            return call(self.factor())
        self.take("(")
        arguments = [self.sum()]
        while self.peek() == ",":
            self.take()
            arguments.append(self.sum())
        self.take(")")
        return call(*arguments)
