"""Rewards routed by domain: what is called, what is summed, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reward_samples import rollout

from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards import ExactMatch, LengthPenalty, RewardScorer, WeightedReward


class Recorder:
    """Gives ``value`` and keeps the domains that it was asked about."""

    def __init__(self, name, value, in_process=True):
        self.name, self.value, self.in_process, self.asked = name, value, in_process, []

    def __call__(self, rollouts):
        self.asked += [r.prompt.domain for r in rollouts]
        return [self.value for _ in rollouts]


def of(domain, text="42"):
    made = rollout(text)
    made.prompt = replace(made.prompt, domain=domain)
    return made


def test_each_reward_sees_its_domains_alone_and_sums_have_those_alone():
    maths, code, everywhere = Recorder("maths", 1.0), Recorder("code", 3.0), Recorder("all", 10.0)
    short = Recorder("short", -4.0)
    scorer = RewardScorer(
        [
            WeightedReward(maths, weight=2.0, domains=["algebra", "sums"]),
            WeightedReward(code, weight=-1.0, domains=["code"]),
            WeightedReward(everywhere, weight=0.1),
            WeightedReward(short, weight=0.5, shaping=True, domains=["code", "sums"]),
        ]
    )
    batch = [of("sums"), of("code"), of("algebra"), of("sums")]
    assert scorer.score(batch) == 0
    assert maths.asked == ["sums", "algebra", "sums"]
    assert code.asked == ["code"]
    assert everywhere.asked == ["sums", "code", "algebra", "sums"]
    assert short.asked == ["sums", "code", "sums"]
    # By hand: 2 * 1 + .1 * 10 = 3; -1 * 3 + 1 = -2; shaping takes off .5 * 4.
    assert [r.components for r in batch] == [
        {"maths": 1.0, "all": 10.0, "short": -4.0},
        {"code": 3.0, "all": 10.0, "short": -4.0},
        {"maths": 1.0, "all": 10.0},
        {"maths": 1.0, "all": 10.0, "short": -4.0},
    ]
    assert [r.score for r in batch] == [3.0, -2.0, 3.0, 3.0]
    assert [r.reward for r in batch] == [1.0, -4.0, 3.0, 1.0]


def test_workers_are_routed_as_well():
    rewards = [
        WeightedReward(ExactMatch(extract=r"(\d+)"), domains=["a"], name="first"),
        WeightedReward(ExactMatch(extract=r"(\d)"), domains=["b"], name="second"),
    ]
    scorer = RewardScorer(rewards, workers=2)
    batch = [of(domain) for domain in "abba"]
    scorer.score(batch)
    scorer.close()
    assert [r.components for r in batch] == [{"first": 1.0}, {"second": 0.0}, {"second": 0.0}, {"first": 1.0}]
    assert [r.score for r in batch] == [1.0, 0.0, 0.0, 1.0]


def test_none_of_a_reward_of_another_domain_does_not_matter():
    scorer = RewardScorer(
        [WeightedReward(Recorder("a", None), domains=["a"]), WeightedReward(Recorder("b", 1.0), domains=["b"])]
    )
    batch = [of("a"), of("b")]
    assert scorer.score(batch) == 1
    assert [r.score for r in batch] == [None, 1.0]


MATHS = WeightedReward(ExactMatch(), domains=["algebra", "sums"])
SHORT = WeightedReward(LengthPenalty(20, 4), domains=["words"])


def test_a_domain_without_a_verifier_is_refused_with_its_source():
    scorer = RewardScorer([MATHS, SHORT])
    scorer.check_domains({"data.train": ["algebra", "sums"]}, complete=False)
    for key in ("data.train", "data.val", "data.predict"):
        with pytest.raises(ConfigError) as error:
            scorer.check_domains({"data.other": ["sums"], key: ["sums", "words"]}, complete=False)
        assert str(error.value) == (
            f"{key} has prompts of the domain 'words', for which rollout.rewards has no verifier (exact_match serves "
            "algebra, sums; length_penalty serves words, but only shapes); add one, or add 'words' to the `domains` of "
            "one"
        )
    RewardScorer([ExactMatch(), SHORT]).check_domains({"data.train": ["words", "anything"]}, complete=True)


def test_a_reward_for_a_domain_without_prompts_is_refused_with_the_nearest():
    scorer = RewardScorer([MATHS, WeightedReward(ExactMatch(), name="rest")])
    scorer.check_domains({"data.train": ["algebra"], "data.val": ["sums"]}, complete=True)
    # Where only a part of the prompts is read (validate, predict), another domain is none of its business.
    scorer.check_domains({"data.val": ["sums"]}, complete=False)
    with pytest.raises(ConfigError) as error:
        scorer.check_domains({"data.train": ["algebre", "sums"], "data.val": ["sums"]}, complete=True)
    assert str(error.value) == (
        "rollout.rewards: 'exact_match' names the domain 'algebra', which no prompt of data.train or data.val has; did "
        "you mean 'algebre'?"
    )
    with pytest.raises(ConfigError, match=r"no prompt of data\.train has; their domains are code, words$"):
        scorer.check_domains({"data.train": ["words", "code"]}, complete=True)


def test_a_rollout_that_no_verifier_serves_is_never_scored():
    with pytest.raises(RewardError, match=r"no verifier serves the domain 'words' of prompt 'p0'"):
        RewardScorer([MATHS, SHORT]).score([of("sums"), of("words")])


@pytest.mark.parametrize(("domains", "needle"), [([], "empty list"), ("sums", r"write a list: \[sums\]")])
def test_domains_must_be_a_list_of_some(domains, needle):
    with pytest.raises(ConfigError, match=needle):
        WeightedReward(ExactMatch(), domains=domains)
