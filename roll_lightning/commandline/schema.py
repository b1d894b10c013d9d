"""The groups of a config, and a whole tree held against them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

from roll_lightning.callbacks.checkpoint import RunCheckpoint
from roll_lightning.callbacks.hf_export import HFExport
from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.commandline.classes import class_path, find_class, import_known_classes, parameters
from roll_lightning.commandline.hints import is_class_hint, members
from roll_lightning.commandline.resolve import Resolver
from roll_lightning.commandline.suggest import nearest
from roll_lightning.commandline.tree import Tree, class_node
from roll_lightning.errors import ConfigError
from roll_lightning.modules.language import LanguageModule

# Groups beside trainer, model and data; each is a callback whose arguments stand in it without class_path.
CALLBACK_GROUPS: dict[str, type[Callback]] = {
    "rollout": RolloutCallback,
    "checkpoint": RunCheckpoint,
    "export": HFExport,
}
SCALARS: dict[str, Any] = {"seed_everything": bool | int, "ckpt_path": str | None, "weights_only": bool | None}
TOP_LEVEL = ("seed_everything", "trainer", "model", "data", *CALLBACK_GROUPS, "ckpt_path", "weights_only")


def resolve_tree(tree: Tree) -> Tree:
    """Check a merged tree and fill in the groups that a run always has.

    ``checkpoint`` is there unless it is null; so is ``export`` with a language model. ``rollout`` is there when given.

    Raises:
        ConfigError: the first fault that is found, with its way out.
    """
    import_known_classes()
    resolver = Resolver(_elsewhere(tree))
    for key in tree:
        if key not in TOP_LEVEL:
            raise resolver.unknown_key("", str(key), TOP_LEVEL)
    if not tree.get("model"):
        raise ConfigError(
            "missing key model; name a LightningModule, e.g. --config configs/sft.yaml or --model SFTModule"
        )
    resolved = {key: resolver.value(tree[key], hint, key) for key, hint in SCALARS.items() if key in tree}
    resolved["trainer"] = resolver.arguments(tree.get("trainer") or {}, Trainer, "trainer")
    resolved["model"] = resolver.value(tree["model"], LightningModule, "model")
    resolved["data"] = resolver.value(tree.get("data"), LightningDataModule | None, "data")
    for name, cls in CALLBACK_GROUPS.items():
        resolved[name] = _callback_group(name, cls, tree, resolver)
    return _with_defaults(resolved, tree)


def _callback_group(name: str, cls: type[Callback], tree: Tree, resolver: Resolver) -> Tree | None:
    """A group's arguments, as ``class_path`` and ``init_args`` where it names another class than its own."""
    given = (
        resolver.value(tree.get(name), bool | None | cls, name) if isinstance(tree.get(name), str) else tree.get(name)
    )
    if given is None or given is False:
        return None
    if isinstance(given, dict) and ("class_path" in given or "init_args" in given):
        node = resolver.klass({"class_path": class_path(cls), **given}, [cls], name)
        return node["init_args"] if node["class_path"] == class_path(cls) else node
    return resolver.arguments(given, cls, name)


def _with_defaults(resolved: Tree, tree: Tree) -> Tree:
    model = find_class(resolved["model"]["class_path"], [LightningModule], "model")
    language = issubclass(model, LanguageModule)
    if "checkpoint" not in tree and resolved["trainer"].get("enable_checkpointing") is not False:
        resolved["checkpoint"] = {}
    if "export" not in tree and language:
        resolved["export"] = {}
    if resolved["export"] is not None and not language:
        raise ConfigError(f"export is set, but {model.__name__} is no LanguageModule; remove the export group")
    if resolved["rollout"] is not None and not hasattr(model, "make_experience"):
        raise ConfigError(
            f"rollout is set, but {model.__name__} does not learn from rollouts; remove the rollout group"
        )
    return resolved


def _elsewhere(tree: Tree) -> Any:
    """Finds where a key that stands in the wrong place belongs."""
    paths = list(_known_paths(tree))

    def find(name: str) -> str | None:
        exact = [path for path in paths if path.rsplit(".", 1)[-1] == name]
        if exact:
            # The least deep, of those the first: what a class is mainly about leads its signature.
            return min(exact, key=lambda path: path.count("."))
        last = nearest(name, {path.rsplit(".", 1)[-1] for path in paths}, cutoff=0.85)
        return next((path for path in paths if path.rsplit(".", 1)[-1] == last), None)

    return find


def _known_paths(tree: Tree) -> Iterator[str]:
    yield from TOP_LEVEL
    yield from _paths_below("trainer", Trainer, tree.get("trainer"))
    for name, cls in CALLBACK_GROUPS.items():
        yield from _paths_below(name, cls, tree.get(name))
    for name, base in (("model", LightningModule), ("data", LightningDataModule)):
        yield from _paths_of_class(name, base, tree.get(name))


def _paths_of_class(key: str, base: type, node: Any) -> Iterator[str]:
    """Paths below a class that the tree names, as far as it can be found."""
    name = node.get("class_path") if isinstance(node, dict) else node
    if isinstance(name, str):
        with suppress(ConfigError):
            yield from _paths_below(key, find_class(str(name), [base], key), node)


def _paths_below(key: str, cls: type, node: Any = None) -> Iterator[str]:
    given = (class_node(node).get("init_args") or node) if isinstance(node, dict) else {}
    for parameter in parameters(cls).values():
        path = f"{key}.{parameter.name}"
        yield path
        for part in members(parameter.hint):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from _paths_below(path, part)
            elif is_class_hint(part):
                yield from _paths_of_class(path, part, given.get(parameter.name))
