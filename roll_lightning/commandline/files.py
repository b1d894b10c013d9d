"""Config files and the YAML in them. Imports nothing heavy, so that a wrong file shows at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from roll_lightning.commandline.suggest import nearest
from roll_lightning.errors import ConfigError

# YAML 1.2: 1e-3 is a number, too (PyYAML reads YAML 1.1, where it is a string).
FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class ConfigLoader(yaml.SafeLoader):
    """Safe YAML where ``1e-3`` is a number, dates stay text, and a key may stand only once in a mapping."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping, refusing a key that stands twice."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key_node.value} stands twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


ConfigLoader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


class ConfigDumper(yaml.SafeDumper):
    """Writes what :class:`ConfigLoader` reads back as the same: a string that looks like a number is quoted."""

    yaml_implicit_resolvers = ConfigLoader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write equal parts twice instead of by reference."""
        return True


def dump_yaml(tree: dict[str, Any]) -> str:
    """A tree of plain values as YAML, keys in their order."""
    return yaml.dump(tree, Dumper=ConfigDumper, sort_keys=False, allow_unicode=True, width=120)


def read_text(text: str) -> Any:
    """A value typed in the shell: YAML, or the text itself where it is none."""
    try:
        return yaml.load(text, Loader=ConfigLoader)
    except yaml.YAMLError:
        return str(text)


def read_config(file: str) -> dict[str, Any]:
    """The mapping in a config file; an empty file is an empty mapping.

    Raises:
        ConfigError: the file is missing, is no YAML (with the line), or holds something else than a mapping.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(_missing(file, path))
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=ConfigLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{file}{line} is not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"--config {file} cannot be read: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} holds a {type(tree).__name__}; a config is a mapping of trainer, model, data, ...")
    return tree


def _missing(file: str, path: Path) -> str:
    if path.is_dir():
        return f"--config {file} is a folder; give a YAML file" + _did_you_mean(path, path / "config.yaml")
    message = f"--config {file} does not exist"
    if not path.parent.is_dir():
        return message + f": there is no folder {path.parent}" + _did_you_mean(path.parent.parent, path.parent)
    return message + _did_you_mean(path.parent, path)


def _did_you_mean(folder: Path, wanted: Path) -> str:
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    found = nearest(wanted.name, names)
    return f"; did you mean {folder / found}?" if found else ""
