"""What was typed after ``roll-lightning``, split into config files and overrides. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from roll_lightning.commandline.files import read_config
from roll_lightning.commandline.tree import Tree, assign, merge
from roll_lightning.errors import ConfigError

KEY = re.compile(r"--([A-Za-z_][\w.-]*)(\+?)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Override:
    """One ``--key value``, or ``--key+=value``, which appends to a list."""

    key: str
    text: str
    append: bool = False


@dataclass
class Invocation:
    """A command with its arguments.

    Args:
        command: its name.
        files: the files of ``--config``, in their order.
        overrides: the other arguments, in their order; they count more than every file.
        print_config: print the resolved config instead of running.
        help_arguments: what asks for help, e.g. ``--help`` or ``--model.help RLVRModule``.
    """

    command: str
    files: list[str] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    print_config: bool = False
    help_arguments: list[str] = field(default_factory=list)

    def tree(self) -> Tree:
        """Files and overrides laid over one another.

        Raises:
            ConfigError: a file cannot be read.
        """
        tree: Tree = {}
        for file in self.files:
            tree = merge(tree, read_config(file))
        for override in self.overrides:
            tree = assign(tree, override.key.split("."), override.text, override.append)
        return tree


def parse_arguments(command: str, arguments: Sequence[str]) -> Invocation:
    """Split the arguments of a command.

    Raises:
        ConfigError: one has no value, or is no ``--key``.
    """
    invocation = Invocation(command)
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--print_config":
            invocation.print_config = True
        elif argument in ("-h", "--help"):
            invocation.help_arguments.append("--help")
        elif argument in ("-c", "--config"):
            invocation.files.append(_value(argument, left))
        else:
            _add(invocation, argument, left)
    return invocation


def _add(invocation: Invocation, argument: str, left: list[str]) -> None:
    match = KEY.fullmatch(argument)
    if not match:
        raise ConfigError(f"unexpected argument {argument!r}; every setting is written --key value")
    key, append, text = match.groups()
    if key.endswith(".help"):
        value = [text] if text is not None else left[:1]
        del left[: len(value) if text is None else 0]
        invocation.help_arguments += [f"--{key}", *value]
        return
    if text is None:
        text = _value(argument, left)
    if key == "config":
        invocation.files.append(text)
    else:
        invocation.overrides.append(Override(key, text, bool(append)))


def _value(argument: str, left: list[str]) -> str:
    if not left or KEY.fullmatch(left[0]):
        raise ConfigError(f"{argument} has no value; write {argument} VALUE")
    return left.pop(0)
