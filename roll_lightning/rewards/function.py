"""Any function of the user's, by import path."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.rewards.base import RewardFunction, RewardResult


class FunctionReward(RewardFunction):
    """Calls a function that takes a list of rollouts and returns a list with one number (or ``None``) for each.

    Runs in a worker process, one rollout per call, with a deadline. The current directory is importable.

    Args:
        path: import path of the function, ``package.module.function``.
        arguments: further keyword arguments of the function.

    Raises:
        ConfigError: the path names no function, or the function does not take ``arguments``.
    """

    def __init__(self, path: str, arguments: dict[str, Any] | None = None) -> None:
        self.path = path
        self.arguments = dict(arguments or {})
        self.name = path.rpartition(".")[2]
        self._function = import_function(path)
        try:
            inspect.signature(self._function).bind([], **self.arguments)
        except TypeError as error:
            raise ConfigError(
                f"FunctionReward.path {path!r} cannot be called as {self.name}(rollouts, **{self.arguments}): {error}; "
                "mend `arguments` or the function"
            ) from error

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult | float | None]:
        """What the function returns."""
        return self._function(rollouts, **self.arguments)

    def __reduce__(self) -> tuple[type[FunctionReward], tuple[str, dict[str, Any]]]:
        # By path: a decorated function cannot be pickled itself.
        return FunctionReward, (self.path, self.arguments)


def import_function(path: str) -> Callable[..., Any]:
    """The function at an import path, the current directory being importable.

    Raises:
        ConfigError: names the path and the part of it that is missing.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"FunctionReward.path is {path!r}; write an import path such as package.module.function")
    try:
        with _current_directory_importable():
            module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"FunctionReward.path is {path!r}; {_why_not(module_name, error)}") from error
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(
            f"FunctionReward.path is {path!r}; module {module_name} ({getattr(module, '__file__', 'built in')}) has no "
            f"{name!r}"
        )
    if isinstance(function, type) or not callable(function):
        raise ConfigError(
            f"FunctionReward.path is {path!r}, which is a {'class' if isinstance(function, type) else 'value'} and no "
            "function; a class of rewards is chosen by class_path"
        )
    return function


def _why_not(module_name: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module_name}.".startswith(f"{missing}."):
        return f"there is no module {missing!r} in {os.getcwd()} or on Python's path"
    reason = " ".join(str(error).split())
    return f"importing module {module_name!r} raised {type(error).__name__}: {reason}"


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Puts the current directory at the end of ``sys.path``, where it hides no installed module."""
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)
