"""Which answers may be handed to a scorer that evaluates them as Python: those that can only compute.

Each pattern lists what is allowed. A list of what is forbidden would have holes: a comment between a function and its
parenthesis, an identifier that NFKC turns into another one, a loop variable named ``sin``, a string that SymPy reads.
"""

from __future__ import annotations

import re

_FUNCTION = "a?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|cbrt|[aA]bs|erf|Rational|Integer"
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+"

ARITHMETIC = re.compile(r"[\d\s()*/+-]*", re.ASCII)
"""Integers, four operations, parentheses. No letters: ``cos(x-x)`` is a one that no puzzle gave."""

ALGEBRA = re.compile(rf"(?:(?:{_FUNCTION}|pi|[a-zA-Z]\d*|{_NUMBER})(?!\w)|[\s(),*/^+-])*+", re.ASCII)
"""Also variables of one letter, decimals, and functions of mathematics. No ``Integral``, which is no antiderivative."""

NO_CALL = re.compile(r"[^(]*")
"""Lists, boards and words: nothing can be called without a parenthesis."""


def is_harmless(expression: str, allowed: re.Pattern[str]) -> bool:
    """Whether all of the text is allowed. It says nothing of how long the evaluation takes."""
    return allowed.fullmatch(expression) is not None
