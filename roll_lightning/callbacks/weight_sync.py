"""Keeps the engine's weights those of the trainer."""

from __future__ import annotations

from lightning.pytorch import Callback, Trainer

from roll_lightning.engines.base import Engine, SyncReceipt
from roll_lightning.errors import EngineError


class WeightSyncCallback(Callback):
    """Gives the engine the trainer's weights before it generates with old ones.

    The version of the weights is the number of optimizer steps they have seen. Sync is lazy: whoever is about to
    generate, in training, validation or after a resume, asks for it, and nothing travels when the versions agree.
    """

    def __init__(self) -> None:
        self.receipts = 0
        self.last_receipt: SyncReceipt | None = None

    def ensure_synced(self, trainer: Trainer, engine: Engine) -> SyncReceipt | None:
        """Bring the engine to the trainer's version.

        Raises:
            EngineError: its receipt names another version.
        """
        version = trainer.global_step
        if engine.version == version:
            return None
        receipt = engine.update_weights(trainer.lightning_module.named_weights(), version)
        if receipt.version != version or engine.version != version:
            raise EngineError(
                f"the engine has version {engine.version} after a sync to version {version}; its weights are not the "
                f"trainer's"
            )
        self.receipts += 1
        self.last_receipt = receipt
        return receipt
