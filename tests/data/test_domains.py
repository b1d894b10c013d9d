"""Domains: turns before a prompt, shares of an iteration, and what is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from roll_lightning.data.domains import DomainConfig, Example, check_domains, conversation, domain_shares
from roll_lightning.data.prompt_schedule import PromptSchedule
from roll_lightning.data.types import Prompt
from roll_lightning.errors import ConfigError, DataError

MATHS = DomainConfig(system="Answer briefly.", examples=[Example("1 + 1", "2"), Example("2 + 2", "4")])


def prompts(**counts: int) -> list[Prompt]:
    return [
        Prompt(f"{domain}{number}", (number,), "", domain=domain)
        for domain, count in counts.items()
        for number in range(count)
    ]


def roles(messages):
    return [(message["role"], message["content"]) for message in messages]


def test_turns_before_a_string():
    assert roles(conversation("3 + 3", MATHS, "row")) == [
        ("system", "Answer briefly."),
        ("user", "1 + 1"),
        ("assistant", "2"),
        ("user", "2 + 2"),
        ("assistant", "4"),
        ("user", "3 + 3"),
    ]


def test_turns_before_messages_and_after_their_own_system_turn():
    own = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "3 + 3"}]
    examples_only = DomainConfig(examples=[Example("1 + 1", "2")])
    assert [role for role, _ in roles(conversation(own, examples_only, "row"))] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    with pytest.raises(DataError, match="row: the prompt has a system turn, and so has its domain"):
        conversation(own, MATHS, "row")


def drawn(schedule: PromptSchedule, iterations: int, count: int) -> list[list[str]]:
    return [[prompt.id for prompt in schedule.draw(number, count)] for number in range(iterations)]


def test_shares_hold_in_every_iteration_and_each_domain_goes_through_its_own_passes():
    data = prompts(maths=6, code=9)
    schedule = PromptSchedule(data, 0, {"maths": 0.25, "code": 0.75})
    schedule.check(4)
    iterations = drawn(schedule, 12, 4)
    for ids in iterations:
        assert Counter(name[0] for name in ids) == {"m": 1, "c": 3}
    maths = [name for ids in iterations for name in ids if name[0] == "m"]
    assert [sorted(maths[start : start + 6]) for start in (0, 6)] == [[f"maths{n}" for n in range(6)]] * 2
    assert maths[:6] != maths[6:]
    code = [name for ids in iterations for name in ids if name[0] == "c"]
    assert all(count == 4 for count in Counter(code).values())
    assert len({tuple(name[0] for name in ids) for ids in iterations}) > 1  # mixed, not domain after domain


def test_T45_any_iteration_can_be_drawn_first():
    """A resumed run draws what the run would have drawn."""
    shares = {"maths": 0.5, "code": 0.5}
    whole = drawn(PromptSchedule(prompts(maths=5, code=4), 3, shares), 9, 4)
    for number in (8, 0, 5):
        again = PromptSchedule(prompts(maths=5, code=4), 3, shares)
        assert [prompt.id for prompt in again.draw(number, 4)] == whole[number]
    assert drawn(PromptSchedule(prompts(maths=5, code=4), 4, shares), 9, 4) != whole


def test_without_shares_every_prompt_comes_once_a_pass():
    schedule = PromptSchedule(prompts(maths=3, code=3), 0)
    names = [name for ids in drawn(schedule, 3, 2) for name in ids]
    assert sorted(names) == sorted(f"{d}{n}" for d in ("maths", "code") for n in range(3))


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ({"maths": 0.5, "code": 0.4}, "the shares of data.domains add up to 0.9, not 1: maths 0.5, code 0.4"),
        ({"maths": 1.0}, "gives shares, but none to code, which rows.jsonl has"),
    ],
)
def test_shares_that_do_not_add_up(shares, named):
    domains = {name: DomainConfig(share) for name, share in shares.items()}
    with pytest.raises(ConfigError, match=named):
        domain_shares(domains, {"maths", "code"}, "rows.jsonl")


def test_domains_that_are_not_there():
    with pytest.raises(
        ConfigError, match=r"has math, but no prompt of rows.jsonl is of that domain; did you mean maths"
    ):
        check_domains({"math": DomainConfig()}, {"maths", "code"}, "rows.jsonl")
    assert domain_shares({"maths": DomainConfig()}, {"maths", "code"}, "rows.jsonl") is None


def test_counts_that_do_not_divide():
    schedule = PromptSchedule(prompts(maths=50, code=50), 0, {"maths": 0.3, "code": 0.7})
    with pytest.raises(ConfigError, match="prompts_per_iteration 32 into whole prompts; set it to 30 or 40"):
        schedule.check(32)
    with pytest.raises(ConfigError, match=r"set it to 10$"):
        schedule.check(4)
    schedule.check(40)
    with pytest.raises(ConfigError, match=r"needs 56 prompts of domain code, but data.train has 50"):
        schedule.check(80)


def test_counts_with_odd_shares():
    thirds = PromptSchedule(prompts(a=9, b=9, c=9), 0, {"a": 0.3333333, "b": 0.3333333, "c": 0.3333334})
    thirds.check(6)
    assert Counter(name[0] for name in drawn(thirds, 1, 6)[0]) == {"a": 2, "b": 2, "c": 2}
    with pytest.raises(ConfigError, match=r"set it to 6 or 9$"):
        thirds.check(8)
    # 0.33 + 0.33 + 0.34 come out whole at hundreds only.
    with pytest.raises(ConfigError, match=r"set it to 100$"):
        PromptSchedule(prompts(a=9, b=9, c=9), 0, {"a": 0.33, "b": 0.33, "c": 0.34}).check(8)
    with pytest.raises(ConfigError, match="take rounder shares"):
        PromptSchedule(prompts(a=9, b=9, c=9), 0, {"a": 0.12391, "b": 0.45672, "c": 0.41937}).check(8)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_share_out_of_range(share):
    with pytest.raises(ConfigError, match="a share is"):
        DomainConfig(share)
