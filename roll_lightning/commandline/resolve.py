"""Checks a config tree against the classes that it names, before anything is built.

Every mapping is held against the signature of its class, at any depth, so that a wrong key, type or class is named
with its way out. The result has full class paths and plain values, ready for jsonargparse.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from roll_lightning.commandline import hints
from roll_lightning.commandline.classes import class_path, concrete_subclasses, find_class, parameters
from roll_lightning.commandline.files import read_text
from roll_lightning.commandline.suggest import listed, nearest
from roll_lightning.commandline.tree import REPLACED, ShellText, Tree, class_node, merge
from roll_lightning.errors import ConfigError

Elsewhere = Callable[[str], "str | None"]


class Resolver:
    """Resolves values by their type hints.

    Args:
        elsewhere: finds the full key of a name that stands in the wrong place.
    """

    def __init__(self, elsewhere: Elsewhere) -> None:
        self.elsewhere = elsewhere

    def value(self, value: Any, hint: Any, key: str) -> Any:
        """The value for ``hint``.

        Raises:
            ConfigError: it does not fit; names the key, the value and what fits.
        """
        if hint is Any:
            return plain(value)
        parts = hints.members(hint)
        parsed = read_text(value) if isinstance(value, ShellText) else value
        if isinstance(parsed, dict):
            return self._mapping(parsed, parts, hint, key)
        if isinstance(parsed, list):
            items = [item for item in map(hints.items_hint, parts) if item is not None]
            if len(items) == 1:
                return [self.value(item, items[0], f"{key}[{number}]") for number, item in enumerate(parsed)]
        return self._leaf(value, parsed, parts, hint, key)

    def _leaf(self, value: Any, parsed: Any, parts: list[Any], hint: Any, key: str) -> Any:
        classes = [part for part in parts if hints.is_class_hint(part)]
        others = [part for part in parts if part not in classes and not dataclasses.is_dataclass(part)]
        for candidate in (parsed, str(value)) if isinstance(value, ShellText) else (parsed,):
            fits = any(hints.accepts(part, candidate) for part in others)
            if classes and isinstance(parsed, str) and (not fits or parsed in concrete_subclasses(classes)):
                return self.klass({"class_path": parsed}, classes, key)
            if fits:
                return plain(candidate)
        raise ConfigError(f"{key} is {_show(value)}; it must be {hints.describe(hint)}")

    def _mapping(self, value: Tree, parts: list[Any], hint: Any, key: str) -> Any:
        classes = [part for part in parts if hints.is_class_hint(part)]
        records = [part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)]
        if classes and ("class_path" in value or not records):
            return self.klass(value, classes, key)
        if len(records) == 1:
            return self.arguments(value, records[0], key)
        if "class_path" in value and any(map(hints.is_callable_hint, parts)):
            return self._factory(value, key)
        mappings = [item for item in map(hints.values_hint, parts) if item is not None]
        if len(mappings) == 1:
            return {name: self.value(item, mappings[0], f"{key}.{name}") for name, item in value.items()}
        if hints.accepts(hint, plain(value)):
            return plain(value)
        raise ConfigError(f"{key} is {_show(value)}; it must be {hints.describe(hint)}")

    def klass(self, value: Tree, bases: Sequence[type], key: str) -> Tree:
        """A class with its arguments."""
        value = class_node(value)
        cls = self._named_class(value, bases, key)
        replaced = value.get(REPLACED)
        given = value.get("init_args") or {}
        if replaced and issubclass(cls, self._named_class(replaced, bases, key)):
            given = merge(class_node(replaced).get("init_args") or {}, given)
        resolved: Tree = {"class_path": class_path(cls), "init_args": self.arguments(given, cls, key)}
        if value.get("dict_kwargs"):
            resolved["dict_kwargs"] = plain(value["dict_kwargs"])
        return resolved

    def _named_class(self, value: Tree, bases: Sequence[type], key: str) -> type:
        name = value.get("class_path")
        if name is None:
            # Without a name it is the base itself, where that is a class with these arguments.
            given = value.get("init_args") or {}
            if len(bases) == 1 and not inspect.isabstract(bases[0]) and any(k in parameters(bases[0]) for k in given):
                return bases[0]
            names = listed(sorted(concrete_subclasses(bases)))
            raise ConfigError(f"{key} names no class; add class_path, one of {names}, or your own by its dotted path")
        if not isinstance(name, str):
            raise ConfigError(f"{key}.class_path is {_show(name)}; it must be the name of a class")
        return find_class(str(name), bases, key)

    def _factory(self, value: Tree, key: str) -> Tree:
        """A callable given as a class whose remaining arguments come later, so none is missing."""
        node = class_node(value)
        cls = find_class(str(node["class_path"]), [object], key)
        given = node.get("init_args") or {}
        resolved = {"class_path": class_path(cls), "init_args": self.arguments(given, cls, key, complete=False)}
        return resolved | ({"dict_kwargs": plain(node["dict_kwargs"])} if "dict_kwargs" in node else {})

    def arguments(self, given: Any, cls: type, key: str, complete: bool = True) -> Tree:
        """The arguments of a class.

        Raises:
            ConfigError: one is unknown, missing, or does not fit.
        """
        known = parameters(cls)
        if not isinstance(given, dict):
            raise ConfigError(f"{key} is {_show(given)}; it must be a mapping of {listed(known)}")
        for name in given:
            if name not in known:
                raise self.unknown_key(key, str(name), known, cls)
        for parameter in known.values():
            if complete and parameter.required and parameter.name not in given:
                raise ConfigError(f"missing key {key}.{parameter.name}; {cls.__name__} needs it")
        return {name: self.value(item, known[name].hint, f"{key}.{name}") for name, item in given.items()}

    def unknown_key(
        self, key: str, name: str, known: Sequence[str] | dict[str, Any], cls: type | None = None
    ) -> ConfigError:
        """The error for a key that is not there."""
        prefix = f"{key}." if key else ""
        found = nearest(name, known, cutoff=0.7)
        full = prefix + found if found else self.elsewhere(name)
        if full is None and (found := nearest(name, known, cutoff=0.5)):
            full = prefix + found
        if full:
            return ConfigError(f"unknown key {prefix}{name}; did you mean {full}?")
        owner = cls.__name__ if cls else "a config"
        return ConfigError(f"unknown key {prefix}{name}; {owner} takes {listed(known) or 'no arguments'}")


def plain(value: Any) -> Any:
    """A value without traces of where it came from."""
    if isinstance(value, ShellText):
        return read_text(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key != REPLACED}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _show(value: Any) -> str:
    if isinstance(value, ShellText):
        return str(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(plain(value))
    return text if len(text) <= 80 else text[:77] + "..."
