"""Peak memory of token log-probabilities over a large vocabulary, forward and backward: chunked against plain.

``python -m benchmarks.logprob_memory``

Each way runs in a process of its own; the peak is the resident memory of the process above what it held before. Large
blocks go back to the system at once there (``MALLOC_MMAP_THRESHOLD_``), so that it is the peak of what was in use.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.setting import row

VOCABULARY, TOKENS, WIDTH = 151_936, 1024, 64
MIB = 2**20


def measure(way: str, vocabulary: int = VOCABULARY) -> tuple[float, float]:
    """MiB and seconds of one forward and backward pass."""
    import torch

    from roll_lightning.functional.logprobs import token_logprobs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, vocabulary, bias=False)
    head.weight.grad = torch.zeros_like(head.weight)
    hidden = torch.randn(1, TOKENS + 1, WIDTH, requires_grad=True)
    ids = torch.randint(vocabulary, (1, TOKENS + 1))
    positions = torch.ones_like(ids, dtype=torch.bool)

    def step() -> torch.Tensor:
        if way == "plain":
            return head(hidden[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).sum()
        return token_logprobs(hidden, head, ids, positions, vocab_size=vocabulary).logprobs.sum()

    before, started = _resident("VmRSS"), time.perf_counter()
    _reset_peak()
    step().backward()
    return (_resident("VmHWM") - before) / MIB, time.perf_counter() - started


def _resident(field: str) -> int:
    """Bytes of a field of Linux's process status."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def main() -> None:
    """Print the table."""
    row(f"log-probabilities, {TOKENS} tokens, vocabulary {VOCABULARY}", "peak, MiB", "seconds")
    row("---", "---", "---")
    for way in ("plain", "chunked"):
        command = [sys.executable, "-m", "benchmarks.logprob_memory", way]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(MIB)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        row(way, *done.stdout.split())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*(f"{value:.2f}" for value in measure(sys.argv[1])))
    else:
        main()
