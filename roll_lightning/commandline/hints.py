"""Type hints: taking them apart, checking plain values against them, and naming them to people."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import inspect
import os
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from jsonargparse import ArgumentParser
from jsonargparse.typing import get_registered_type

ITEMS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)


def members(hint: Any) -> list[Any]:
    """The alternatives of a union, ``[hint]`` for anything else."""
    origin = get_origin(hint)
    if origin is Annotated:
        return members(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [member for argument in get_args(hint) for member in members(argument)]
    return [hint]


def is_class_hint(hint: Any) -> bool:
    """Whether the hint is a class whose instances a config describes by ``class_path``."""
    if not inspect.isclass(hint) or get_origin(hint) is not None or dataclasses.is_dataclass(hint):
        return False
    if hint.__module__ in ("builtins", "collections.abc", "typing") or hint.__module__.startswith("jsonargparse"):
        return False
    if issubclass(hint, enum.Enum | os.PathLike | datetime.timedelta | datetime.date | Mapping):
        return False
    return get_registered_type(hint) is None


def items_hint(hint: Any) -> Any | None:
    """The type of a list's items; ``None`` when the hint is no list of one type."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin not in ITEMS:
        return None
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return None
    return arguments[0] if arguments else Any


def values_hint(hint: Any) -> Any | None:
    """The type of a dictionary's values; ``None`` when the hint is no dictionary."""
    origin = get_origin(hint) or hint
    if not (inspect.isclass(origin) and issubclass(origin, Mapping)):
        return None
    return get_args(hint)[1] if get_args(hint) else Any


def is_callable_hint(hint: Any) -> bool:
    """Whether the hint is a callable, which a config may describe by the class that it returns."""
    return get_origin(hint) is collections.abc.Callable or hint is collections.abc.Callable


def accepts(hint: Any, value: Any) -> bool:
    """Whether jsonargparse takes ``value``, as a config file gives it, for ``hint``."""
    if value is None:
        # To jsonargparse null is "not given", whatever the type.
        return any(
            part in (Any, type(None)) or (get_origin(part) is Literal and None in get_args(part))
            for part in members(hint)
        )
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint)
    try:
        parser.parse_object({"value": value})
    except Exception:
        return False
    return True


def describe(hint: Any) -> str:
    """A hint in words: ``int or null``, ``one of none, loss``, ``list of str``."""
    parts = members(hint)
    names: list[str] = []
    choices = [str(choice) for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    if choices:
        names.append(f"one of {', '.join(dict.fromkeys(choices))}")
    for part in parts:
        if get_origin(part) is not Literal and part is not type(None):
            names.append(_describe_one(part))
    if type(None) in parts:
        names.append("null")
    return " or ".join(dict.fromkeys(names))


def _describe_one(hint: Any) -> str:
    item = items_hint(hint)
    if item is not None:
        return f"list of {describe(item)}" if item is not Any else "list"
    if get_origin(hint) is tuple:
        return f"list of {len(get_args(hint))} values ({', '.join(map(describe, get_args(hint)))})"
    if values_hint(hint) is not None:
        return "mapping"
    if is_callable_hint(hint):
        return "class or function"
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return f"one of {_names(hint)}"
    if dataclasses.is_dataclass(hint):
        return f"mapping of {', '.join(field.name for field in dataclasses.fields(hint) if field.init)}"
    return getattr(hint, "__name__", str(hint))


def _names(choices: Iterable[Any]) -> str:
    return ", ".join(choice.name for choice in choices)
