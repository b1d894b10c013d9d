from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model

from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.sft import SFTModule


class SGDModule(SFTModule):
    """Plain SGD in float64: nothing hides a wrong scale."""

    def configure_model(self) -> None:
        super().configure_model()
        self.policy.double()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Watch(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.in_train_mode: list[bool] = []

    def on_train_batch_start(self, trainer, pl_module, *_) -> None:
        self.in_train_mode.append(all(module.training for module in pl_module.policy.modules()))

    def on_train_epoch_end(self, trainer, *_) -> None:
        self.losses.append(float(trainer.callback_metrics["sft_train/loss"]))


def rows() -> list[dict[str, str]]:
    """Completions of one to six tokens."""
    return [row for digits in (1, 3, 6) for row in sorting_rows(4, digits, answer="completion")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    write_model(folder / "model", weights=True, attention_dropout=0.0)
    write_jsonl(folder / "rows.jsonl", rows())
    return folder


def train(folder, root, accumulate=1, epochs=2, **data) -> tuple[SGDModule, Watch]:
    watch = Watch()
    module = SGDModule(PolicyConfig(str(folder / "model")))
    settings = {"accumulate_grad_batches": accumulate, "enable_checkpointing": False, "max_epochs": epochs}
    trainer = quiet_trainer(root, watch, **settings)
    file = str(folder / "rows.jsonl")
    trainer.fit(module, datamodule=SFTDataModule(file, **({"batch_size": 12, "max_length": 32} | data), seed=0))
    return module, watch


def flat(module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize(("accumulate", "budget"), [(2, None), (4, None), (3, 80)])
def test_T01_T02_T03_T07_loss_and_step_do_not_depend_on_the_cut(folder, tmp_path, accumulate, budget):
    whole, watched = train(folder, tmp_path)
    cut, also = train(folder, tmp_path, accumulate, max_tokens_per_micro_batch=budget)
    assert torch.allclose(flat(cut), flat(whole), atol=1e-10, rtol=0)
    start, _ = train(folder, tmp_path, epochs=0)
    assert (flat(whole) - flat(start)).abs().max() > 1e-3
    assert also.losses == pytest.approx(watched.losses, rel=1e-6)


def test_the_loss_is_the_mean_over_all_loss_tokens(folder, tmp_path):
    start, _ = train(folder, tmp_path, epochs=0)
    total = tokens = 0
    for row in rows():
        prompt, answer = start.tokenizer(row["prompt"]).input_ids, start.tokenizer(row["completion"]).input_ids
        ids = torch.tensor([[*prompt, *answer, 1]])
        logprobs = start.policy.hf.eval()(input_ids=ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])
        total -= float(logprobs[len(prompt) - 1 :].sum())
        tokens += len(answer) + 1
    _, watch = train(folder, tmp_path, epochs=1)
    assert watch.losses[0] == pytest.approx(total / tokens, rel=1e-5)


def test_validation_is_a_token_mean_with_its_perplexity(folder, tmp_path):
    _, watch = train(folder, tmp_path, epochs=1)
    module = SGDModule(PolicyConfig(str(folder / "model")))
    data = SFTDataModule(None, str(folder / "rows.jsonl"), val_batch_size=5, max_length=32)
    trainer = quiet_trainer(tmp_path, enable_checkpointing=False)
    (scores,) = trainer.validate(module, data, verbose=False)
    assert scores["sft_train/val_loss"] == pytest.approx(watch.losses[0], rel=1e-5)
    assert scores["sft_train/val_perplexity"] == pytest.approx(math.exp(watch.losses[0]), rel=1e-5)


def test_LT_the_model_is_in_train_mode(folder, tmp_path):
    _, watch = train(folder, tmp_path, epochs=1)
    assert watch.in_train_mode == [True]


def test_order_changes_with_the_epoch_and_stays_with_the_seed(folder, tmp_path):
    data = SFTDataModule(str(folder / "rows.jsonl"), batch_size=5, max_length=32, seed=3)
    module = SGDModule(PolicyConfig(str(folder / "model")))
    trainer = quiet_trainer(tmp_path, enable_checkpointing=False, max_epochs=0)
    trainer.fit(module, datamodule=data)

    def order(epoch: int) -> list[set[int]]:
        return [{row for rank in window.micro_batches for rows in rank for row in rows} for window in data.plan(epoch)]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert sorted(row for window in order(0) for row in window) == list(range(12))
