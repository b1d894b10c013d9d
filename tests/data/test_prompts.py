from __future__ import annotations

import pytest
from tiny_tokenizers import bpe_tokenizer, turns, word_tokenizer

from roll_lightning.data.jsonl import Row
from roll_lightning.data.prompts import PromptSettings, load_prompts, tokenise_prompts
from roll_lightning.data.types import Prompt
from roll_lightning.errors import ConfigError, DataError
from roll_lightning.models.tokenizer import character_tokenizer, read_chat_template

CHATML = read_chat_template("chatml")
DIGITS = character_tokenizer("0123456789=")


def rows_of(*values):
    return [Row(line, value, "f.jsonl") for line, value in enumerate(values, start=1)]


def error_of(kind, rows, tokenizer, **settings):
    with pytest.raises(kind) as info:
        tokenise_prompts(rows, tokenizer, PromptSettings(**settings))
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


def test_string_prompt_by_hand():
    row = {"prompt": "31=", "answer": "13", "domain": "sort", "id": 7, "level": 2, "tags": ["x"]}
    dataset = tokenise_prompts(rows_of(row, {"prompt": "2", "answer": None}), DIGITS)
    assert dataset.prompts == [
        Prompt("7", (5, 3, 12), "31=", "13", "sort", (), {"level": 2, "tags": ["x"]}),
        Prompt("f.jsonl:2", (4,), "2", None, "default", (), {}),
    ]
    assert dataset.summary() == "2 prompts of up to 3 tokens, domains default, sort; 0 dropped as too long"


@pytest.mark.parametrize("column", ["prompt", "messages"])
def test_messages_get_the_generation_prompt(column):
    (prompt,) = tokenise_prompts(rows_of({column: turns("hi"), "answer": "yes"}), word_tokenizer(CHATML)).prompts
    assert prompt.token_ids == (1, 4, 6, 2, 1, 5)
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.messages == ({"role": "user", "content": "hi"},)
    assert prompt.columns == {}


def test_columns_by_other_names():
    row = {"question": "31=", "prompt": "9", "gold": "13", "answer": "x"}
    settings = PromptSettings(prompt_column="question", answer_column="gold")
    (prompt,) = tokenise_prompts(rows_of(row), DIGITS, settings).prompts
    assert (prompt.text, prompt.answer) == ("31=", "13")
    assert prompt.columns == {"prompt": "9", "answer": "x"}
    (prompt,) = tokenise_prompts(rows_of({"prompt": "9"}), DIGITS, PromptSettings(answer_column=None)).prompts
    assert prompt.answer is None


def test_bos_once_and_no_eos():
    tokenizer = bpe_tokenizer(bos="<s>")
    (prompt,) = tokenise_prompts(rows_of({"prompt": "ab", "answer": 1}), tokenizer).prompts
    assert prompt.token_ids == (tokenizer.bos_token_id, *tokenizer("ab", add_special_tokens=False).input_ids)


def test_long_prompts_are_refused_or_dropped():
    rows = rows_of({"prompt": "123", "answer": 1}, {"prompt": "1234", "answer": 1})
    assert len(tokenise_prompts(rows, DIGITS, PromptSettings(max_prompt_length=4)).prompts) == 2
    message = error_of(DataError, rows, DIGITS, max_prompt_length=3)
    assert message.startswith("f.jsonl:2: the prompt has 4 tokens, more than max_prompt_length 3; ")
    dataset = tokenise_prompts(rows, DIGITS, PromptSettings(max_prompt_length=3, overlong="drop"))
    assert ([prompt.text for prompt in dataset.prompts], dataset.dropped) == (["123"], 1)
    message = error_of(DataError, rows, DIGITS, max_prompt_length=2, overlong="drop")
    assert message == "f.jsonl: all 2 prompts are longer than max_prompt_length 2"


