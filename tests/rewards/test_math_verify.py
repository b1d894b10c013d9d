from __future__ import annotations

from decimal import Decimal

import pytest
from reward_samples import math_verify_is_loaded, rollout, values

from roll_lightning.errors import ConfigError
from roll_lightning.rewards import MathVerify, RewardPool
from roll_lightning.rewards.math_answer import end_of, gold_of, last_boxed, tidy


def score(text, gold, **options):
    (result,) = MathVerify(**options)([rollout(text, answer=gold)])
    return result.value


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        # plain numbers
        ("42", "42"),
        ("42.", 42),
        ("First 3, then 5 apples", "5"),
        ("2 + 2 = 4", 4),
        ("**Answer: 42**", "42"),
        ("The total is $18.", "18"),
        ("1,234,567", "1234567"),
        ("1 000", "1000"),
        ("−3", "-3"),
        ("-3", "−3"),
        ("0.5", "1/2"),
        ("1/2", 0.5),
        ("1e3", 1000),
        ("0.00002", 2e-5),
        # boxes
        (r"So \boxed{6}? No: \boxed{42}. Checked in step 9.", "42"),
        (r"$\boxed{\frac12}$", "0.5"),
        (r"\boxed {\left\{1, 2\right\}}", "2, 1"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{(x+1)^2}", "x^2+2x+1"),
        (r"\boxed{x**2}", "x^2"),
        (r"\boxed{1 000}", "1,000"),
        (r"\boxed{1.5e-3}", "0.0015"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{f(\{a\})}", r"f(\{a\})"),
        # LaTeX without a box
        (r"Hence \(\frac{3}{4}\).", "0.75"),
        (r"The final answer is $7$. I hope it is correct, step 8.", "7"),
        (r"\[x = \frac{3}{4}\]", "3/4"),
        # gold answers
        ("18", "She has 16 - 3 = <<16-3=13>>13 eggs.\n#### 18"),
        ("3/4", r"$\frac{3}{4}$"),
        ("3/4", r"$$\frac{3}{4}$$"),
        ("3/4", r"\(\frac{3}{4}\)"),
        ("3/4", r"The answer is \boxed{\frac{3}{4}}."),
        ("3/4", r"It is $\frac{3}{4}$"),
        ("5", ["1/2", "5"]),
        ("5", "x=5"),
        ("0.3333333", "1/3"),
        (r"\boxed{10!}", "3628800"),
        # the same string is right, even where no mathematics is found in it
        ("x^2 + y", "$x^2 + y$"),
        (r"\boxed{9^{9^{9}}}", "$9^{9^{9}}$"),
    ],
)
def test_right(text, gold):
    assert score(text, gold) == 1.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("", "42"),
        ("I do not know.", "42"),
        ("41", "42"),
        ("-42", "42"),
        ("42, then 41", "42"),
        (r"\boxed{42} or rather \boxed{41}", "42"),
        (r"\boxed{42} or rather \boxed{4", "42"),
        ("so 42 and \\boxed{", "42"),
        (r"\boxed{}", "42"),
        (r"\boxed{41, 42}", "42"),
        (r"\boxed{41 \text{ or } 42}", "42"),
        ("$41$ or $42$", "42"),
        ("0.33", "1/3"),
        (r"\boxed{y = 2x}", "2x + 1"),
        (r"\boxed{x^2+1}", "(x+1)^2"),
        ("1" * 20_000, "42"),
        (r"\boxed{\frac{1}{0}}", "42"),
        (r"\boxed{" + "1+" * 2000 + "1}", "2001"),
    ],
)
def test_wrong(text, gold):
    assert score(text, gold) == 0.0


SEVERAL_GUESSES = [
    r"\boxed{41 \vee 42}",
    r"\boxed{x=41 \lor x=42}",
    r"\boxed{41 \cup 42}",
    r"\boxed{41=42=40}",
    r"\boxed{41 \to 42}",
    r"\boxed{41 \approx 42}",
    r"\boxed{41 \neq 42}",
    r"\boxed{41; 42}",
    r"\boxed{41} \boxed{42}",
    "$41$ $42$ $40$",
    "$41$, $42$",
    "41 42 40",
    "The answer is 41. The answer is 42.",
    "The answer is 41 or 42",
]


@pytest.mark.parametrize("text", SEVERAL_GUESSES)
def test_of_several_guesses_one_counts_at_most(text):
    assert sum(score(text, gold) == 1.0 for gold in ("40", "41", "42")) <= 1


@pytest.mark.parametrize("gold", [None, "", "   ", [], [None, ""], True, {"answer": 42}, "$$", "³", r"\boxed{}"])
@pytest.mark.parametrize("text", ["42", "", "True", "³"])
def test_none_where_there_is_nothing_to_compare_with(text, gold):
    assert score(text, gold) is None


