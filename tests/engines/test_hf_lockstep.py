"""Two ranks whose forward is a collective: a mismatch of one forward would hang until the group's deadline."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from engine_helpers import TinyPolicy, character_tokenizer, policy_of, tiny_config
from torch import Tensor

from roll_lightning.engines.base import Completion, Request, SamplingParams, derive_seed
from roll_lightning.engines.hf import HFEngine

UNEQUAL = {
    # rank: prompt lengths and new tokens of its requests
    0: [(5, 4), (9, 13), (2, 1)],
    1: [(9, 13), (3, 20), (3, 3), (7, 2), (1, 17)],
}
ONE_IDLE: dict[int, list[tuple[int, int]]] = {0: [], 1: [(4, 6), (2, 9)]}


class CollectivePolicy(TinyPolicy):
    """Every forward needs the other rank, as under FSDP2 and ZeRO-3."""

    def decode(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any) -> Tensor:
        everyone = torch.ones(1)
        dist.all_reduce(everyone)
        assert everyone.item() == 2
        return super().decode(input_ids, attention_mask, position_ids, past_key_values)


def requests_of(rank: int, lengths: list[tuple[int, int]]) -> list[Request]:
    return [
        Request(tuple(range(2, 2 + prompt)), SamplingParams(new, stop_token_ids=(9,)), derive_seed(rank, i), i)
        for i, (prompt, new) in enumerate(lengths)
    ]


def any_rank_busy(busy: bool) -> bool:
    flag = torch.tensor(int(busy))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


def run_rank(rank: int, folder: Path, cases: list[dict[int, list[tuple[int, int]]]]) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    policy = CollectivePolicy(policy_of(tiny_config()).model)
    engine = HFEngine(max_batch_size=2)
    engine.bind(policy, character_tokenizer())
    engine.set_lockstep(any_rank_busy)
    answers, forwards = [], []
    for case in cases:
        policy.shapes.clear()
        answers.append(engine.generate(requests_of(rank, case[rank])))
        forwards.append(len(policy.shapes))
    torch.save({"answers": answers, "forwards": forwards}, folder / f"rank{rank}.pt")
    dist.barrier()
    # Gloo's threads abort a process now and then while it is torn down ("terminate called without an active
    # exception"), long after the results are written; there is nothing left to tidy up.
    os._exit(0)


@pytest.mark.timeout(180)
def test_ranks_run_the_same_number_of_forwards_and_give_the_unsharded_tokens(tmp_path: Path) -> None:
    cases = [UNEQUAL, ONE_IDLE]
    mp.spawn(run_rank, args=(tmp_path, cases), nprocs=2)
    results = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]
    assert results[0]["forwards"] == results[1]["forwards"]
    policy = policy_of(tiny_config())
    engine = HFEngine(max_batch_size=2)
    engine.bind(policy, character_tokenizer())
    for number, case in enumerate(cases):
        alone = []
        for rank in (0, 1):
            policy.shapes.clear()
            expected = engine.generate(requests_of(rank, case[rank]))
            alone.append(len(policy.shapes))
            assert tokens(results[rank]["answers"][number]) == tokens(expected)
        # The busier rank decides; not one forward more is run.
        assert results[0]["forwards"][number] == max(alone)
        assert min(alone) < max(alone)


def tokens(answers: list[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def test_every_forward_asks_first_and_lockstep_can_be_turned_off() -> None:
    policy = policy_of(tiny_config())
    engine = HFEngine(max_batch_size=2)
    engine.bind(policy, character_tokenizer())
    asked: list[tuple[bool, int]] = []
    others = [True, True, False]

    def busy(mine: bool) -> bool:
        asked.append((mine, len(policy.shapes)))
        return mine or others.pop(0)

    engine.set_lockstep(busy)
    requests = requests_of(0, UNEQUAL[1])
    answers = engine.generate(requests)
    own = len(policy.shapes) - 2
    # Before each forward of its own; then until the others have finished too.
    assert asked == [(True, n) for n in range(own)] + [(False, own + n) for n in range(3)]
    assert policy.shapes[own:] == [(1, 1), (1, 1)]
    engine.set_lockstep(None)
    assert engine.generate(requests) == answers
    assert len(policy.shapes) == 2 * own + 2
