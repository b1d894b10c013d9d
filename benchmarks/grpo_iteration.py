"""Seconds per GRPO iteration: ``trainer.fit`` of RLVRModule against a bare PyTorch loop on the same model and tasks.

``python -m benchmarks.grpo_iteration``

Both sample with the in-process engine (``engine_tokens`` compares that one); the loop scores, takes advantages and one
clipped policy step by hand.
"""

from __future__ import annotations

import json
import logging
import random
import time
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.setting import alternate, one_thread, row, sorting_task
from benchmarks.sft_step import Clock
from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.engines.base import Request, SamplingParams
from roll_lightning.engines.hf import HFEngine
from roll_lightning.functional.advantages import GroupRelative
from roll_lightning.models.causal_lm import CausalPolicy
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.optim import OptimizerConfig
from roll_lightning.modules.rlvr import RLVRModule
from roll_lightning.rewards.exact_match import ExactMatch

PROMPTS, SAMPLES, NEW_TOKENS, LR, CLIP = 32, 8, 8, 5e-4, 1.0


def ours(folder: Path, iterations: int) -> float:
    """Seconds per iteration of module, callback and DataModule, metrics logged to TensorBoard."""
    from lightning.pytorch.loggers import TensorBoardLogger

    clock = Clock(steps=False)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=iterations,
        gradient_clip_val=CLIP,
        callbacks=[clock, RolloutCallback(PROMPTS, SAMPLES, rewards=[ExactMatch()], max_new_tokens=NEW_TOKENS)],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        logger=TensorBoardLogger(str(folder / "logs")),
    )
    advantage = GroupRelative(std="none")
    config = PolicyConfig(str(folder / "weights"))
    # Weights are random, so most groups have no variance; they are kept, to have the same work as in a real run.
    module = RLVRModule(config, OptimizerConfig(lr=LR), advantage=advantage, drop_zero_variance=False)
    data = RLVRDataModule(str(folder / "data/rlvr.jsonl"), batch_size=PROMPTS * SAMPLES, seed=0)
    trainer.fit(module, datamodule=data)
    return clock.seconds / (iterations - 1)


def bare(folder: Path, iterations: int) -> float:
    """Seconds per iteration of a loop as one writes it by hand around the same engine."""
    model = AutoModelForCausalLM.from_pretrained(folder / "weights").train()
    tokenizer = AutoTokenizer.from_pretrained(folder / "weights")
    rows = [json.loads(line) for line in (folder / "data/rlvr.jsonl").read_text().splitlines()]
    engine, params = HFEngine(), SamplingParams(NEW_TOKENS, stop_token_ids=(tokenizer.eos_token_id,))
    engine.bind(CausalPolicy(model), tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    order = random.Random(0).sample(range(len(rows)), len(rows))
    started = 0.0
    for iteration in range(iterations):
        tasks = [rows[order[(iteration * PROMPTS + i) % len(order)]] for i in range(PROMPTS)]
        prompts = [tuple(tokenizer(task["prompt"])["input_ids"]) for task in tasks]
        numbers = [(group, sample) for group in range(PROMPTS) for sample in range(SAMPLES)]
        done = engine.generate([Request(prompts[g], params, iteration * 10**6 + g * 100 + s, g) for g, s in numbers])
        rewards = torch.tensor(
            [float(one.text == tasks[g]["answer"]) for one, (g, _) in zip(done, numbers, strict=True)]
        )
        groups = rewards.view(PROMPTS, SAMPLES)
        advantages = (groups - groups.mean(1, keepdim=True)).flatten()
        rows_of_ids = [list(prompts[g]) + one.token_ids for one, (g, _) in zip(done, numbers, strict=True)]
        longest = max(map(len, rows_of_ids))
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in rows_of_ids])
        starts = torch.tensor([len(prompts[g]) for g, _ in numbers])[:, None]
        ends = torch.tensor([len(ids) for ids in rows_of_ids])[:, None]
        places = torch.arange(1, longest)
        mask = (places >= starts) & (places < ends)
        logprobs = model(input_ids=ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        logprobs = logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        ratio = (logprobs - logprobs.detach()).exp()
        gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.28) * advantages[:, None])
        loss = -(gain * mask).sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        started = started or time.perf_counter()
    return (time.perf_counter() - started) / (iterations - 1)


def main() -> None:
    """Print the table."""
    one_thread()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    row("GRPO iteration, 32 x 8 answers", "ours, ms", "bare loop, ms", "ratio")
    row("---", "---", "---", "---")
    for size, iterations in (("0.4M", 30), ("11M", 4)):
        with sorting_task(size) as folder:
            mine, theirs = alternate(partial(ours, folder, iterations), partial(bare, folder, iterations), 3)
        row(f"{size} parameters", f"{mine * 1e3:.1f}", f"{theirs * 1e3:.1f}", f"{mine / theirs:.3f}")


if __name__ == "__main__":
    main()
