from __future__ import annotations

import json
import random

import pytest
from tiny_tokenizers import bpe_tokenizer, turns, word_tokenizer

from roll_lightning.data.encode import encode_prompt_text
from roll_lightning.data.jsonl import Row
from roll_lightning.data.prompts import PromptSettings, tokenise_prompts
from roll_lightning.data.tokenise import TokenisedRow, load_rows, tokenise_rows
from roll_lightning.errors import ConfigError, DataError
from roll_lightning.models.tokenizer import character_tokenizer, read_chat_template

CHATML = read_chat_template("chatml")


def rows_of(*values):
    return [Row(line, value, "f.jsonl") for line, value in enumerate(values, start=1)]


def pair(prompt, completion):
    return {"prompt": prompt, "completion": completion}


def error_of(kind, call, *args, **kwargs):
    with pytest.raises(kind) as info:
        call(*args, **kwargs)
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


def test_prompt_and_completion_by_hand():
    dataset = tokenise_rows(rows_of(pair("31=", "13")), character_tokenizer("0123456789="))
    assert dataset.rows == [TokenisedRow([5, 3, 12, 3, 5, 1], [0, 0, 0, 1, 1, 1], 1)]
    assert dataset.summary() == "1 rows, 6 tokens, 3 with loss; 0 truncated, 0 dropped as too long, 0 without loss"


def test_messages_by_hand():
    dataset = tokenise_rows(rows_of({"messages": turns("hi", "yes")}), word_tokenizer(CHATML))
    assert dataset.rows == [TokenisedRow([1, 4, 6, 2, 1, 5, 7, 2], [0, 0, 0, 0, 0, 0, 1, 1], 1)]


def test_T36_message_pair_has_loss_on_the_completion_only():
    tokenizer = word_tokenizer(CHATML)
    row = pair(turns("hi", "yes", "bye"), [{"role": "assistant", "content": "no"}, *turns("ok", "hi")])
    (made,) = tokenise_rows(rows_of(row), tokenizer).rows
    # fmt: off
    assert made.input_ids == [1, 4, 6, 2, 1, 5, 7, 2, 1, 4, 9, 2, 1, 5, 8, 2, 1, 4, 10, 2, 1, 5, 6, 2]
    assert made.loss_mask == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    # fmt: on


def test_T30_tokens_are_never_decoded_and_encoded_again():
    tokenizer = bpe_tokenizer()
    draw = random.Random(0)
    merged = 0
    for _ in range(300):
        text = "".join(draw.choice("ababababc 😀ש\n") for _ in range(draw.randint(2, 12)))
        cut = draw.randint(1, len(text))
        prompt, completion = text[:cut], text[cut:]
        (row,) = tokenise_rows(rows_of(pair(prompt, completion)), tokenizer).rows
        (task,) = tokenise_prompts(rows_of({"prompt": prompt}), tokenizer, PromptSettings(answer_column=None)).prompts
        cut_ids, end = len(task.token_ids), tokenizer.eos_token_id
        assert tuple(row.input_ids[:cut_ids]) == task.token_ids == tuple(tokenizer(prompt).input_ids)
        assert row.input_ids[cut_ids:] == [*tokenizer(completion).input_ids, end]
        assert row.loss_mask == [0] * cut_ids + [1] * (len(row.input_ids) - cut_ids)
        assert tokenizer.decode(row.input_ids) == text + "<|endoftext|>"
        merged += tokenizer(tokenizer.decode(row.input_ids)).input_ids != row.input_ids
    # The property says something only because encoding the decoded text does merge over the boundary.
    assert merged > 50


def test_T32_eos_that_is_also_the_padding_token_keeps_its_loss():
    tokenizer = bpe_tokenizer()
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    eos = tokenizer.eos_token_id
    (row,) = tokenise_rows(rows_of(pair("the<|endoftext|>cat", "sat<|endoftext|>mat")), tokenizer).rows
    learned = [mask for token, mask in zip(row.input_ids, row.loss_mask, strict=True) if token == eos]
    assert learned == [0, 1, 1]


def test_completion_that_ends_with_eos_gets_no_second_one():
    tokenizer = bpe_tokenizer()
    plain, ended = tokenise_rows(rows_of(pair("the", "cat"), pair("the", "cat<|endoftext|>")), tokenizer).rows
    assert plain.input_ids == ended.input_ids


@pytest.mark.parametrize("prompt", ["the cat", "<s>the cat"])
def test_bos_stands_once_and_eos_only_at_the_end(prompt):
    tokenizer = bpe_tokenizer(bos="<s>")
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert tokenizer("x").input_ids[0] == bos
    assert tokenizer("x").input_ids[-1] == eos
    (row,) = tokenise_rows(rows_of(pair(prompt, "sat")), tokenizer).rows
    the_cat = tokenizer("the cat", add_special_tokens=False).input_ids
    assert row.input_ids == [bos, *the_cat, *tokenizer("sat", add_special_tokens=False).input_ids, eos]
    assert encode_prompt_text(tokenizer, "") == [bos]


def test_bos_stays_when_it_is_the_same_token_as_eos():
    tokenizer = bpe_tokenizer(bos="<s>")
    tokenizer.eos_token = "<s>"
    assert encode_prompt_text(tokenizer, "the") == [tokenizer.bos_token_id, *tokenizer("the").input_ids[1:-1]]
    assert encode_prompt_text(tokenizer, "") == [tokenizer.bos_token_id]


