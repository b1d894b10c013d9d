"""Where weights and rows come from, and whether they are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roll_lightning.data.readers.files import file_suffix
from roll_lightning.data.sources import RowSource, read_rows, source_name
from roll_lightning.hub import is_below_local_folder, is_hub_name
from roll_lightning.models.loading import PolicyConfig

# Such files are read in a fraction of a second.
COUNTED_BYTES = 4_000_000


def counted_rows(source: RowSource | str | None) -> int | None:
    """The rows of a small local file; ``None`` for every other source."""
    if not isinstance(source, str):
        return None
    path = Path(source).expanduser()
    if not path.is_file() or file_suffix(path) is None or path.stat().st_size > COUNTED_BYTES:
        return None
    return len(read_rows(source))


def source_state(source: RowSource | str | None) -> str:
    """A source of rows, and whether it is there."""
    if source is None:
        return "none"
    if isinstance(source, RowSource):
        return f"{source_name(source)} ({type(source).__name__})"
    return _state(source)


def policy_state(config: PolicyConfig) -> str:
    """Where a model comes from, and whether it is there."""
    start = "random weights after the config of " if config.from_scratch else ""
    return start + _state(config.path)


def _state(path: str) -> str:
    if Path(path).expanduser().exists():
        return path
    if is_hub_name(path) and not is_below_local_folder(path):
        return f"{path} (a name on the hub, or not there yet)"
    return f"{path} (not there yet)"


def trained(config: PolicyConfig) -> str:
    """Where a model comes from, and what of it is trained."""
    lora: Any = config.lora
    what = "all weights" if lora is None else "LoRA adapters on frozen weights"
    if config.quantize_bits is not None:
        what += f" of {config.quantize_bits} bits"
    return f"{policy_state(config)}; trained: {what}"
