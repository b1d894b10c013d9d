"""Our modules and functions inside somebody else's Lightning project."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from tiny import quiet_trainer, sorting_rows, tiny_config, write_jsonl, write_model
from torch.utils.data import DataLoader

from roll_lightning.data.batch import TokenBatch, collate_tokens
from roll_lightning.data.tokenise import load_rows
from roll_lightning.errors import ConfigError
from roll_lightning.functional.aggregation import aggregate, window_totals
from roll_lightning.functional.logprobs import token_logprobs
from roll_lightning.functional.policy_losses import PPOClip
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.sft import SFTModule


class TheirModule(SFTModule):
    """A user's subclass: own optimizer, own hook, own metric."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    def training_step(self, batch: TokenBatch, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("their/rows", float(len(batch)))
        return loss


class Recorder(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, *_) -> None:
        self.losses.append(float(outputs["loss"]))


def their_loader(folder, tokenizer) -> DataLoader:
    rows = load_rows(write_jsonl(folder / "rows.jsonl", sorting_rows(32, answer="completion")), tokenizer).rows

    def collate(rows):
        return collate_tokens([row.input_ids for row in rows], [row.loss_mask for row in rows])

    return DataLoader(rows, batch_size=8, collate_fn=collate)


@pytest.fixture
def module(tmp_path) -> TheirModule:
    return TheirModule(PolicyConfig(str(write_model(tmp_path / "model")), from_scratch=True))


def test_a_subclass_with_their_loader_callback_and_optimizer_learns(module, tmp_path):
    recorder = Recorder()
    trainer = quiet_trainer(tmp_path, recorder, max_epochs=8, enable_checkpointing=False, use_distributed_sampler=True)
    trainer.fit(module, their_loader(tmp_path, module.tokenizer))
    assert len(recorder.losses) == 32
    assert sum(recorder.losses[-4:]) < 0.85 * sum(recorder.losses[:4])
    assert trainer.callback_metrics["their/rows"] == 8
    assert trainer.callback_metrics["sft_train/loss"] == pytest.approx(recorder.losses[-1], rel=1e-5)


def test_their_loader_is_refused_where_its_denominators_would_be_wrong(module, tmp_path):
    trainer = quiet_trainer(tmp_path, max_epochs=1, accumulate_grad_batches=2, enable_checkpointing=False)
    with pytest.raises(ConfigError, match="carry no window totals"):
        trainer.fit(module, their_loader(tmp_path, module.tokenizer))


class FromPieces(LightningModule):
    """A user's own module around our functions; rewards the token 5."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_config(tiny_config())
        self.loss = PPOClip()

    def training_step(self, input_ids: torch.Tensor, batch_idx: int) -> torch.Tensor:
        mask = torch.ones_like(input_ids, dtype=torch.bool)
        mask[:, 0] = False
        hidden = self.model.model(input_ids=input_ids).last_hidden_state
        vocabulary = self.model.config.vocab_size
        logprobs = token_logprobs(hidden, self.model.lm_head, input_ids, mask, vocab_size=vocabulary).logprobs
        advantages = (input_ids == 5).float() - 0.1
        tokens, sequences = window_totals([mask])
        output = self.loss(logprobs, logprobs.detach(), advantages, mask)
        return aggregate(output.per_token, mask, "token-mean", tokens=tokens, sequences=sequences)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def test_functions_alone(tmp_path):
    module = FromPieces()
    data = torch.randint(2, 14, (64, 6), generator=torch.Generator().manual_seed(0))

    def share_of_fives() -> float:
        with torch.no_grad():
            return float(module.model(input_ids=data).logits.softmax(-1)[..., 5].mean())

    before = share_of_fives()
    trainer = quiet_trainer(tmp_path, max_epochs=5, enable_checkpointing=False)
    trainer.fit(module, DataLoader(data, batch_size=16))
    assert share_of_fives() > 3 * before