def test_first_token_never_carries_loss():
    (row,) = tokenise_rows(rows_of(pair("", "12")), character_tokenizer("123")).rows
    assert row == TokenisedRow([2, 3, 1], [0, 1, 1], 1)


def test_truncate_keeps_the_beginning_and_counts():
    tokenizer = character_tokenizer("0123456789=")
    rows = rows_of(pair("31=", "13"), pair("3=", "3"), pair("9876543=", "1"))
    with pytest.warns(UserWarning, match=r"f.jsonl: 1 of 3 rows left out because none of their tokens"):
        dataset = tokenise_rows(rows, tokenizer, max_length=5, overlong="truncate")
    assert dataset.rows == [
        TokenisedRow([5, 3, 12, 3, 5], [0, 0, 0, 1, 1], 1),
        TokenisedRow([5, 12, 5, 1], [0, 0, 1, 1], 2),
    ]
    assert (dataset.truncated, dataset.dropped, dataset.fully_masked) == (2, 0, 1)
    assert dataset.summary() == "2 rows, 9 tokens, 4 with loss; 2 truncated, 0 dropped as too long, 1 without loss"


def test_drop_and_error():
    tokenizer = character_tokenizer("0123456789=")
    rows = rows_of(pair("31=", "1"), pair("31=", "13"))
    dataset = tokenise_rows(rows, tokenizer, max_length=5, overlong="drop")
    assert [row.line for row in dataset.rows] == [1]
    assert (dataset.truncated, dataset.dropped, dataset.fully_masked) == (0, 1, 0)
    message = error_of(DataError, tokenise_rows, rows, tokenizer, max_length=5, overlong="error")
    assert message.startswith("f.jsonl:2 has 6 tokens, more than max_length 5; ")
    message = error_of(DataError, tokenise_rows, rows, tokenizer, max_length=3, overlong="drop")
    assert message.startswith("f.jsonl: none of 2 rows is left to train on: 2 dropped as too long, 0 without")


def test_T33_fully_masked_rows_are_counted_and_all_of_them_is_an_error():
    tokenizer = word_tokenizer(CHATML)
    rows = rows_of({"messages": turns("hi")}, {"messages": turns("hi", "yes")})
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        dataset = tokenise_rows(rows, tokenizer)
    assert dataset.fully_masked == 1
    assert [row.line for row in dataset.rows] == [2]
    message = error_of(DataError, tokenise_rows, rows[:1], tokenizer)
    assert "none of 1 rows is left to train on: 0 dropped as too long, 1 without" in message


def test_reads_files(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(json.dumps(pair("1", x)) for x in "23").encode())
    dataset = load_rows(path, character_tokenizer("123"), max_length=8)
    assert [(row.line, row.input_ids) for row in dataset.rows] == [(1, [2, 3, 1]), (2, [2, 4, 1])]


@pytest.mark.parametrize("text", ["naïve 😀👩‍👩‍👧", "שלום \u202eمرحبا", "a\u2028b\r\nc", "\x00\ufeff"])
def test_unicode_round_trips(text):
    tokenizer = bpe_tokenizer()
    (row,) = tokenise_rows(rows_of(pair(text, text)), tokenizer).rows
    assert tokenizer.decode(row.input_ids) == text + text + "<|endoftext|>"


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([{"messages": turns("1", "2")}, {"message": []}], ":2 has no column 'messages'; did you mean 'message'?"),
        ([{"txt": "1"}], ":1 has no column 'messages'; it has 'txt' (supervised rows have messages; or prompt and"),
        ([{"prompt": "1", "completions": "2"}], ":1 has no column 'completion'; did you mean 'completions'?"),
        ([{"completion": "2"}], ":1 has no column 'prompt'"),
        ([{"messages": [], **pair("1", "2")}], ":1 has both messages and prompt/completion"),
        ([pair("1", "2"), pair("1", 2)], ":2: prompt is a str and completion a int"),
        ([pair(turns("1"), "2")], ":1: prompt is a list and completion a str"),
        ([pair(turns("1", "2"), turns("1"))], ":1: the completion must begin with an assistant message"),
        ([pair(turns("1"), turns("1"))], ":1: the completion must begin with an assistant message"),
        ([pair(turns("1"), [{"role": "x"}])], ":1: completion: the content of message 1 must be a string"),
        ([pair("1", "2"), pair("1", "2y")], ":2: the tokenizer cannot encode 'y' (U+0079, character 2)"),
        ([pair("\ud800", "2")], ":1: the tokenizer cannot encode '\\ud800' (U+D800, character 1)"),
    ],
)
def test_malformed_rows_name_their_line(values, what):
    tokenizer = character_tokenizer("123")
    tokenizer.chat_template = read_chat_template("plain")
    message = error_of(DataError, tokenise_rows, rows_of(*values), tokenizer)
    assert message.startswith("f.jsonl" + what)


def test_wrong_settings():
    tokenizer, rows = character_tokenizer("123"), rows_of(pair("1", "2"))
    assert "max_length is 1" in error_of(ConfigError, tokenise_rows, rows, tokenizer, max_length=1)
    assert "overlong is 'cut'" in error_of(ConfigError, tokenise_rows, rows, tokenizer, overlong="cut")
    assert "no rows" in error_of(DataError, tokenise_rows, [], tokenizer)
    tokenizer.eos_token = None
    assert "no eos_token" in error_of(ConfigError, tokenise_rows, rows, tokenizer)
