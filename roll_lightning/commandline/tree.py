"""Config trees: how files and shell arguments are laid over one another.

Mappings merge key by key, everything else is replaced. A class is a mapping of ``class_path`` and ``init_args``; its
arguments may also stand beside ``class_path``, which gives the short keys of the shell (``--model.policy.path``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from roll_lightning.commandline.files import read_text
from roll_lightning.errors import ConfigError

Tree = dict[str, Any]
# Settings of the class that another class_path replaced; they count only if the new class is a subclass of the old.
REPLACED = "__replaced__"
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs", REPLACED)
CLASS_NAME = re.compile(r"(?:\w+\.)*[A-Z]\w*")


class ShellText(str):
    """A value as it was typed; its type says how it is read (``123`` may be a number or a folder)."""

    __slots__ = ()


def is_class_node(value: Any) -> bool:
    """Whether a mapping names a class."""
    return isinstance(value, dict) and ("class_path" in value or "init_args" in value)


def class_node(value: Tree) -> Tree:
    """The same class with all its arguments in ``init_args``."""
    short = {key: item for key, item in value.items() if key not in CLASS_KEYS}
    if not short:
        return value
    node = {key: item for key, item in value.items() if key in CLASS_KEYS}
    return node | {"init_args": merge(node.get("init_args") or {}, short)}


def merge(base: Any, overlay: Any) -> Any:
    """Lay ``overlay`` over ``base``; neither is changed.

    A class that replaces another starts from its own defaults, unless it turns out to be a subclass of it.
    """
    # Another string is no class: a file, say, where a class was one of several types.
    if is_class_node(base) and isinstance(overlay, str) and CLASS_NAME.fullmatch(overlay):
        overlay = {"class_path": str(overlay)}
    if isinstance(base, str) and isinstance(overlay, dict) and CLASS_NAME.fullmatch(base):
        base = {"class_path": str(base)}
    if not (isinstance(base, dict) and isinstance(overlay, dict)):
        return overlay
    if is_class_node(base) or is_class_node(overlay):
        base, overlay = class_node(base), class_node(overlay)
        if _other_class(base, overlay):
            return overlay | {REPLACED: base}
    merged = dict(base)
    for key, value in overlay.items():
        merged[key] = merge(merged[key], value) if key in merged else value
    return merged


def _other_class(base: Tree, overlay: Tree) -> bool:
    old, new = base.get("class_path"), overlay.get("class_path")
    if not (isinstance(old, str) and isinstance(new, str)):
        return False
    if "." in old and "." in new:
        return old != new
    return old.rsplit(".", 1)[-1] != new.rsplit(".", 1)[-1]


def assign(node: Any, keys: Sequence[str], text: str, append: bool = False) -> Any:
    """Set a shell argument below ``node``; a list on the way stands for its last item.

    Returns:
        The new node.

    Raises:
        ConfigError: the way leads through an empty list.
    """
    if not keys:
        return _appended(node, text) if append else _typed(node, text)
    if isinstance(node, list):
        if not node:
            raise ConfigError(f"--...{'.'.join(keys)} {text} belongs to the last item of a list that is empty")
        return [*node[:-1], assign(node[-1], keys, text, append)]
    if isinstance(node, str) and CLASS_NAME.fullmatch(node):
        node = {"class_path": str(node)}
    if not isinstance(node, dict):
        node = {}
    key, *rest = keys
    if key == "class_path" and not rest:
        return merge(node, {"class_path": text})
    if is_class_node(node) and key not in CLASS_KEYS:
        node = class_node(node)
        return node | {"init_args": assign(node.get("init_args"), keys, text, append)}
    return node | {key: assign(node.get(key), rest, text, append)}


def _typed(node: Any, text: str) -> Any:
    value = read_text(text)
    if isinstance(node, dict) and isinstance(value, dict):
        return merge(node, value)
    if is_class_node(node) and isinstance(value, str):
        return merge(node, value)
    return ShellText(text)


def _appended(node: Any, text: str) -> list[Any]:
    items = node if isinstance(node, list) else [] if node is None else [node]
    value = read_text(text)
    return [*items, *value] if isinstance(value, list) else [*items, ShellText(text)]
