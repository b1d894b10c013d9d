"""The Hugging Face hub: what can be a name on it, and whether it can be reached, found out in seconds."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

_SECONDS = 10
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

Kind = Literal["dataset", "model"]


def is_hub_name(path: str) -> bool:
    """Whether a string can be a name on the hub: ``owner/name``, or ``name``."""
    return _NAME.fullmatch(path) is not None


def is_below_local_folder(path: str) -> bool:
    """Whether a path ``a/b`` begins with a folder ``a`` that is here, so that a local file or folder is meant."""
    parent = Path(path).parent
    return parent != Path() and parent.is_dir()


def hub_fault(path: str, kind: Kind, revision: str | None = None) -> str | None:
    """Ask the hub once for a model or dataset; the libraries by themselves try for most of a minute to reach it.

    Returns:
        What is wrong and what to do, as a sentence that begins with ``path``; ``None`` when the hub has it, or when
        ``HF_HUB_OFFLINE`` is set and nobody is asked.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    if HF_HUB_OFFLINE:
        return None
    try:
        HfApi().repo_info(path, repo_type=kind, revision=revision, timeout=_SECONDS)
    except GatedRepoError:
        return (
            f"{path} is a gated {kind}; accept its terms on its page of the hub, and set HF_TOKEN (or: hf auth login)"
        )
    except RevisionNotFoundError:
        return f"{path} has no revision {revision!r} on the Hugging Face hub"
    except RepositoryNotFoundError:
        return (
            f"{path} is no file or folder here{_near(path)}, and the Hugging Face hub has no such {kind} (for a "
            "private one set HF_TOKEN, or: hf auth login)"
        )
    except HfHubHTTPError as error:
        return f"the Hugging Face hub does not give {path}: {_first_line(error)}"
    # Each version of huggingface_hub has a client of its own, with its own types of network errors.
    except Exception as error:
        return unreachable(path, kind, _first_line(error))
    return None


def unreachable(path: str, kind: Kind, why: str) -> str:
    """What to do about a model or dataset that would have to come from a hub which cannot be reached."""
    cached = "" if why.startswith("HF_HUB_OFFLINE") else " (or set HF_HUB_OFFLINE=1 to use a copy in the cache)"
    type_of = "--repo-type dataset " if kind == "dataset" else ""
    return (
        f"{path} is no file or folder here{_near(path)}, so it is looked for on the Hugging Face hub, which cannot be "
        f"reached: {why}; where there is network run: hf download {path} {type_of}--local-dir FOLDER, and give FOLDER "
        f"instead{cached}"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _near(path: str) -> str:
    parent = Path(path).parent
    names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    near = get_close_matches(Path(path).name, names, n=1)
    return f" (did you mean {parent / near[0]}?)" if near else ""
