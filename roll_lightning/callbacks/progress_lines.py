"""Progress as plain lines, for logs and pipes where a bar shows nothing."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class ProgressLines(Callback):
    """Prints where training is and what the progress bar would show, at most once in ``every_seconds``.

    Args:
        every_seconds: shortest time between two lines.
    """

    def __init__(self, every_seconds: float = 5.0) -> None:
        self.every_seconds = every_seconds
        self._started = self._printed = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Start the clock."""
        self._started = self._printed = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:  # noqa: ARG002
        """Print a line if it is time for one."""
        now = time.monotonic()
        if trainer.is_global_zero and now - self._printed >= self.every_seconds:
            self._printed = now
            print(self.line(trainer, now - self._started), flush=True)

    @staticmethod
    def line(trainer: Trainer, seconds: float) -> str:
        """Epoch, step, metrics and time."""
        epochs = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
        steps = f"/{trainer.max_steps}" if trainer.max_steps > 0 else ""
        metrics = [f"{name} {value:.3f}" for name, value in trainer.progress_bar_metrics.items() if name != "v_num"]
        parts = [f"epoch {trainer.current_epoch + 1}{epochs}", f"step {trainer.global_step}{steps}", *metrics]
        return "  " + "  ".join([*parts, f"{seconds:.0f} s"])