def test_unicode_rows_from_a_crlf_file_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "p.jsonl"
    texts = ["שלום", "👩‍👩‍👧", "مرحبا"]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(f'{{"prompt": "{t}", "answer": "{t}"}}' for t in texts).encode())
    tokenizer = bpe_tokenizer()
    prompts = load_prompts(str(path), tokenizer, PromptSettings(max_prompt_length=64)).prompts
    assert [prompt.text for prompt in prompts] == [prompt.answer for prompt in prompts] == texts
    assert [tokenizer.decode(prompt.token_ids) for prompt in prompts] == texts
    assert [prompt.id for prompt in prompts] == ["p.jsonl:1", "p.jsonl:2", "p.jsonl:3"]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([{"prompts": "1"}], ":1 has no column 'prompt'; did you mean 'prompts'? (another name: prompt_column)"),
        (
            [{"prompt": "1", "answer": 1}, {"prompt": "1", "anser": 1}],
            ":2 has no column 'answer'; did you mean 'anser'?",
        ),
        ([{"prompt": "1", "messages": [], "answer": 1}], ":1 has both prompt and messages; choose one with prompt_col"),
        ([{"prompt": 1, "answer": 1}], ":1: prompt must be a string or a list of messages, not int"),
        ([{"prompt": "", "answer": 1}], ":1: the prompt is empty"),
        ([{"prompt": [], "answer": 1}], ":1: messages must be a list of at least one message"),
        ([{"messages": turns("1", "2"), "answer": 1}], ":1: the messages end with an assistant turn"),
        ([{"prompt": "1", "answer": 1, "id": 1.5}], ":1: id must be a string or a whole number, not 1.5"),
        ([{"prompt": "1", "answer": 1, "id": True}], ":1: id must be a string or a whole number, not True"),
        ([{"prompt": "1", "answer": 1, "domain": None}], ":1: domain must be a string, not None"),
        ([{"prompt": "1x", "answer": 1}], ":1: the tokenizer cannot encode 'x' (U+0078, character 2)"),
        (
            [{"prompt": "1", "answer": 1, "id": "3"}, {"prompt": "2", "answer": 1, "id": 3}],
            ":2 has the id '3' of f.jsonl:1; ids must be unique",
        ),
    ],
)
def test_malformed_rows_name_their_line(values, what):
    assert error_of(DataError, rows_of(*values), DIGITS).startswith("f.jsonl" + what)


def test_wrong_settings():
    rows = rows_of({"prompt": "1", "answer": 1})
    assert "max_prompt_length is 0" in error_of(ConfigError, rows, DIGITS, max_prompt_length=0)
    assert "overlong is 'truncate'" in error_of(ConfigError, rows, DIGITS, overlong="truncate")
    assert "no rows" in error_of(DataError, [], DIGITS)
    messages = rows_of({"prompt": turns("1"), "answer": 1})
    assert "has no chat template" in error_of(ConfigError, messages, DIGITS)


def test_an_answer_behind_a_marker():
    """GSM8K's columns."""
    row = {"question": "2=", "answer": "#### 4 would be wrong: 2 + 3 = <<2+3=5>>5\n#### 5 \n"}
    settings = PromptSettings(prompt_column="question", answer_pattern="#### (.+)")
    (prompt,) = tokenise_prompts(rows_of(row), DIGITS, settings).prompts
    assert prompt.answer == "5"
    message = error_of(DataError, rows_of({"prompt": "1", "answer": "five"}), DIGITS, answer_pattern="#### (.+)")
    assert message == "f.jsonl:1: answer_pattern '#### (.+)' does not occur in answer 'five'"
    assert "does not occur" in error_of(DataError, rows_of({"prompt": "1", "answer": 5}), DIGITS, answer_pattern="(5)")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"answer_pattern": "("}, "is no regular expression"),
        ({"answer_pattern": "####"}, "has 0 groups; it needs exactly one"),
        ({"answer_pattern": "(.)", "answer_column": None}, "answer_column is null"),
    ],
)
def test_wrong_patterns(settings, named):
    assert named in error_of(ConfigError, rows_of({"prompt": "1", "answer": 1}), DIGITS, **settings)


def test_a_string_as_a_turn():
    tokenizer = word_tokenizer(CHATML)
    rows = rows_of({"prompt": "hi", "answer": 1})
    (turn,) = tokenise_prompts(rows, tokenizer, PromptSettings(chat=True)).prompts
    (same,) = tokenise_prompts(rows_of({"prompt": turns("hi"), "answer": 1}), tokenizer).prompts
    assert turn.token_ids == same.token_ids
    assert turn.messages == ({"role": "user", "content": "hi"},)
    (plain,) = tokenise_prompts(rows, tokenizer).prompts
    assert plain.messages == ()


@pytest.mark.parametrize("pattern", ["#### (.*)", "####( x)?"])
def test_a_pattern_that_finds_an_empty_answer_is_refused(pattern):
    rows = rows_of({"prompt": "1", "answer": "b #### "})
    error = error_of(DataError, rows, DIGITS, answer_pattern=pattern)
    assert f"f.jsonl:1: answer_pattern {pattern!r} finds an empty answer" in error


def test_a_null_column_of_messages_is_none():
    rows = rows_of({"prompt": "1", "messages": None, "answer": "b"})
    (prompt,) = tokenise_prompts(rows, DIGITS, PromptSettings()).prompts
    assert prompt.text == "1"
