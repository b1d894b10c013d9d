from __future__ import annotations

import pytest
from tiny_tokenizers import bpe_tokenizer, turns, word_tokenizer

from roll_lightning.data.chat import encode_messages
from roll_lightning.data.columns import find_form
from roll_lightning.data.jsonl import Row
from roll_lightning.data.supervised import encode_row
from roll_lightning.data.tokenise import tokenise_rows
from roll_lightning.errors import ConfigError, DataError
from roll_lightning.models.tokenizer import character_tokenizer, read_chat_template

CHATML = read_chat_template("chatml")


def rows_of(*values):
    return [Row(line, value, "f.jsonl") for line, value in enumerate(values, start=1)]


def tokens_of(value, tokenizer, **kwargs):
    (row,) = tokenise_rows(rows_of(value), tokenizer, **kwargs).rows
    return row.input_ids, row.loss_mask


def error_of(kind, call, *args, **kwargs):
    with pytest.raises(kind) as info:
        call(*args, **kwargs)
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


class TestText:
    def test_loss_on_every_token_but_the_first_and_eos_at_the_end(self):
        assert tokens_of({"text": "132"}, character_tokenizer("123")) == ([2, 4, 3, 1], [0, 1, 1, 1])

    @pytest.mark.parametrize("text", ["the cat", "<s>the cat", "the cat<|endoftext|>"])
    def test_bos_and_eos_stand_once(self, text):
        tokenizer = bpe_tokenizer(bos="<s>")
        words = tokenizer("the cat", add_special_tokens=False).input_ids
        ids = [tokenizer.bos_token_id, *words, tokenizer.eos_token_id]
        assert tokens_of({"text": text}, tokenizer) == (ids, [0, *[1] * (len(words) + 1)])

    def test_T32_text_that_holds_the_padding_token_learns_it(self):
        tokenizer = bpe_tokenizer()
        assert tokenizer.pad_token_id == tokenizer.eos_token_id
        ids, mask = tokens_of({"text": "the<|endoftext|>cat"}, tokenizer)
        assert ids.count(tokenizer.eos_token_id) == 2
        assert mask == [0] + [1] * (len(ids) - 1)

    def test_T30_text_is_tokenised_once(self):
        tokenizer = bpe_tokenizer()
        text = "naïve 😀\u2028 ab ababab\n"
        assert tokens_of({"text": text}, tokenizer)[0] == [*tokenizer(text).input_ids, tokenizer.eos_token_id]

    def test_needs_eos_and_a_string(self):
        tokenizer = character_tokenizer("123")
        assert "text must be a string, not a int" in error_of(DataError, tokens_of, {"text": 1}, tokenizer)
        tokenizer.eos_token = None
        assert "no eos_token" in error_of(ConfigError, tokens_of, {"text": "1"}, tokenizer)


class TestInstruction:
    @pytest.mark.parametrize("more", [{}, {"input": ""}, {"input": None}])
    def test_instruction_and_output(self, more):
        row = {"instruction": "hi", "output": "yes", **more}
        assert tokens_of(row, word_tokenizer(CHATML)) == ([1, 4, 6, 2, 1, 5, 7, 2], [0, 0, 0, 0, 0, 0, 1, 1])

    def test_input_stands_below_the_instruction(self):
        tokenizer = bpe_tokenizer()
        row = {"instruction": "the cat", "input": "sat", "output": "on"}
        assert tokens_of(row, tokenizer) == encode_messages(tokenizer, turns("the cat\n\nsat", "on"))
        only_input = {"instruction": "", "input": "sat", "output": "on"}
        assert tokens_of(only_input, tokenizer) == encode_messages(tokenizer, turns("sat", "on"))

    def test_needs_a_template_and_strings(self):
        row = {"instruction": "1", "output": "2"}
        message = error_of(ConfigError, tokens_of, row, character_tokenizer("123"))
        assert "has no chat template" in message
        message = error_of(DataError, tokens_of, row | {"input": 3}, word_tokenizer(CHATML))
        assert message == "f.jsonl:1: input must be a string, not a int"


