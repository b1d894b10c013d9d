"""Reading datasets of the Hugging Face hub."""

from __future__ import annotations

from roll_lightning.data.encode import first_line
from roll_lightning.data.jsonl import Row
from roll_lightning.data.readers.arrow import dataset_rows
from roll_lightning.data.readers.splits import choose_split
from roll_lightning.errors import DataError
from roll_lightning.hub import hub_fault, unreachable


def read_hub(path: str, name: str | None, split: str | None, revision: str | None) -> list[Row]:
    """The rows of a dataset on the hub, or of its copy in the cache when ``HF_HUB_OFFLINE`` is set.

    Args:
        path: ``owner/name``.
        name: of the configuration, for a dataset with several.
        split: ``None`` takes the only one.
        revision: branch, tag or commit; ``None`` takes the newest.

    Raises:
        DataError: the hub cannot be reached, has no such dataset, or the dataset cannot be loaded or lacks the split.
    """
    from datasets import load_dataset

    _check_hub(path, revision)
    try:
        loaded = load_dataset(path, name, revision=revision)
    # Whatever is wrong with a dataset on the hub, `datasets` raises as one of many types.
    except Exception as error:
        raise DataError(_load_fault(path, error)) from error
    chosen = choose_split(path, loaded, split)
    return dataset_rows(loaded[chosen], f"{path}/{chosen}")


def _check_hub(path: str, revision: str | None) -> None:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE and revision is not None:
        # Without the hub `datasets` takes the newest copy, whatever its revision is.
        raise DataError(
            f"HF_HUB_OFFLINE is set, and the cache does not tell which copy of {path} is the revision {revision}; "
            "unset one of them"
        )
    fault = hub_fault(path, "dataset", revision)
    if fault is not None:
        raise DataError(fault)


def _load_fault(path: str, error: Exception) -> str:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    lines = str(error).strip().splitlines()
    if lines and lines[0].startswith("Config name is missing"):
        return (
            f"{path} has several configurations: {' '.join(lines[1:2]).rpartition('configs: ')[2]}; choose with "
            f"{{class_path: HubDataset, init_args: {{path: {path}, name: ...}}}}"
        )
    if HF_HUB_OFFLINE and isinstance(error, ConnectionError):
        return unreachable(path, "dataset", "HF_HUB_OFFLINE is set, and it is not in the cache")
    return f"{path} cannot be loaded from the Hugging Face hub: {first_line(error)}"
