from __future__ import annotations

import json
from dataclasses import replace

import pytest
from reward_samples import rollout, values

from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards import ReasoningGymReward, RewardPool
from roll_lightning.rewards.harmless import ALGEBRA, ARITHMETIC, NO_CALL, is_harmless

SUM = {"question": "2 + 3 = ?", "answer": "5", "metadata": {"difficulty": {}}}


def asked(text, held, **kwargs):
    made = rollout(text, answer=None, **kwargs)
    columns = {} if held is None else {"reasoning_gym": held}
    made.prompt = replace(made.prompt, columns=columns)
    return made


def score(text, task="chain_sum", entry=SUM, **options):
    (result,) = ReasoningGymReward(**options)([asked(text, {"task": task, "entry": entry})])
    return result.value


def test_an_extra_that_is_missing_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setattr("roll_lightning.rewards.reasoning_gym.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'roll-lightning\[reasoning-gym\]'") as error:
        ReasoningGymReward()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("extract", ["(", "<answer>"])
def test_a_pattern_without_its_group_is_refused(extract):
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is an extra")
    with pytest.raises(ConfigError, match=r"ReasoningGymReward\.extract"):
        ReasoningGymReward(extract=extract)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("(1 + 2) * 3 - 4/5", "arithmetic algebra"),
        ("x*sin(x) - exp(2*x)/2 + sqrt (x)\n", "algebra"),
        ("-0.5*x**2 + .25 + 2. + 1e-3 + C + 3*pi*y1", "algebra no_call"),
        ("cos(x - x)", "algebra"),
        ("1.5", "algebra no_call"),
        ("[[0, 1], [1, 0]]", "no_call"),
        ("['A', 'B', 'C']", "no_call"),
        ("Q _ _\n_ Q _", "no_call"),
        ("", "arithmetic algebra no_call"),
        ("Integral(x, x)", ""),
        ("open('x')", ""),
        ("open(0)", ""),
        ("(open)(0)", ""),
        ("ｏｐｅｎ(0)", ""),
        ("(open#\n(0))", ""),
        ("[f·(0) for f· in [open]]", ""),
        ("(*(sin(x) for sin in (open,)),)", ""),
        ("""sin('open'+',('[1]+"'x','w')")""", ""),
        ("x.sin(x)", ""),
        ("(1).real()", ""),
        ("(x)\\\n(x)", ""),
        ("٣+(٤)", ""),
        ("1.1 " * 1000 + "!(", ""),
    ],
)
def test_harmless(text, allowed):
    patterns = {"arithmetic": ARITHMETIC, "algebra": ALGEBRA, "no_call": NO_CALL}
    assert " ".join(name for name, pattern in patterns.items() if is_harmless(text, pattern)) == allowed


