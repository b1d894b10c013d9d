"""A list of rewards in YAML and from the shell, with short class names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jsonargparse import ArgumentParser
from reward_samples import rollout

from roll_lightning.rewards import ExactMatch, FunctionReward, RegexMatch, RewardFunction, RewardScorer, WeightedReward


class Rollouts:
    """Stands for a callback with rewards."""

    def __init__(self, rewards: list[RewardFunction]) -> None:
        self.rewards = rewards


def parse(*arguments: str) -> list[RewardFunction]:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(Rollouts, "rollout")
    return parser.instantiate(parser.parse_args(list(arguments))).rollout.rewards


def test_yaml(tmp_path):
    (tmp_path / "config.yaml").write_text("""
rollout:
  rewards:
  - {class_path: ExactMatch}
  - class_path: WeightedReward
    init_args: {reward: {class_path: RegexMatch, init_args: {pattern: '\\d+', mode: search}}, weight: 0.5, name: form}
  - {class_path: FunctionReward, init_args: {path: reward_samples.text_length}}
  - class_path: WeightedReward
    init_args: {reward: {class_path: LengthPenalty, init_args: {max_length: 4, buffer: 2}}}
""")
    exact, form, function, length = parse("--config", str(tmp_path / "config.yaml"))
    assert isinstance(exact, ExactMatch)
    assert isinstance(form, WeightedReward)
    assert isinstance(form.reward, RegexMatch)
    assert (form.weight, form.name, form.shaping) == (0.5, "form", False)
    assert isinstance(function, FunctionReward)
    assert isinstance(length, WeightedReward)
    assert length.shaping

    batch = [rollout("42", tokens=3)]
    scorer = RewardScorer([exact, form, function, length])
    scorer.score(batch)
    scorer.close()
    assert batch[0].components == {"exact_match": 1.0, "form": 1.0, "text_length": 2.0, "length_penalty": -0.5}
    assert (batch[0].score, batch[0].reward) == (3.5, 3.0)


def test_a_routed_list(tmp_path):
    (tmp_path / "config.yaml").write_text("""
rollout:
  rewards:
  - class_path: WeightedReward
    init_args:
      reward: {class_path: MathVerify, init_args: {after: </think>, deadline: 5}}
      domains: [algebra, sums]
  - class_path: WeightedReward
    init_args:
      reward: {class_path: ExactMatch, init_args: {ignore_case: true}}
      weight: -0.5
      domains: [words]
  - class_path: WeightedReward
    init_args: {reward: {class_path: RegexMatch, init_args: {pattern: '(?s).*</think>.*'}}, weight: 0.25, shaping: true}
""")
    scorer = RewardScorer(parse("--config", str(tmp_path / "config.yaml")))
    batch = [
        of("algebra", r"Hm. \boxed{1}</think> \boxed{\frac{84}{2}}", "42"),
        of("sums", "42", "42"),
        of("words", "paris", "Paris"),
        of("words", "</think>Rome", "Paris"),
    ]
    scorer.check_domains({"data.train": {r.prompt.domain for r in batch}}, complete=True)
    scorer.score(batch)
    scorer.close()
    assert [r.components for r in batch] == [
        {"math_verify": 1.0, "regex_match": 1.0},
        {"math_verify": 0.0, "regex_match": 0.0},
        {"exact_match": 1.0, "regex_match": 0.0},
        {"exact_match": 0.0, "regex_match": 1.0},
    ]
    assert [r.score for r in batch] == [1.0, 0.0, -0.5, 0.0]
    assert [r.reward for r in batch] == [1.25, 0.0, -0.5, 0.25]


def of(domain, text, answer):
    made = rollout(text, answer=answer)
    made.prompt = replace(made.prompt, domain=domain)
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        [
            "--rollout.rewards",
            "[{class_path: WeightedReward, init_args: {reward: {class_path: ExactMatch}, weight: 2}}]",
        ],
        ["--rollout.rewards+=WeightedReward", "--rollout.rewards.reward=ExactMatch", "--rollout.rewards.weight=2"],
    ],
)
def test_shell(arguments):
    (reward,) = parse(*arguments)
    assert isinstance(reward, WeightedReward)
    assert isinstance(reward.reward, ExactMatch)
    assert reward.weight == 2.0


def test_T56_unknown_keys_are_refused_at_any_depth():
    nested = "{class_path: WeightedReward, init_args: {reward: {class_path: ExactMatch, init_args: {stripp: true}}}}"
    for text in ("{class_path: ExactMatch, init_args: {stripp: true}}", nested):
        with pytest.raises(Exception, match="'stripp' is not accepted"):
            parse("--rollout.rewards", f"[{text}]")
