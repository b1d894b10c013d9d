"""Generated tokens per second: the in-process engine against ``transformers.generate``, same weights, prompts, lengths.

``python -m benchmarks.engine_tokens``

64 groups of 8 samples, as in a rollout; no stop token, so that both write the same number of tokens.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from benchmarks.setting import alternate, one_thread, row, sorting_task
from roll_lightning.engines.base import Request, SamplingParams
from roll_lightning.engines.hf import HFEngine
from roll_lightning.models.causal_lm import CausalPolicy

GROUPS, SAMPLES = 64, 8


def ours(engine: HFEngine, prompts: list[list[int]], new_tokens: int) -> float:
    """Tokens per second of the engine."""
    params = SamplingParams(new_tokens)
    requests = [
        Request(tuple(prompt), params, seed=group * SAMPLES + sample, group=group)
        for group, prompt in enumerate(prompts)
        for sample in range(SAMPLES)
    ]
    started = time.perf_counter()
    done = engine.generate(requests)
    return sum(len(one.token_ids) for one in done) / (time.perf_counter() - started)


def theirs(model: Any, prompts: list[list[int]], new_tokens: int) -> float:
    """Tokens per second of ``generate`` on batches of 256 rows, the engine's own batch size."""
    ids = torch.tensor(prompts).repeat_interleave(SAMPLES, 0)
    started = time.perf_counter()
    tokens = 0
    for batch in ids.split(256):
        out = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        scores = torch.stack(out.logits, 1).float().log_softmax(-1)
        scores.gather(-1, out.sequences[:, batch.shape[1] :, None])
        tokens += out.sequences[:, batch.shape[1] :].numel()
    return tokens / (time.perf_counter() - started)


def main() -> None:
    """Print the table."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    one_thread()
    row("generated tokens/s, 512 sequences, with log-probabilities", "ours", "transformers.generate", "ratio")
    row("---", "---", "---", "---")
    for size in ("0.4M", "11M"):
        with sorting_task(size) as folder:
            model = AutoModelForCausalLM.from_pretrained(folder / "weights").eval()
            tokenizer = AutoTokenizer.from_pretrained(folder / "weights")
        engine = HFEngine()
        engine.bind(CausalPolicy(model), tokenizer)
        prompts = [tokenizer(f"{number:06d}=")["input_ids"] for number in range(GROUPS)]
        for new in (8, 48):
            mine, other = alternate(partial(ours, engine, prompts, new), partial(theirs, model, prompts, new), 3)
            row(f"{size} parameters, {new} new tokens", f"{mine:,.0f}", f"{other:,.0f}", f"{mine / other:.2f}")


if __name__ == "__main__":
    main()
