"""Reading datasets of the Hugging Face hub."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from roll_lightning.data.encode import first_line
from roll_lightning.data.jsonl import Row
from roll_lightning.data.readers.arrow import dataset_rows
from roll_lightning.data.readers.splits import choose_split
from roll_lightning.errors import DataError

_SECONDS = 10
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(source: str) -> bool:
    """Whether a string can be the name of a dataset on the hub: ``owner/name``, or ``name``."""
    return _NAME.fullmatch(source) is not None


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
    """Ask the hub once; ``datasets`` by itself tries for half a minute to reach one that is not there."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    if HF_HUB_OFFLINE:
        if revision is not None:
            # Without the hub `datasets` takes the newest copy, whatever its revision is.
            raise DataError(
                f"HF_HUB_OFFLINE is set, and the cache does not tell which copy of {path} is the revision {revision}; "
                "unset one of them"
            )
        return
    try:
        HfApi().dataset_info(path, revision=revision, timeout=_SECONDS)
    except GatedRepoError:
        raise DataError(
            f"{path} is a gated dataset; accept its terms on its page of the hub, and set HF_TOKEN (or: hf auth login)"
        ) from None
    except RevisionNotFoundError:
        raise DataError(f"{path} has no revision {revision!r} on the Hugging Face hub") from None
    except RepositoryNotFoundError:
        raise DataError(
            f"{path} is no file or folder here{_near(path)}, and the Hugging Face hub has no such dataset (for a "
            "private one set HF_TOKEN, or: hf auth login)"
        ) from None
    except HfHubHTTPError as error:
        raise DataError(f"the Hugging Face hub does not give {path}: {first_line(error)}") from None
    # Each version of huggingface_hub has a client of its own, with its own types of network errors.
    except Exception as error:
        raise DataError(_unreachable(path, first_line(error))) from None


def _load_fault(path: str, error: Exception) -> str:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    lines = str(error).strip().splitlines()
    if lines and lines[0].startswith("Config name is missing"):
        return (
            f"{path} has several configurations: {' '.join(lines[1:2]).rpartition('configs: ')[2]}; choose with "
            f"{{class_path: HubDataset, init_args: {{path: {path}, name: ...}}}}"
        )
    if HF_HUB_OFFLINE and isinstance(error, ConnectionError):
        return _unreachable(path, "HF_HUB_OFFLINE is set, and it is not in the cache")
    return f"{path} cannot be loaded from the Hugging Face hub: {first_line(error)}"


def _unreachable(path: str, why: str) -> str:
    cached = "" if why.startswith("HF_HUB_OFFLINE") else " (or set HF_HUB_OFFLINE=1 to use a copy in the cache)"
    return (
        f"{path} is no file or folder here{_near(path)}, so it is looked for on the Hugging Face hub, which cannot be "
        f"reached: {why}; where there is network run: hf download {path} --repo-type dataset --local-dir FOLDER, and "
        f"give FOLDER instead{cached}"
    )


def _near(path: str) -> str:
    parent = Path(path).parent
    names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    near = get_close_matches(Path(path).name, names, n=1)
    return f" (did you mean {parent / near[0]}?)" if near else ""