class TestScores:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is an extra")

    def test_whole_text_or_tag(self):
        assert score("5") == 1.0
        assert score(" 5\n") == 1.0
        assert score("6") == 0.0
        assert score("The answer is 5") == 0.0
        tag = r"(?s)<answer>(.*?)</answer>"
        assert score("so <answer>6</answer><answer>\n5\n</answer> 7", extract=tag) == 1.0
        assert score("<answer>5</answer><answer>6</answer>", extract=tag) == 0.0
        assert score("5", extract=tag) == 0.0

    def test_partial_marks_are_wrong(self):
        from reasoning_gym import get_score_answer_fn

        assert 0 < get_score_answer_fn("chain_sum")("5 apples", SUM) < 1
        assert score("5 apples") == 0.0

    def test_a_scorer_that_raises_on_garbage_makes_it_wrong(self):
        from reasoning_gym import create_dataset

        tasks = create_dataset("prime_factorization", size=1, seed=0)
        with pytest.raises(ValueError, match="invalid literal"):
            tasks.score_answer("garbage", tasks[0])
        assert score("garbage", "prime_factorization", tasks[0]) == 0.0
        assert score(tasks[0]["answer"], "prime_factorization", tasks[0]) == 1.0

    def test_an_entry_that_went_through_json_is_scored_as_before(self):
        from reasoning_gym import create_dataset, get_score_answer_fn

        # Its scorer compares with a tuple, which JSON turns into a list.
        entry = create_dataset("rearc", size=1, seed=0)[0]
        plain = json.loads(json.dumps(entry))
        assert get_score_answer_fn("rearc")(entry["answer"], plain) < 1
        assert score(entry["answer"], "rearc", plain) == 1.0
        assert score("garbage", "rearc", plain) == 0.0

    def test_none_where_the_scorer_cannot_tell_right_from_wrong(self):
        from reasoning_gym import create_dataset

        for task in ("graph_color", "game_of_life_halting"):
            entry = create_dataset(task, size=1, seed=0)[0]
            assert score(str(entry["answer"]), task, entry) is None
            assert score("garbage", task, entry) is None
        assert score("5", "chain_sum", {**SUM, "answer": None}) is None
        assert score("x", "simple_integration", {"answer": "x"}) is None
        (result,) = ReasoningGymReward()([asked("5", None)])
        assert result.value is None

    @pytest.mark.parametrize(
        ("held", "needle"),
        [
            ("chain_sum", "must hold a task and its entry, not chain_sum"),
            ({"task": "chain_sum"}, "must hold a task and its entry"),
            ({"entry": SUM}, "must hold a task and its entry"),
            ({"task": "chain_sums", "entry": SUM}, "the task 'chain_sums', which reasoning-gym does not know"),
        ],
    )
    def test_a_malformed_column_is_an_error_and_no_score(self, held, needle):
        with pytest.raises(RewardError) as error:
            ReasoningGymReward()([asked("5", held)])
        assert needle in str(error.value)

    def test_T47_what_hangs_costs_its_item_and_is_wrong(self):
        from reasoning_gym import create_dataset

        entry = create_dataset("countdown", size=1, seed=0)[0]
        held = {"task": "countdown", "entry": json.loads(json.dumps(entry))}
        batch = [asked(text, held, prompt=f"p{n}") for n, text in enumerate(("9**9**9**9", entry["answer"], "1"))]
        pool = RewardPool([ReasoningGymReward(deadline=2.0)], workers=1)
        assert values(pool, batch) == {"reasoning_gym_reward": [0.0, 1.0, 0.0]}
        assert pool.overruns == {"reasoning_gym_reward": 1}
        pool.close()

    def test_no_task_runs_what_the_model_writes(self, tmp_path):
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS

        from roll_lightning.data.reasoning_gym import DENIED

        made = str(tmp_path / "made")
        forms = (f"open({made!r}, 'w')", f"(open#\n({made!r}, 'w'))", f"f·({made!r}, 'w') for f· in [open]")
        hidden = f"""sin('open'+',('[1]+"{made!r},'w')")"""
        for task in sorted(
            DATASETS.keys() - DENIED.keys() - {"futoshiki", "knight_swap"}
        ):  # these two are slow to make
            entry = json.loads(json.dumps(create_dataset(task, size=1, seed=0)[0], default=str))
            for form in (*forms, hidden):
                for text in (form, f"[{form}]", f"[[{form}]]", f"x + {form}"):
                    assert score(text, task, entry) == 0.0
                    assert not list(tmp_path.iterdir()), (task, text)

    def test_a_scorer_that_evaluates_would_run_each_of_them(self, tmp_path):
        from reasoning_gym import create_dataset, get_score_answer_fn

        made = tmp_path / "made"
        attempts = {
            "n_queens": f"[f·({str(made)!r}, 'w') for f· in [open]]",
            "countdown": f"(open#\n({str(made)!r}, 'w'))",
            "simple_integration": f"""sin('open'+',('[1]+"{str(made)!r},'w')")""",
        }
        for task, text in attempts.items():
            entry = create_dataset(task, size=1, seed=0)[0]
            get_score_answer_fn(task)(text, entry)
            assert made.exists(), task
            made.unlink()
            assert score(text, task, json.loads(json.dumps(entry, default=str))) == 0.0
            assert not made.exists(), task

    def test_right_answers_are_harmless(self):
        from reasoning_gym import create_dataset

        from roll_lightning.rewards.reasoning_gym import EVALUATED

        for task in EVALUATED:
            entries = list(create_dataset(task, size=12, seed=3))
            # Where SymPy found no antiderivative, the entry's answer is the integral itself.
            for entry in [entry for entry in entries if "Integral" not in entry["answer"]]:
                assert score(entry["answer"], task, json.loads(json.dumps(entry, default=str))) == 1.0

    def test_a_puzzle_is_not_solved_with_numbers_that_it_did_not_give(self):
        from reasoning_gym import create_dataset

        entry = create_dataset("countdown", size=1, seed=0)[0]
        numbers, target = entry["metadata"]["numbers"], entry["metadata"]["target"]
        ones = "+".join(["cos(x-x)"] * target)
        assert score(f"({'+'.join(map(str, numbers))})*(x-x)+{ones}", "countdown", entry) == 0.0

    def test_an_integral_sign_is_no_antiderivative(self):
        from reasoning_gym import create_dataset

        entry = create_dataset("simple_integration", size=1, seed=0)[0]
        evasion = f"Integral({entry['metadata']['integrand']}, X) + C"
        assert score(evasion, "simple_integration", entry) == 0.0
        assert score(entry["answer"], "simple_integration", entry) == 1.0

    def test_the_column_is_that_of_the_rows(self):
        from roll_lightning.data import reasoning_gym
        from roll_lightning.rewards.reasoning_gym import COLUMN

        assert reasoning_gym.COLUMN == COLUMN
