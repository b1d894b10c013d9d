"""Seconds per SFT step: ``trainer.fit`` of SFTModule against a bare PyTorch loop on the same model and rows.

``python -m benchmarks.sft_step``
"""

from __future__ import annotations

import json
import logging
import random
import time
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.setting import alternate, one_thread, row, sorting_task
from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.optim import OptimizerConfig
from roll_lightning.modules.sft import SFTModule

BATCH, LR, CLIP = 128, 1e-3, 1.0


class Clock(Callback):
    """Seconds from the end of the first epoch (or, with ``steps``, batch) to the end of training: no set-up."""

    def __init__(self, steps: bool) -> None:
        self.steps, self.started, self.seconds = steps, 0.0, 0.0

    def on_train_batch_end(self, *_: object) -> None:
        """Start after the first step."""
        if self.steps and not self.started:
            self.started = time.perf_counter()

    def on_train_epoch_end(self, *_: object) -> None:
        """Start after the first epoch."""
        self.started = self.started or time.perf_counter()

    def on_train_end(self, *_: object) -> None:
        """Stop."""
        self.seconds = time.perf_counter() - self.started


def ours(folder: Path, steps: int) -> float:
    """Seconds per step of the module, with its metrics logged to TensorBoard at every step."""
    from lightning.pytorch.loggers import TensorBoardLogger

    clock = Clock(steps=True)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        gradient_clip_val=CLIP,
        callbacks=[clock],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        logger=TensorBoardLogger(str(folder / "logs")),
    )
    module = SFTModule(PolicyConfig(str(folder / "weights")), OptimizerConfig(lr=LR))
    data = SFTDataModule(str(folder / "data/sft.jsonl"), batch_size=BATCH, max_length=32, seed=0)
    trainer.fit(module, datamodule=data)
    return clock.seconds / (steps - 1)


def bare(folder: Path, steps: int) -> float:
    """Seconds per step of a loop as one writes it by hand: shuffled rows, padded batches, AdamW, clipping."""
    model = AutoModelForCausalLM.from_pretrained(folder / "weights").train()
    tokenizer = AutoTokenizer.from_pretrained(folder / "weights")
    rows = [json.loads(line) for line in (folder / "data/sft.jsonl").read_text().splitlines()]
    encoded = []
    for one in rows:
        prompt, answer = tokenizer(one["prompt"])["input_ids"], tokenizer(one["completion"])["input_ids"]
        encoded.append((prompt + answer + [tokenizer.eos_token_id], len(prompt)))
    order = random.Random(0).sample(range(len(encoded)), len(encoded))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    started = 0.0
    for step in range(steps):
        picked = [encoded[order[(step * BATCH + i) % len(order)]] for i in range(BATCH)]
        longest = max(len(ids) for ids, _ in picked)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in picked])
        labels = torch.tensor([[-100] * start + ids[start:] + [-100] * (longest - len(ids)) for ids, start in picked])
        logits = model(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        started = started or time.perf_counter()
    return (time.perf_counter() - started) / (steps - 1)


def main() -> None:
    """Print the table."""
    one_thread()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    row("SFT step, 128 rows", "ours, ms", "bare loop, ms", "ratio")
    row("---", "---", "---", "---")
    for size, steps in (("0.4M", 75), ("11M", 7)):
        with sorting_task(size) as folder:
            mine, theirs = alternate(partial(ours, folder, steps), partial(bare, folder, steps), 3)
        row(f"{size} parameters", f"{mine * 1e3:.1f}", f"{theirs * 1e3:.1f}", f"{mine / theirs:.3f}")


if __name__ == "__main__":
    main()
