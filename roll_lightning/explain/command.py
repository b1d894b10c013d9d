"""``roll-lightning explain``: puts a run together as ``fit`` does, and says what it would train."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from roll_lightning.datamodules.base import PlannedDataModule
from roll_lightning.errors import ConfigError
from roll_lightning.explain.text import render
from roll_lightning.modules.language import LanguageModule


def explain(trainer: Trainer, module: LightningModule, data: LightningDataModule | None) -> str:
    """What these would train, as text; no model is loaded.

    A module of one's own takes part by a method ``explanation``, which gives
    :class:`~roll_lightning.explain.text.Section` objects.

    Raises:
        ConfigError: settings contradict each other, as ``fit`` would say; or the module cannot be explained.
    """
    if not hasattr(module, "explanation"):
        raise ConfigError(
            f"model is {type(module).__name__}, which has no method explanation; explain knows RLVRModule, SFTModule "
            f"and their subclasses, and any module with such a method"
        )
    if isinstance(module, LanguageModule) and not isinstance(data, PlannedDataModule):
        found = "not set" if data is None else f"{type(data).__name__}, which plans no batches"
        raise ConfigError(f"data is {found}; name the DataModule of {type(module).__name__}, as in its config")
    attach(trainer, module, data)
    if isinstance(data, PlannedDataModule):
        data.check_settings()
    if isinstance(module, LanguageModule):
        module.check_settings("fit")
    sections: Any = module.explanation()
    return render(sections)


def attach(trainer: Trainer, module: LightningModule, data: LightningDataModule | None) -> None:
    """Make the three known to one another, as the trainer does when a run begins."""
    holder: Any = trainer
    module.trainer, holder.datamodule = trainer, data
    if data is not None:
        data.trainer = trainer
