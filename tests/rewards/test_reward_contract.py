from __future__ import annotations

import importlib
import inspect
import math
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from reward_samples import rollout, values

import roll_lightning.rewards
from roll_lightning.data.types import Rollout
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
    RewardScorer,
    WeightedReward,
    reward_name,
)


@dataclass(frozen=True)
class Example:
    """A reward, and what it gives two rollouts that it must tell apart."""

    make: Callable[[], RewardFunction]
    good: Rollout
    bad: Rollout
    values: tuple[float, float]


def with_task(text: str) -> Rollout:
    entry = {"question": "2 + 3 = ?", "answer": "5", "metadata": {"difficulty": {}}}
    made = rollout(text, answer=None)
    made.prompt = replace(made.prompt, columns={"reasoning_gym": {"task": "chain_sum", "entry": entry}})
    return made


EXAMPLES = {
    ExactMatch: Example(lambda: ExactMatch(extract=r"(\d+)"), rollout("is 42"), rollout("is 41"), (1.0, 0.0)),
    FunctionReward: Example(
        lambda: FunctionReward("reward_samples.text_length"), rollout("42"), rollout("4"), (2.0, 1.0)
    ),
    LengthPenalty: Example(
        lambda: LengthPenalty(max_length=4, buffer=2), rollout("42", tokens=2), rollout("42", tokens=3), (0.0, -0.5)
    ),
    MathVerify: Example(MathVerify, rollout(r"\boxed{\frac{84}{2}}"), rollout("-42"), (1.0, 0.0)),
    ReasoningGymReward: Example(ReasoningGymReward, with_task("5"), with_task("6"), (1.0, 0.0)),
    RegexMatch: Example(lambda: RegexMatch(r"\d+"), rollout("42"), rollout("x"), (1.0, 0.0)),
    WeightedReward: Example(
        lambda: WeightedReward(ExactMatch(), weight=0.5, domains=["default"]), rollout("42"), rollout("41"), (1.0, 0.0)
    ),
}
every_reward = pytest.mark.parametrize("cls", EXAMPLES, ids=lambda cls: cls.__name__)


def make(cls: type[RewardFunction]) -> RewardFunction:
    if cls is ReasoningGymReward:
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is an extra")
    return EXAMPLES[cls].make()


def value_of(result: RewardResult | float | None) -> float | None:
    return result.value if isinstance(result, RewardResult) else result


def every_class() -> set[type[RewardFunction]]:
    """Every reward that is defined in a module of the package, however deep, imported by ``__init__`` or not."""
    found: set[type[RewardFunction]] = set()
    for module in pkgutil.walk_packages(roll_lightning.rewards.__path__, "roll_lightning.rewards."):
        members = vars(importlib.import_module(module.name)).values()
        found |= {m for m in members if inspect.isclass(m) and issubclass(m, RewardFunction)}
    return {cls for cls in found if not inspect.isabstract(cls)}


def test_T57_every_reward_of_the_package_is_under_contract_and_known_to_yaml():
    assert every_class() == set(EXAMPLES)
    assert all(getattr(roll_lightning.rewards, cls.__name__) is cls for cls in EXAMPLES)
    assert all(cls.__name__ in roll_lightning.rewards.__all__ for cls in EXAMPLES)


@every_reward
def test_T57_it_is_documented(cls):
    assert inspect.getdoc(cls)
    arguments = set(inspect.signature(cls).parameters)
    described = inspect.getdoc(cls).partition("Args:")[2]
    assert not {name for name in arguments if f"{name}: " not in described}


@every_reward
def test_T57_contract(cls):
    reward, example = make(cls), EXAMPLES[cls]
    batch = [
        example.good,
        example.bad,
        rollout("", tokens=0),
        rollout("x" * 50, tokens=50),
        rollout("42", answer=None),
        rollout("\x00\ud800 \\boxed{", answer={"not": "mathematics"}),
        rollout("٤٢ 🤖", answer=42),
    ]
    before = pickle.dumps(batch)

    results = reward(batch)

    assert isinstance(reward, Reward)
    assert reward_name(reward)
    assert len(results) == len(batch)
    for result in results:
        assert isinstance(result, RewardResult | float | None)
        assert value_of(result) is None or (isinstance(value_of(result), float) and math.isfinite(value_of(result)))
    assert pickle.dumps(batch) == before, "a reward leaves the rollouts alone"
    # Each result depends on its own rollout: alone, in another order, and in a worker it is the same.
    assert [reward([item])[0] for item in batch] == list(results)
    assert list(reward(batch[::-1])) == list(results)[::-1]
    assert list(reward([])) == []


@every_reward
def test_T57_a_worker_gives_what_a_call_gives(cls):
    reward, example = make(cls), EXAMPLES[cls]
    batch = [example.good, example.bad, rollout("42", answer=None)]
    direct = [value_of(result) for result in reward(batch)]
    reward.in_process = False
    pool = RewardPool([reward], workers=1)
    assert values(pool, batch) == {reward_name(reward): direct}
    pool.close()


@every_reward
def test_T57_its_value_arrives_in_component_score_and_reward(cls):
    reward, example = make(cls), EXAMPLES[cls]
    batch = pickle.loads(pickle.dumps([example.good, example.bad]))
    name, shaping = reward_name(reward), reward.shaping
    scorer = RewardScorer([WeightedReward(reward, weight=-2.0), *([zero] if shaping else [])], workers=1)
    scorer.score(batch)
    scorer.close()
    assert tuple(r.components[name] for r in batch) == example.values
    assert [r.reward for r in batch] == [-2.0 * value for value in example.values]
    assert [r.score for r in batch] == ([0.0, 0.0] if shaping else [-2.0 * value for value in example.values])


def zero(rollouts):
    return [0.0 for _ in rollouts]


@every_reward
def test_T57_what_it_says_of_itself_can_be_used(cls):
    reward, example = make(cls), EXAMPLES[cls]
    assert isinstance(reward.in_process, bool)
    assert isinstance(reward.shaping, bool)
    assert reward.deadline is None or reward.deadline > 0
    # An overrun must not be worth more than a wrong answer.
    assert reward.value_on_overrun is None or reward.value_on_overrun <= min(example.values)
    assert not (reward.in_process and reward.value_on_overrun is not None), "no deadline applies in process"
    assert reward.warm_up() is None
