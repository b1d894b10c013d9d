from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from roll_lightning.errors import ConfigError
from roll_lightning.modules.optim import (
    OptimizerConfig,
    ParameterGroup,
    ScheduleConfig,
    make_optimizer,
    make_schedule,
    schedule_factor,
)


def test_only_matrices_are_decayed():
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 2), nn.LayerNorm(2))
    model[0].weight.requires_grad_(False)
    decayed, free = make_optimizer(
        [ParameterGroup(list(model.parameters()), 0.1)], OptimizerConfig(weight_decay=0.5)
    ).param_groups
    assert [tuple(p.shape) for p in decayed["params"]] == [(2, 4)]
    assert [tuple(p.shape) for p in free["params"]] == [(2,), (2,), (2,)]
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.5, 0.0)
    assert decayed["betas"] == (0.9, 0.95)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ScheduleConfig(), [1, 1, 1, 1, 1, 1]),
        (ScheduleConfig("constant", 2), [1 / 3, 2 / 3, 1, 1, 1, 1]),
        (ScheduleConfig("linear"), [1, 0.8, 0.6, 0.4, 0.2, 0]),
        (ScheduleConfig("linear", 1, 0.1), [1 / 2, 1, 0.775, 0.55, 0.325, 0.1]),
        (ScheduleConfig("cosine", 1, 0.2), [1 / 2, 1, 0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, None, 0.2]),
        (ScheduleConfig("inverse_sqrt", 1), [1 / 2, 1, math.sqrt(1 / 2), math.sqrt(1 / 3), 0.5, None]),
    ],
)
def test_schedule_by_hand(config, expected):
    factor = schedule_factor(config, total_steps=5)
    for step, value in enumerate(expected):
        if value is not None:
            assert factor(step) == pytest.approx(value, abs=1e-12), step


def test_the_end_of_a_schedule_holds():
    assert schedule_factor(ScheduleConfig("linear", 0, 0.1), 5)(50) == pytest.approx(0.1)
    assert schedule_factor(ScheduleConfig("cosine", 0, 0.0), 5)(50) == pytest.approx(0)


def test_schedule_drives_the_optimizer():
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer = make_optimizer([ParameterGroup([parameter], 0.2)], OptimizerConfig())
    schedule = make_schedule(optimizer, ScheduleConfig("linear", 1), total_steps=3)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.1, 0.2, 0.1, 0.0])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: OptimizerConfig(lr=0), "optimizer.lr is 0"),
        (lambda: OptimizerConfig(betas=(0.9, 1.0)), r"betas is \(0.9, 1.0\)"),
        (lambda: OptimizerConfig(weight_decay=-1), "weight_decay is -1"),
        (lambda: ScheduleConfig(warmup_steps=-1), "warmup_steps is -1"),
        (lambda: ScheduleConfig(min_ratio=2), "min_ratio is 2"),
    ],
)
def test_refusals(make, named):
    with pytest.raises(ConfigError, match=named):
        make()
