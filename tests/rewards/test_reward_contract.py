from __future__ import annotations

import importlib
import math
import pickle
import pkgutil

import pytest
from reward_samples import rollout, values

import roll_lightning.rewards
from roll_lightning.rewards import (
    ExactMatch,
    FunctionReward,
    LengthPenalty,
    MathVerify,
    ReasoningGymReward,
    RegexMatch,
    Reward,
    RewardFunction,
    RewardPool,
    RewardResult,
    WeightedReward,
    reward_name,
)

EXAMPLES = {
    ExactMatch: lambda: ExactMatch(extract=r"(\d+)"),
    FunctionReward: lambda: FunctionReward("reward_samples.text_length"),
    LengthPenalty: lambda: LengthPenalty(max_length=4, buffer=2),
    MathVerify: MathVerify,
    ReasoningGymReward: ReasoningGymReward,
    RegexMatch: lambda: RegexMatch(r"\d+"),
    WeightedReward: lambda: WeightedReward(ExactMatch(), weight=0.5),
}


def every_class() -> set[type[RewardFunction]]:
    found: set[type[RewardFunction]] = set()
    for module in pkgutil.iter_modules(roll_lightning.rewards.__path__, "roll_lightning.rewards."):
        members = vars(importlib.import_module(module.name)).values()
        found |= {m for m in members if isinstance(m, type) and issubclass(m, RewardFunction)}
    return found - {RewardFunction}


def test_T57_every_reward_of_the_package_is_under_contract_and_known_to_yaml():
    assert every_class() == set(EXAMPLES)
    assert all(getattr(roll_lightning.rewards, cls.__name__) is cls for cls in EXAMPLES)


@pytest.mark.parametrize("cls", EXAMPLES, ids=lambda cls: cls.__name__)
def test_T57_contract(cls):
    reward = EXAMPLES[cls]()
    batch = [rollout("42"), rollout("", tokens=0), rollout("x" * 50, tokens=50), rollout("42", answer=None)]
    before = pickle.dumps(batch)

    results = reward(batch)

    assert isinstance(reward, Reward)
    assert reward_name(reward)
    assert len(results) == len(batch)
    for result in results:
        assert isinstance(result, RewardResult | float | None)
        value = result.value if isinstance(result, RewardResult) else result
        assert value is None or (isinstance(value, float) and math.isfinite(value))
    assert pickle.dumps(batch) == before, "a reward leaves the rollouts alone"
    # Each result depends on its own rollout: alone, in another order, and in a worker it is the same.
    assert [reward([item])[0] for item in batch] == list(results)
    assert list(reward(batch[::-1])) == list(results)[::-1]
    assert list(reward([])) == []


@pytest.mark.parametrize("cls", EXAMPLES, ids=lambda cls: cls.__name__)
def test_T57_a_worker_gives_what_a_call_gives(cls):
    reward = EXAMPLES[cls]()
    batch = [rollout("42"), rollout("7"), rollout("42", answer=None)]
    direct = [result.value if isinstance(result, RewardResult) else result for result in reward(batch)]
    reward.in_process = False
    pool = RewardPool([reward], workers=1)
    assert values(pool, batch) == {reward_name(reward): direct}
    pool.close()
