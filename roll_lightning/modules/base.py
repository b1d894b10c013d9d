"""The base of every algorithm: the exact scale of a loss, the optimizer, and exact resuming."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule
from torch import Tensor

from roll_lightning.callbacks.exact_resume import ExactResume
from roll_lightning.data.batch import TokenBatch, WindowTotals
from roll_lightning.errors import ConfigError
from roll_lightning.strategies.scale import data_parallel_size, loss_scale


class BaseModule(LightningModule):
    """What all algorithms share, language or not."""

    def configure_callbacks(self) -> list[Callback]:
        """Resuming is exact without anybody asking for it."""
        here = any(isinstance(callback, ExactResume) for callback in self.trainer.callbacks)
        return [] if here else [ExactResume()]

    def scale_loss(self, share: Tensor) -> Tensor:
        """Turn a micro-batch's share of the window loss into what ``training_step`` returns.

        Lightning and the strategy then divide it back, so that the optimizer sees the gradient of the sum of all
        shares of the window, over micro-batches and ranks.
        """
        return share * loss_scale(self.trainer)

    def window_of(self, batch: TokenBatch) -> WindowTotals:
        """The window of a micro-batch. A loader that is not ours gives none: then the batch is its own window.

        Raises:
            ConfigError: it gives none although an optimizer step has several micro-batches, whose denominators only
                the planner knows.
        """
        if batch.window is not None:
            return batch.window
        ranks, accumulate = data_parallel_size(self.trainer), self.trainer.accumulate_grad_batches
        if ranks * accumulate > 1:
            raise ConfigError(
                f"this DataLoader's batches carry no window totals, and an optimizer step has {ranks} ranks x "
                f"{accumulate} micro-batches; use one of our DataModules (or data.loader.PlannedLoader), or one rank "
                f"with accumulate_grad_batches=1"
            )
        return WindowTotals(0, int(batch.loss_mask.sum()), int(batch.loss_mask.any(1).sum()))

    def on_train_start(self) -> None:
        """Models from ``from_pretrained`` are in eval mode and Lightning leaves them so."""
        self.train()
