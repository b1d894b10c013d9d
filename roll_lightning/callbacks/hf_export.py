"""Exports a Hugging Face folder with every checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from roll_lightning.callbacks.disk import room_on_disk
from roll_lightning.errors import CheckpointError, ConfigError
from roll_lightning.models.adapter_files import save_adapter
from roll_lightning.models.loading import plain_model
from roll_lightning.models.quiet import no_progress_bars
from roll_lightning.strategies.together import together


class HFExport(Callback):
    """Writes weights, config and tokenizer so that ``transformers`` loads them; the newest export replaces the last.

    A policy with LoRA adapters is exported as an adapter in PEFT's format, or merged as a whole model. A critic goes
    into the folder ``critic`` inside, as a token classifier with one label; ``model.critic.path`` starts from it.

    Args:
        dirpath: folder of the export; ``None`` takes ``<trainer.default_root_dir>/hf``.
        per_step: keep one folder per checkpoint, ``<dirpath>/step=<n>``, instead of the newest only.
        merge: add LoRA adapters to the weights and export the whole model.

    Raises:
        ConfigError: at set-up, for ``merge`` without LoRA.
    """

    def __init__(self, dirpath: str | None = None, per_step: bool = False, merge: bool = False) -> None:
        self.dirpath = dirpath
        self.per_step = per_step
        self.merge = merge

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what would not be done."""
        module: Any = pl_module
        if self.merge and module.policy_config.lora is None:
            raise ConfigError("export.merge is true, but model.policy.lora is not set: there is nothing to merge")
        if stage == "fit":
            self._refuse_own_start(trainer, module)

    def _refuse_own_start(self, trainer: Trainer, module: Any) -> None:
        """An export must not replace the folder that the run begins with."""
        config = getattr(module, "policy_config", None)
        critic = getattr(module, "critic_config", None)
        starts = [] if config is None else [config.path, config.lora.path if config.lora is not None else None]
        starts += [] if critic is None else [critic.path]
        target = self.folder(trainer).resolve()
        for start in starts:
            if start and Path(start).expanduser().resolve() in (target, target / "critic"):
                raise ConfigError(
                    f"the export would replace {start}, which the run begins with; choose another "
                    f"trainer.default_root_dir, or set export.dirpath"
                )

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
        adapter = module.policy_config.lora is not None and not self.merge
        named = module.named_adapter_weights() if adapter else module.named_weights()
        weights = _on_first_rank(trainer, named)
        others = [(name, model, _on_first_rank(trainer, named)) for name, model, named in module.exports_beside()]
        folder = self.folder(trainer)

        def write(beside: Path) -> None:
            (_write_adapter if adapter else _write_model)(beside, module, weights)
            for name, model, tensors in others:
                model.save_pretrained(beside / name, state_dict=tensors)

        together(lambda: _replace(folder, write) if trainer.is_global_zero else None)


def _on_first_rank(trainer: Trainer, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies on the CPU; empty on all other ranks, which run through the weights for the collectives' sake."""
    return {name: value.cpu().clone() for name, value in named if trainer.is_global_zero}


def _replace(target: Path, write: Callable[[Path], None]) -> None:
    """Write beside the target, then put it in its place."""
    beside = target.with_name(target.name + ".partial")
    old = target.with_name(target.name + ".old")
    if old.exists() and not target.exists():
        # A kill between the two renames below: this is the only whole export.
        os.replace(old, target)
    for leftover in (beside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        with room_on_disk(beside, "the Hugging Face export"), no_progress_bars():
            write(beside)
    except CheckpointError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if target.exists():
        os.replace(target, old)
    os.replace(beside, target)
    shutil.rmtree(old, ignore_errors=True)


def _write_model(folder: Path, module: Any, weights: dict[str, Tensor]) -> None:
    hf = module.policy.hf
    weights |= {name: buffer for name, buffer in hf.state_dict().items() if name not in weights and _own(name, hf)}
    if module.policy_config.lora is not None:
        # Saved through a plain model: the policy's modules are named, and may be quantised, as adapters want it.
        generation = hf.generation_config
        hf = plain_model(hf.config)
        hf.generation_config = generation
    hf.save_pretrained(folder, state_dict=weights)
    module.tokenizer.save_pretrained(folder)


def _write_adapter(folder: Path, module: Any, weights: dict[str, Tensor]) -> None:
    save_adapter(folder, module.policy.hf, weights, module.policy_config.path, module.policy.base_digest)
    module.tokenizer.save_pretrained(folder)


def _own(name: str, hf: Any) -> bool:
    """Whether a state-dict entry is a buffer (a tied weight is saved under its first name only)."""
    return name in dict(hf.named_buffers())
