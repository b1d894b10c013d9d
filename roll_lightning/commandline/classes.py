"""Classes that a config names, and the arguments they take."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonargparse._parameter_resolvers import get_signature_parameters

from roll_lightning.commandline.suggest import listed, nearest
from roll_lightning.errors import ConfigError

# Their files hold everything that a config may name by its short name.
PACKAGES = (
    "modules",
    "datamodules",
    "data",
    "callbacks",
    "collectors",
    "engines",
    "rewards",
    "envs",
    "functional",
    "strategies",
)


@dataclass(frozen=True)
class Parameter:
    """An argument of a class: its type hint (``Any`` without one) and whether it has no default."""

    name: str
    hint: Any
    required: bool


@lru_cache(maxsize=1)
def import_known_classes() -> None:
    """Import the files of :data:`PACKAGES`, so that short names resolve."""
    import roll_lightning

    for name in PACKAGES:
        try:
            package = importlib.import_module(f"roll_lightning.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"roll_lightning.{name}":
                raise
            continue
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    assert roll_lightning.__version__


@lru_cache(maxsize=256)
def parameters(cls: type) -> dict[str, Parameter]:
    """Arguments of a class by name, those it hands on as ``**kwargs`` to its bases included."""
    found = {}
    for parameter in get_signature_parameters(cls, None):
        missing = parameter.default is inspect.Parameter.empty
        hint = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if not variadic:
            found[parameter.name] = Parameter(parameter.name, hint, missing)
    return found


def class_path(cls: type) -> str:
    """Where a class is imported from."""
    return f"{cls.__module__}.{cls.__qualname__}"


def find_class(name: str, bases: Sequence[type], key: str) -> type:
    """The class that ``name`` means at ``key``: a dotted path, or the short name of a subclass of ``bases``.

    Raises:
        ConfigError: there is none, there are several, or it is no subclass.
    """
    cls = _import(name, key) if "." in name else _by_short_name(name, bases, key)
    if not (inspect.isclass(cls) and issubclass(cls, tuple(bases))):
        # A function that returns a module is no class; LightningCLI takes those in Python only.
        wanted = " or ".join(base.__name__ for base in bases)
        raise ConfigError(f"{key} is {name}, which is no {wanted}{_choices(bases)}")
    if inspect.isabstract(cls):
        raise ConfigError(f"{key} is {name}, which is abstract{_choices(bases)}")
    return cls


def concrete_subclasses(bases: Sequence[type]) -> dict[str, list[type]]:
    """Imported subclasses that can be instantiated, by short name."""
    found: dict[str, list[type]] = {}
    every: dict[type, None] = {cls: None for base in bases for cls in _tree_of(base)}
    for cls in every:
        if not (inspect.isabstract(cls) or cls.__name__.startswith("_") or "<locals>" in cls.__qualname__):
            found.setdefault(cls.__name__, []).append(cls)
    return found


def _tree_of(base: type) -> Iterator[type]:
    yield base
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        yield from _tree_of(subclass)


def _by_short_name(name: str, bases: Sequence[type], key: str) -> type:
    known = concrete_subclasses(bases)
    if name not in known:
        if any(cls.__name__ == name for base in bases for cls in _tree_of(base)):
            raise ConfigError(f"{key} is {name}, which is abstract{_choices(bases)}")
        found = nearest(name, known)
        way_out = f"; did you mean {found}?" if found else _choices(bases)
        raise ConfigError(f"{key} is {name}, which is no known class{way_out}")
    if len(known[name]) > 1:
        # lightning.pytorch re-exports are one class; two classes of one name need the full path.
        paths = sorted(class_path(cls) for cls in known[name])
        raise ConfigError(f"{key} is {name}, which may be any of {', '.join(paths)}; write the one you mean in full")
    return known[name][0]


def _choices(bases: Sequence[type]) -> str:
    ours = sorted(
        n for n, all_ in concrete_subclasses(bases).items() if all_[0].__module__.startswith("roll_lightning")
    )
    return f"; choose one of {listed(ours)}, or your own by its dotted path" if ours else ""


def _import(name: str, key: str) -> Any:
    module_name, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise ConfigError(
                f"{key} is {name}, but there is no module {missing} in this folder or among the installed packages"
            ) from error
        raise ConfigError(f"{key} is {name}, but importing {module_name} failed: no module {missing}") from error
    except Exception as error:
        raise ConfigError(
            f"{key} is {name}, but importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        found = nearest(attribute, [n for n in dir(module) if inspect.isclass(getattr(module, n))])
        way_out = f"; did you mean {module_name}.{found}?" if found else ""
        raise ConfigError(f"{key} is {name}, but {module_name} has no {attribute}{way_out}")
    return getattr(module, attribute)
