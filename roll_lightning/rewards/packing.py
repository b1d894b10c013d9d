"""Turns rewards into bytes that a worker can load, and refuses those that it could not."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roll_lightning.errors import ConfigError
from roll_lightning.rewards.base import Reward
from roll_lightning.rewards.results import one_line

MAIN_NAMES = ("__main__", "__mp_main__")
"""The modules of a script: as it is started, and as a worker process loads it."""

LOADING_MAIN = "ROLL_LIGHTNING_LOADING_MAIN"
"""Environment variable that is set while a worker loads the user's script."""


@dataclass(frozen=True)
class PackedReward:
    """A pickled reward and its name."""

    name: str
    data: bytes


@dataclass(frozen=True)
class MainScript:
    """How the running script is found again: by path, or by module name if it was started with ``python -m``."""

    path: str
    module: str | None


class Unpickler(pickle.Unpickler):
    """Loads ``data`` and remembers whether anything in it is defined in the running script."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.needs_main = False

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The named object; called by ``pickle`` for each class and function."""
        self.needs_main |= module_name in MAIN_NAMES
        return super().find_class(module_name, global_name)


def pack(names: Sequence[str], rewards: Sequence[Reward]) -> tuple[tuple[PackedReward, ...], MainScript | None]:
    """Pickle the rewards; also says in which script to look for those that are defined in one.

    Raises:
        ConfigError: a reward cannot be pickled, or is defined in a notebook or an interactive session.
    """
    packed = []
    needs_main = False
    for name, reward in zip(names, rewards, strict=True):
        try:
            data = pickle.dumps(reward)
            unpickler = Unpickler(data)
            unpickler.load()
        except Exception as error:
            raise ConfigError(
                f"reward {name!r} cannot be sent to a worker process ({one_line(error)}); define it at the top level "
                "of a module, without lambdas, open files or locks"
            ) from error
        if unpickler.needs_main:
            needs_main = True
            if _main_script() is None:
                raise ConfigError(
                    f"reward {name!r} is defined in an interactive session, where a worker process does not find it; "
                    "move it to a module (.py file) and import it"
                )
        packed.append(PackedReward(name, data))
    return tuple(packed), _main_script() if needs_main else None


def refuse_while_loading_main() -> None:
    """Stop a script that trains as soon as it is imported, when a worker imports it.

    Raises:
        ConfigError: says where to put the call.
    """
    if LOADING_MAIN in os.environ:
        raise ConfigError(
            "the script that defines the reward starts training when a worker imports it; put that part under "
            "`if __name__ == '__main__':`, or move the reward to a module"
        )


def _main_script() -> MainScript | None:
    module = sys.modules["__main__"]
    path = getattr(module, "__file__", None)
    if path is None or not os.path.exists(path):
        return None
    spec = getattr(module, "__spec__", None)
    return MainScript(os.path.abspath(path), spec.name if spec else None)