class TestTurns:
    def test_loss_on_the_last_turn_only(self):
        tokenizer, row = word_tokenizer(CHATML), {"messages": turns("hi", "yes", "bye", "no")}
        ids = [1, 4, 6, 2, 1, 5, 7, 2, 1, 4, 9, 2, 1, 5, 8, 2]
        assert tokens_of(row, tokenizer) == (ids, [0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1])
        assert tokens_of(row, tokenizer, turns="last") == (ids, [0] * 14 + [1, 1])

    def test_the_last_turn_may_be_followed_by_others(self):
        row = {"messages": turns("hi", "yes", "bye", "no", "ok")}
        _, mask = tokens_of(row, word_tokenizer(CHATML), turns="last")
        assert mask == [0] * 14 + [1, 1] + [0] * 4

    def test_last_turn_of_a_completion(self):
        said = [{"role": "assistant", "content": "no"}, *turns("ok", "hi")]
        row = {"prompt": turns("hi", "yes", "bye"), "completion": said}
        all_of_it, last = (tokens_of(row, word_tokenizer(CHATML), turns=which)[1] for which in ("all", "last"))
        assert (sum(all_of_it), sum(last)) == (4, 2)
        assert last == [0] * 22 + [1, 1]

    @pytest.mark.parametrize("row", [{"text": "12"}, {"prompt": "1", "completion": "23"}])
    def test_strings_are_one_turn(self, row):
        tokenizer = character_tokenizer("123")
        assert tokens_of(row, tokenizer, turns="last") == tokens_of(row, tokenizer)

    def test_T33_a_row_without_an_assistant_turn_is_left_out(self):
        rows = rows_of({"messages": turns("hi")}, {"messages": turns("hi", "yes")})
        with pytest.warns(UserWarning, match="1 of 2 rows"):
            assert tokenise_rows(rows, word_tokenizer(CHATML), turns="last").fully_masked == 1

    def test_T31_the_stop_token_of_the_last_turn_has_loss(self):
        tokenizer = bpe_tokenizer()
        ids, mask = tokens_of({"messages": turns("the", "cat", "sat", "on the mat")}, tokenizer, turns="last")
        learned = [token for token, loss in zip(ids, mask, strict=True) if loss]
        assert tokenizer.decode(learned) == "on the mat<|im_end|>"

    def test_unknown(self):
        assert "turns is 'first'" in error_of(ConfigError, tokens_of, {"text": "1"}, bpe_tokenizer(), turns="first")


PAIR = {"prompt": "1", "completion": "2"}
CHAT = {"messages": turns("1", "2")}
ALPACA = {"instruction": "1", "input": None, "output": "2"}
TEXT = {"text": "1"}


class TestForms:
    @pytest.mark.parametrize(
        ("row", "form"), [(PAIR, "completion"), (CHAT, "messages"), (ALPACA, "instruction"), (TEXT, "text")]
    )
    def test_found_by_columns(self, row, form):
        assert find_form(rows_of(row, row | {"id": 3})) == form
        every = dict.fromkeys([*PAIR, *CHAT, *ALPACA, *TEXT])
        assert find_form(rows_of(every | row)) == form

    def test_columns_of_other_forms_do_not_count_alone(self):
        assert find_form(rows_of(CHAT | {"prompt": "1"})) == "messages"

    def test_several_forms_need_a_choice(self):
        rows = rows_of(ALPACA | TEXT)
        message = error_of(DataError, find_form, rows)
        assert message == "f.jsonl:1 has both instruction/output and text; choose with data.form: instruction or text"
        tokenizer = character_tokenizer("12")
        tokenizer.chat_template = read_chat_template("plain")
        lengths = {form: len(tokens_of(rows[0].values, tokenizer, form=form)[0]) for form in ("instruction", "text")}
        assert lengths["text"] == 2 < lengths["instruction"]

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([PAIR, CHAT], "f.jsonl:2 has messages, but f.jsonl:1 has prompt and completion; all rows of"),
            ([PAIR, PAIR, PAIR | CHAT | {"completion": None}], "f.jsonl:3 has messages, but f.jsonl:1 has prompt and"),
            ([CHAT, dict.fromkeys(CHAT) | TEXT], "f.jsonl:2 has text, but f.jsonl:1 has messages; all rows of"),
            ([ALPACA, PAIR], "f.jsonl:2 has prompt and completion, but f.jsonl:1 has instruction and output; all"),
            ([PAIR, PAIR | {"completion": None}], "f.jsonl:2: completion is empty; fill it in, or remove the row"),
            ([PAIR | {"prompt": None}], "f.jsonl:1: prompt is empty"),
            ([dict.fromkeys(TEXT)], "f.jsonl:1: text is empty"),
            ([ALPACA, {"instruction": "1", "ouput": "2"}], "f.jsonl:2 has no column 'output'; did you mean 'ouput'?"),
            ([{"instruction": "1"}], "f.jsonl:1 has no column 'output'; it has 'instruction'"),
            ([TEXT, {}], "f.jsonl:2 has no column 'text'; it has none"),
        ],
    )
    def test_mixed_schemas_name_the_first_row_that_differs(self, values, message):
        assert error_of(DataError, find_form, rows_of(*values)).startswith(message)

    def test_a_form_that_is_asked_for(self):
        message = error_of(DataError, find_form, rows_of(CHAT), "text")
        assert message == "f.jsonl:1 has messages, but data.form is text, which needs text"
        assert "form is 'alpaca'" in error_of(ConfigError, find_form, rows_of(CHAT), "alpaca")

    def test_the_mask_is_as_long_as_the_ids(self):
        tokenizer = bpe_tokenizer()
        for row, form in ((PAIR, "completion"), (CHAT, "messages"), (ALPACA, "instruction"), (TEXT, "text")):
            ids, mask = encode_row(rows_of(row)[0], form, tokenizer)
            assert len(ids) == len(mask)
