"""Reading folders: what ``datasets`` saved, or files of rows."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from roll_lightning.data.encode import first_line
from roll_lightning.data.jsonl import Row
from roll_lightning.data.readers.arrow import dataset_rows
from roll_lightning.data.readers.files import SUFFIXES, file_suffix, read_file
from roll_lightning.data.readers.splits import choose_split, split_of
from roll_lightning.errors import DataError

# Written beside the data by `datasets` and the hub; they hold no rows.
_NO_ROWS = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")


def is_saved_dataset(folder: Path) -> bool:
    """Whether ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote the folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def read_saved(folder: Path, split: str | None) -> tuple[list[Row], bool]:
    """The rows of a folder that ``datasets`` saved, and whether it has splits.

    Raises:
        DataError: it cannot be loaded, is empty, or has not this split.
    """
    from datasets import Dataset, load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    # What a damaged folder raises depends on which file is damaged.
    except Exception as error:
        raise DataError(f"{folder} cannot be loaded as a saved dataset: {first_line(error)}") from None
    if isinstance(loaded, Dataset):
        return dataset_rows(loaded, folder.name), False
    chosen = choose_split(str(folder), loaded, split)
    return dataset_rows(loaded[chosen], f"{folder.name}/{chosen}"), True


def read_folder(folder: Path, split: str | None) -> tuple[list[Row], bool]:
    """The rows of all files in a folder and its subfolders, by name, and whether they have splits.

    Hidden files and those of other kinds are left out. Files have splits when the names of files or subfolders say so;
    then only those of ``split`` are read.

    Raises:
        DataError: there are no such files, they are of several kinds, only some belong to a split, or none to this one.
    """
    files = _data_files(folder)
    splits: dict[str | None, list[Path]] = {}
    for file in files:
        splits.setdefault(split_of(file), []).append(file)
    named = sorted(name for name in splits if name is not None)
    if named and None in splits:
        raise DataError(
            f"{folder}: {splits[named[0]][0]} belongs to the split {named[0]} by its name, {splits[None][0]} to none; "
            "give one of the files, or a folder in which all have a split or none"
        )
    if named:
        files = splits[choose_split(str(folder), named, split)]
    # Names as seen from the folder, so that files of one name in two subfolders are told apart.
    rows = [Row(row.line, row.values, str(file)) for file in files for row in read_file(folder / file)]
    return rows, bool(named)


def _data_files(folder: Path) -> list[Path]:
    """Relative paths of the files with rows, sorted."""
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    found = [
        path
        for path in found
        if file_suffix(path) and path.name not in _NO_ROWS and not any(part.startswith(".") for part in path.parts)
    ]
    if not found:
        raise DataError(f"{folder} is no saved dataset and has no file that ends with {', '.join(SUFFIXES)}")
    kinds = [next(group) for _, group in groupby(sorted(found, key=_kind), key=_kind)]
    if len(kinds) > 1:
        raise DataError(
            f"{folder} has files of several kinds ({', '.join(map(str, kinds))}); rows could be there twice: give a "
            "folder with one kind, or one of the files"
        )
    return found


def _kind(path: Path) -> str:
    return str(file_suffix(path)).removesuffix(".gz")
