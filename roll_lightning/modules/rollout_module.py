"""The base of algorithms that learn from rollouts: validation and prediction by the same collector."""

from __future__ import annotations

from typing import Any

from roll_lightning.collectors.base import RolloutTask
from roll_lightning.data.batch import PromptBatch
from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError
from roll_lightning.metrics.validation import ValidationMetrics
from roll_lightning.modules.language import LanguageModule


class RolloutModule(LanguageModule):
    """Scores answers to held-out prompts in ``validate`` and ``test``, and gives scored rollouts in ``predict``.

    Takes the arguments of :class:`~roll_lightning.modules.language.LanguageModule`. A subclass adds ``make_experience``
    and ``training_step``.
    """

    dropout = False
    val_metrics: ValidationMetrics

    @property
    def _data(self) -> Any:
        return self.trainer.datamodule

    @property
    def _rollout(self) -> Any:
        if not hasattr(type(self._data), "rollout"):
            raise ConfigError(
                f"data is {type(self._data).__name__}, which has no rollouts for {type(self).__name__}; name "
                f"RLVRDataModule"
            )
        return self._data.rollout

    def on_validation_start(self) -> None:
        """Begin new means."""
        self.val_metrics = ValidationMetrics(
            self._rollout.validation.num_samples, sorted({prompt.domain for prompt in self._data.val_prompts})
        ).to(self.device)

    def validation_step(self, batch: PromptBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Score greedy and sampled answers to this rank's held-out prompts."""
        asked = self._rollout.validation
        if asked.greedy:
            self.val_metrics.add_greedy(self._answer(batch, 1, greedy=True))
        if asked.num_samples:
            self.val_metrics.add_sampled(self._answer(batch, asked.num_samples))

    def _answer(self, batch: PromptBatch, samples: int, greedy: bool = False) -> list[Rollout]:
        tasks = [RolloutTask(prompt, group, samples, greedy) for group, prompt in enumerate(batch.prompts)]
        return self._rollout.collect(self.trainer, tasks, 0, "validate")

    def on_validation_epoch_end(self) -> None:
        """Log the share of correct answers over all ranks."""
        values = self.val_metrics.pop()
        for name, value in values.items():
            self.log(name, value, prog_bar=name in ("val_correct/greedy/mean", "val_correct/sampled/mean"))

    on_test_start = on_validation_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: PromptBatch, batch_idx: int) -> list[Rollout]:  # noqa: ARG002
        """Scored rollouts of this rank's prompts."""
        samples = self._rollout.num_generations
        tasks = [RolloutTask(prompt, group, samples) for group, prompt in enumerate(batch.prompts)]
        return self._rollout.collect(self.trainer, tasks, 0, "predict")
