"""Exports a Hugging Face folder with every checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from roll_lightning.callbacks.disk import room_on_disk
from roll_lightning.errors import CheckpointError
from roll_lightning.models.quiet import no_progress_bars
from roll_lightning.strategies.together import together


class HFExport(Callback):
    """Writes weights, config and tokenizer so that ``transformers`` loads them; the newest export replaces the last.

    Args:
        dirpath: folder of the export; ``None`` takes ``<trainer.default_root_dir>/hf``.
        per_step: keep one folder per checkpoint, ``<dirpath>/step=<n>``, instead of the newest only.
    """

    def __init__(self, dirpath: str | None = None, per_step: bool = False) -> None:
        self.dirpath = dirpath
        self.per_step = per_step

    def folder(self, trainer: Trainer) -> Path:
        """Where the next export goes."""
        root = Path(self.dirpath or Path(trainer.default_root_dir) / "hf")
        return root / f"step={trainer.global_step}" if self.per_step else root

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Export what the checkpoint holds; collective.

        Raises:
            CheckpointError: the disk is full; the last export and the earlier checkpoints are whole.
        """
        module: Any = pl_module
        weights: dict[str, Tensor] = {}
        for name, value in module.named_weights():
            if trainer.is_global_zero:
                weights[name] = value.cpu().clone()
        folder = self.folder(trainer)
        together(lambda: _write(folder, module, weights) if trainer.is_global_zero else None)


def _write(target: Path, module: Any, weights: dict[str, Tensor]) -> None:
    """Write beside the target, then put it in its place."""
    partial = target.with_name(target.name + ".partial")
    old = target.with_name(target.name + ".old")
    if old.exists() and not target.exists():
        # A kill between the two renames below: this is the only whole export.
        os.replace(old, target)
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    hf = module.policy.hf
    weights |= {name: buffer for name, buffer in hf.state_dict().items() if name not in weights and _own(name, hf)}
    partial.mkdir(parents=True)
    try:
        with room_on_disk(partial, "the Hugging Face export"), no_progress_bars():
            hf.save_pretrained(partial, state_dict=weights)
            module.tokenizer.save_pretrained(partial)
    except CheckpointError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if target.exists():
        os.replace(target, old)
    os.replace(partial, target)
    shutil.rmtree(old, ignore_errors=True)


def _own(name: str, hf: Any) -> bool:
    """Whether a state-dict entry is a buffer (a tied weight is saved under its first name only)."""
    return name in dict(hf.named_buffers())
