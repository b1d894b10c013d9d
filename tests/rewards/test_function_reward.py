from __future__ import annotations

import pickle
import sys

import pytest
from reward_samples import rollouts, values

from roll_lightning.errors import ConfigError
from roll_lightning.rewards import FunctionReward, RewardPool

MODULE = """
def score(rollouts, bonus=0.0):
    import helper_of_mine  # late, as heavy imports often are
    return [helper_of_mine.value(r.text) + bonus for r in rollouts]
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's folder, from which the command is started; it is not on Python's path."""
    (tmp_path / "my_rewards_here.py").write_text(MODULE)
    (tmp_path / "helper_of_mine.py").write_text("def value(text):\n    return 10.0 * len(text)\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_rewards_here", "helper_of_mine"):
        sys.modules.pop(name, None)


def test_current_directory_is_importable_and_the_path_left_as_it_was(project):
    before = list(sys.path)
    reward = FunctionReward("my_rewards_here.score", arguments={"bonus": 0.5})
    assert sys.path == before
    assert reward.name == "score"


def test_runs_in_a_worker(project):
    pool = RewardPool([FunctionReward("my_rewards_here.score", arguments={"bonus": 0.5})], workers=1)
    try:
        assert values(pool, rollouts("a", "bb", "")) == {"score": [10.5, 20.5, 0.5]}
    finally:
        pool.close()


def test_pickles_by_path(project):
    reward = FunctionReward("my_rewards_here.score", arguments={"bonus": 1.0})
    copy = pickle.loads(pickle.dumps(reward))
    assert (copy.path, copy.arguments) == (reward.path, reward.arguments)


@pytest.mark.parametrize(
    ("path", "needle"),
    [
        ("score", "write an import path"),
        ("my_rewards_here.py:score", "write an import path"),
        ("./my_rewards_here.score", "write an import path"),
        ("", "write an import path"),
        ("no_such_package.sub.score", "no module 'no_such_package'"),
        ("json.no_such_module.score", "no module 'json.no_such_module'"),
        ("json.no_such_function", "has no 'no_such_function'"),
        ("reward_samples.constant", "is a value and no function"),
        ("reward_samples.Stateful", "is a class and no function"),
    ],
)
def test_bad_path_is_refused_by_name(path, needle):
    with pytest.raises(ConfigError) as error:
        FunctionReward(path)
    assert repr(path) in str(error.value)
    assert needle in str(error.value)
    assert "\n" not in str(error.value)


def test_a_module_that_does_not_import_says_why(project):
    (project / "needs_more.py").write_text("import surely_not_installed\n")
    (project / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="raised ModuleNotFoundError: No module named 'surely_not_installed'"):
        FunctionReward("needs_more.score")
    with pytest.raises(ConfigError, match="raised ZeroDivisionError"):
        FunctionReward("broken.score")


def test_T56_unknown_arguments_are_refused(project):
    with pytest.raises(ConfigError, match="unexpected keyword argument 'bonuss'"):
        FunctionReward("my_rewards_here.score", arguments={"bonuss": 1.0})
