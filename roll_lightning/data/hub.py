"""A dataset of the hub, or any other source of which a string does not say enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roll_lightning.data.jsonl import Row, require_column
from roll_lightning.data.sources import RowSource
from roll_lightning.errors import ConfigError, DataError


class HubDataset(RowSource):
    """Rows of a dataset with a configuration, a split or a revision, on the Hugging Face hub or in a folder.

    Args:
        path: ``owner/name`` on the hub, or any file or folder that a string may name.
        name: configuration of a hub dataset that has several, e.g. ``main``.
        split: ``None`` takes the only one.
        revision: branch, tag or commit of a hub dataset; ``None`` takes the newest.
        rename: from the columns that the dataset has to those that are wanted, e.g.
            ``{question: prompt, answer: completion}``.

    Raises:
        ConfigError: ``name`` or ``revision`` for what is no hub name.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        split: str | None = None,
        revision: str | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        from roll_lightning.data.readers.path import is_local

        given = {"name": name, "revision": revision}
        for key, value in given.items():
            if value is not None and is_local(path):
                raise ConfigError(f"HubDataset.{key} is {value}, but {path} is a file or folder, which has none")
        self.path, self.config_name, self.split, self.revision = path, name, split, revision
        self.rename = dict(rename or {})
        self.name = "/".join(part for part in (path, name, split) if part)

    def rows(self) -> list[Row]:
        """The rows.

        Raises:
            DataError: they cannot be read, there is no such split, or a column to rename is missing or would lie over
                another one.
        """
        from roll_lightning.data.readers.path import read_path

        rows, has_splits = read_path(self.path, self.split, self.config_name, self.revision)
        if self.split is not None and not has_splits:
            raise DataError(f"HubDataset.split is {self.split}, but {self.path} has no splits; remove it")
        for name in self.rename:
            require_column(rows, name, "HubDataset.rename")
        return [replace(row, values=self._renamed(row)) for row in rows] if self.rename else rows

    def _renamed(self, row: Row) -> dict[str, object]:
        names = [self.rename.get(name, name) for name in row.values]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{row.where} would have {names.count(name)} columns {name!r} after HubDataset.rename")
        return dict(zip(names, row.values.values(), strict=True))
