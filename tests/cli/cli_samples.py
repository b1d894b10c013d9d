"""A user's own project: a model, data and callbacks that the package knows nothing of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import nn
from torch.utils.data import DataLoader

from roll_lightning.data.loader import FixedLoader
from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.errors import DataError


@dataclass
class Size:
    width: int = 4
    kind: Literal["thin", "thick"] = "thin"
    dropout: float | None = None


class Scale(ABC):
    @abstractmethod
    def __call__(self, loss: torch.Tensor) -> torch.Tensor: ...


class Constant(Scale):
    def __init__(self, factor: float = 1.0, access_token: str | None = None) -> None:
        self.factor = factor

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor


class Power(Scale):
    def __init__(self, exponent: int) -> None:
        self.exponent = exponent

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        return loss**self.exponent


class TinyModel(LightningModule):
    built: list[TinyModel] = []  # noqa: RUF012

    def __init__(
        self,
        name: str,
        size: Size = Size(),  # noqa: B008
        scale: Scale | None = None,
        scales: list[Scale] | None = None,
        table: dict[str, int] | None = None,
        api_key: str | None = None,
        max_new_tokens: int = 3,
        step: Literal["learn", "bad_data", "bug", "ctrl_c"] = "learn",
    ) -> None:
        super().__init__()
        TinyModel.built.append(self)
        self.name, self.size, self.scale, self.scales, self.table = name, size, scale, scales, table
        self.step = step
        self.layer = nn.Linear(size.width, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.step == "bad_data":
            raise DataError("rows.jsonl:3 has no\n   column answer")
        if self.step == "bug":
            raise ZeroDivisionError("a bug of the user")
        if self.step == "ctrl_c":
            raise KeyboardInterrupt
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return self.scale(loss) if self.scale else loss

    validation_step = training_step
    test_step = training_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class WiderModel(TinyModel):
    """A subclass with one more argument."""

    def __init__(self, extra: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.extra = extra


class OtherModel(LightningModule):
    def __init__(self, name: str = "other") -> None:
        super().__init__()
        self.name = name


class CrashingModel(LightningModule):
    def __init__(self) -> None:
        raise ZeroDivisionError("a bug in the user's constructor")


class RolloutModel(TinyModel):
    """Predicts three rollouts for each prompt number of a batch."""

    def make_experience(self, rollouts: Any, iteration: int) -> None: ...

    def predict_step(self, batch: Any, batch_idx: int) -> list[Rollout]:
        return [_rollout(number, group, sample) for group, number in enumerate(batch) for sample in range(3)]


def _rollout(number: int, group: int, sample: int) -> Rollout:
    prompt = Prompt(id=f"p{number}", token_ids=(1, 2), text=f"prompt {number} ä")
    return Rollout(
        prompt=prompt,
        group=group,
        sample=sample,
        token_ids=[1, 2, number],
        loss_mask=[0, 0, 1],
        logprobs=[0.0, 0.0, -1.0],
        text=f"answer {sample}",
        finish_reason="stop",
        weight_version=(0, 0),
        score=None if sample == 2 else 1.0,
        reward=None if sample == 2 else 0.5,
        components={"exact": 1.0},
    )


class TinyData(LightningDataModule):
    def __init__(self, batch_size: int = 2, prompts: int = 5, prompt_batch: int = 4) -> None:
        super().__init__()
        self.batch_size, self.prompts, self.prompt_batch = batch_size, prompts, prompt_batch

    def train_dataloader(self) -> DataLoader:
        return DataLoader(torch.ones(4, 4), batch_size=self.batch_size)

    val_dataloader = train_dataloader
    test_dataloader = train_dataloader

    def predict_dataloader(self) -> FixedLoader:
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        starts = range(0, self.prompts, self.prompt_batch)
        return FixedLoader([list(range(s, min(s + self.prompt_batch, self.prompts)))[rank::ranks] for s in starts])


class CountBatches(Callback):
    counts: list[int] = []  # noqa: RUF012

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def on_train_batch_end(self, *_: Any) -> None:
        self.count += 1
        CountBatches.counts.append(self.count)


class OwnWriter(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch")


class NotAModel:
    pass
