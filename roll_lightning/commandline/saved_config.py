"""Keeps the resolved config beside the checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer


class SavedConfig(Callback):
    """Writes ``<trainer.default_root_dir>/config.yaml`` when training starts; a resumed run replaces it.

    Args:
        text: the config, without secrets.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Write it whole or not at all, on rank 0."""
        if stage != "fit" or trainer.fast_dev_run or not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / "config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self.text, encoding="utf-8")
        os.replace(partial, path)
