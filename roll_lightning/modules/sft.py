"""Supervised fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from roll_lightning.data.batch import TokenBatch
from roll_lightning.errors import ConfigError
from roll_lightning.functional.aggregation import aggregate
from roll_lightning.metrics.weighted import WeightedMeans
from roll_lightning.models.loading import max_positions
from roll_lightning.modules.language import LanguageModule

if TYPE_CHECKING:
    from roll_lightning.explain.text import Section


class SFTModule(LanguageModule):
    """Cross-entropy of the loss tokens, averaged over all loss tokens of the optimizer window.

    Takes the arguments of :class:`~roll_lightning.modules.language.LanguageModule`.
    """

    metric_prefix = "sft_train"
    val_metrics: WeightedMeans

    def setup(self, stage: str) -> None:
        """Find wrong paths, and rows that are too long for the model, before it loads.

        Raises:
            ConfigError: the model has too few positions.
        """
        super().setup(stage)
        data: Any = self.trainer.datamodule
        positions = max_positions(self.policy_config)
        if data is None or positions is None:
            return
        longest = max((len(row.input_ids) for row in [*data.train_rows, *data.val_rows]), default=0)
        if longest > positions:
            raise ConfigError(
                f"the longest row has {longest} tokens, but the model of {self.policy_config.path} has {positions} "
                f"positions; set data.max_length to {positions} or less"
            )

    def explanation(self) -> list[Section]:
        """What ``roll-lightning explain`` says."""
        from roll_lightning.explain.sft import explain_sft

        return explain_sft(self)

    def make_window_metrics(self) -> WeightedMeans:
        """The loss."""
        return WeightedMeans(["sft_train/loss"])

    def training_step(self, batch: TokenBatch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """This micro-batch's share of the window loss."""
        window = self.window_of(batch)
        loss = -self.token_logprobs(batch).logprobs
        self.window_metrics.update_masked("sft_train/loss", loss, batch.loss_mask)
        share = aggregate(loss, batch.loss_mask, "token-mean", tokens=window.tokens, sequences=window.sequences)
        return self.scale_loss(share)

    def on_validation_start(self) -> None:
        """Begin a new mean."""
        self.val_metrics = WeightedMeans(["sft_train/val_loss"]).to(self.device)

    def validation_step(self, batch: TokenBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Add the batch's tokens to the validation loss."""
        loss = -self.token_logprobs(batch).logprobs
        self.val_metrics.update_masked("sft_train/val_loss", loss, batch.loss_mask)

    def on_validation_epoch_end(self) -> None:
        """Log loss and perplexity over all validation tokens of all ranks."""
        values = self.val_metrics.pop()
        if "sft_train/val_loss" in values:
            values["sft_train/val_perplexity"] = values["sft_train/val_loss"].exp()
        self.log_dict(values, prog_bar=True)

    on_test_start = on_validation_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end