def test_options():
    assert score("42", "42", boxed_only=True) == 0.0
    assert score(r"\boxed{42} 7", "42", boxed_only=True) == 1.0

    thought = r"I think \boxed{7}.</think> It is 42."
    assert score(thought, "42", after="</think>") == 1.0
    assert score(thought, "42") == 0.0
    assert score("It is 42.", "42", after="</think>") == 0.0
    assert score("42</think>7</think>42", "42", after="</think>") == 1.0

    tag = r"(?s)<answer>(.*?)</answer>"
    assert score("<answer>7</answer> <answer>\nx^2 + 2x + 1 </answer> 9", "(x+1)^2", extract=tag) == 1.0
    assert score(r"<answer>\boxed{\frac{84}{2}}</answer>", "42", extract=tag) == 1.0
    assert score("42 <answer>7</answer>", "42", extract=tag) == 0.0
    assert score("42", "42", extract=tag) == 0.0
    assert score("<answer>42</answer>", "42", extract=tag, boxed_only=True) == 0.0

    assert score(r"\boxed{40+2}", "42", max_length=4) == 1.0
    assert score(r"\boxed{40 +2}", "42", max_length=4) == 0.0
    assert score("42" + " so" * 400, "42") == 0.0
    assert score("42" + " so" * 400, "42", max_length=2000) == 1.0

    assert score("0.334", "1/3", decimals=2) == 1.0
    assert score("0.334", "1/3", decimals=3) == 0.0


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"after": ""}, "MathVerify.after is empty"),
        ({"max_length": 0}, "MathVerify.max_length is 0"),
        ({"decimals": -1}, "MathVerify.decimals is -1"),
        ({"extract": "("}, "MathVerify.extract is '(', which is no regular expression"),
        ({"extract": "a"}, "MathVerify.extract is 'a' with 0 groups"),
    ],
)
def test_bad_options(options, needle):
    with pytest.raises(ConfigError) as error:
        MathVerify(**options)
    assert needle in str(error.value)


def test_deadline_out_of_range():
    with pytest.raises(ConfigError, match=r"reward 'math_verify' has deadline 0\.0"):
        RewardPool([MathVerify(deadline=0.0)])


def test_pieces():
    assert last_boxed(r"\boxed{a} \boxed{b{c}\}d}") == r"b{c}\}d"
    assert last_boxed("none") is None
    assert last_boxed(r"\boxed{a} \boxed{b") is None
    assert end_of("one two three", 100) == "one two three"
    assert end_of("one two three", 7) == " three"
    assert end_of("one two three", 5) == "three"
    assert end_of("12345", 3) == ""
    assert tidy(" **$ x**2 $**. ") == "x^2"
    assert tidy("$1$ and $2$") == "$1$ and $2$"
    assert tidy("-12 345.5") == "-12345.5"
    assert tidy("1e-3 + 2E2") == "0.001 + 200"
    assert tidy("1e999999999") == r"1 \cdot 10^{999999999}"
    assert tidy("7.") == "7"
    assert gold_of(7) == "7"
    assert gold_of("a #### b\n#### 1,000") == "1,000"


BOMBS = [
    r"\boxed{9^{9^{9}}}",
    r"$9^{9^{9^9}}$",
    r"\boxed{10000000000!}",
    r"\boxed{" + "(" * 400 + "1" + ")" * 400 + "}",
    r"\boxed{" + r"\frac{1}{" * 60 + "2" + "}" * 60 + "}",
]


def test_T47_towers_factorials_and_nesting_cost_their_item_and_count_as_wrong(caplog):
    batch = [rollout(text, prompt=f"p{n}") for n, text in enumerate([*BOMBS, r"\boxed{42}", "41"])]
    pool = RewardPool([MathVerify(deadline=1.0)], workers=2)
    verdicts = [verdict["math_verify"] for verdict in pool.score(batch)]
    assert [verdict.value for verdict in verdicts] == [0.0] * len(BOMBS) + [1.0, 0.0]
    assert [verdict.fault for verdict in verdicts] == ["overrun"] * len(BOMBS) + [None] * 2
    assert pool.overruns == {"math_verify": len(BOMBS)}
    assert not pool.failures
    (record,) = caplog.records
    assert (
        "5 of 7 rollouts overran; the first: reward 'math_verify' gave no result within 1 s, which counts as 0, on "
        in (record.getMessage())
    )
    assert values(pool, batch[-2:]) == {"math_verify": [1.0, 0.0]}
    pool.close()


def test_the_slow_import_is_not_on_the_first_rollouts_account():
    pool = RewardPool([math_verify_is_loaded, MathVerify()], workers=1)
    assert values(pool, [rollout("1/2", answer="0.5")]) == {"math_verify_is_loaded": [1.0], "math_verify": [1.0]}
    pool.close()


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("1.2e-9", "9.1e-31"),
        (r"\boxed{0.0000002}", "0.0000001"),
        (r"\boxed{0.0000024}", "0.000002"),
        (r"\boxed{0.0000004}", "0.0"),
    ],
)
def test_small_numbers_are_not_all_equal(text, gold):
    assert score(text, gold) == 0.0


@pytest.mark.parametrize(("text", "gold"), [("1.5e-7", 1.5e-7), ("0.0500%", "0.0005"), ("0.012346", "1/81")])
def test_small_numbers_that_are_equal(text, gold):
    assert score(text, gold) == 1.0


def test_the_base_of_a_number_counts_where_both_have_one():
    assert score(r"\boxed{2516_{9}}", "2516_8") == 0.0
    assert score(r"It is $2516_9$.", "2516_8") == 0.0
    assert score(r"\boxed{2516_{8}}", "2516_8") == 1.0
    assert score(r"\boxed{2516}", "2516_8") == 1.0


def test_thousands_with_thin_spaces_and_prices():
    assert score(r"\boxed{1\,000}", "1000") == 1.0
    assert score(r"\boxed{1\,000}", "0") == 0.0
    assert score(r"\boxed{1,\,200}", "1200") == 0.0
    assert score("32348", r"\$32,\!348") == 1.0
    assert score("32347", r"\$32,\!348") == 0.0


def test_decimal_answers_of_parquet():
    assert score("1.5", Decimal("1.50")) == 1.0
