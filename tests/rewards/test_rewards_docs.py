"""What docs/rewards.md says: its table has every reward and argument, its YAML is a config, its class is a reward."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml
from reward_samples import rollouts, values

import roll_lightning.rewards
from roll_lightning.cli import main
from roll_lightning.rewards import RewardFunction, RewardPool

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
TABLE = {
    cells[0].strip("`"): cells
    for line in re.findall(r"^\| (`[A-Z]\w+` .*) \|$", PAGE, re.MULTILINE)
    if (cells := [cell.strip() for cell in line.split(" | ")])
}
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
(OWN,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_is_complete():
    classes = {
        name: cls
        for name, cls in vars(roll_lightning.rewards).items()
        if inspect.isclass(cls) and issubclass(cls, RewardFunction) and cls is not RewardFunction
    }
    assert TABLE.keys() == classes.keys()
    for name, cls in classes.items():
        *_, where, overrun, arguments = TABLE[name]
        assert set(re.findall(r"\w+", arguments)) == set(inspect.signature(cls).parameters), name
        if name != "WeightedReward":
            assert (overrun == "wrong") == (cls.value_on_overrun is not None), name
            assert where.startswith("trainer") == (cls.in_process or name == "ExactMatch"), name


@pytest.mark.parametrize("block", BLOCKS, ids=["routed", "own"])
def test_yaml_is_a_config(tmp_path, monkeypatch, capsys, block):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rewards.py").write_text(OWN)
    (tmp_path / "rewards.yaml").write_text(block)
    (tmp_path / "rest.yaml").write_text(
        "model: {class_path: RLVRModule, init_args: {policy: {path: model}}}\n"
        "data: {class_path: RLVRDataModule, init_args: {train: rows.jsonl}}"
    )
    assert main(["fit", "--config", "rest.yaml", "--config", "rewards.yaml", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)["rollout"]["rewards"]
    written = yaml.safe_load(block)["rollout"]["rewards"]
    for one, other in zip(printed, written, strict=True):
        assert one["class_path"].endswith(other["class_path"])
        if "domains" in other["init_args"]:
            assert one["init_args"]["domains"] == other["init_args"]["domains"]


def test_the_class_of_the_page_runs_in_a_worker(tmp_path, monkeypatch):
    (tmp_path / "page_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    from page_rewards import Digits

    pool = RewardPool([Digits(power=2.0)], workers=1)
    assert values(pool, rollouts("1a", "12", "")) == {"digits": [0.25, 1.0, None]}
    pool.close()


def test_the_attributes_of_the_page_are_those_of_the_base():
    rows = dict(re.findall(r"^\| `(in_process|shaping|deadline|value_on_overrun)` \| `(\w+)` \|", PAGE, re.MULTILINE))
    assert rows == {name: str(getattr(RewardFunction, name)) for name in rows}
    assert len(rows) == 4
