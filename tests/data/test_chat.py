from __future__ import annotations

import pytest
from tiny_tokenizers import bpe_tokenizer, turns, word_tokenizer

from roll_lightning.data.chat import check_messages, encode_messages, encode_prompt, masked_runs, render_prompt
from roll_lightning.errors import ConfigError, DataError
from roll_lightning.models.tokenizer import character_tokenizer, read_chat_template, stop_token_ids

CHATML = read_chat_template("chatml")
# As Qwen ships it: the line break after the stop token is marked too.
MARKED_LINE_BREAK = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
STOP_OUTSIDE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
)
NO_MARKER = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
NO_STOP = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
FIRST_TURN_ONLY = (
    "{% for m in messages %}{% if loop.index == 2 %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)


def error_of(kind, call, *args):
    with pytest.raises(kind) as info:
        call(*args)
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


def test_T37_chatml_tokens_and_mask_by_hand():
    tokenizer = word_tokenizer(CHATML)
    messages = [{"role": "system", "content": "ok"}, *turns("hi", "yes .", "bye", "no")]
    ids, mask = encode_messages(tokenizer, messages)
    # fmt: off
    assert ids == [1, 3, 10, 2, 1, 4, 6, 2, 1, 5, 7, 11, 2, 1, 4, 9, 2, 1, 5, 8, 2]
    assert mask == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    # fmt: on


def test_T37_tool_output_carries_no_loss():
    tokenizer = word_tokenizer(CHATML.replace("message.role + '\\n'", "'user' + '\\n'"))
    messages = [*turns("hi", "yes"), {"role": "tool", "content": "no no no"}, {"role": "assistant", "content": "ok"}]
    ids, mask = encode_messages(tokenizer, messages)
    assert [token for token, learned in zip(ids, mask, strict=True) if learned] == [7, 2, 10, 2]
    assert [ids[start:end] for start, end in masked_runs(mask)] == [[7, 2], [10, 2]]


def test_plain_template_by_hand():
    tokenizer = character_tokenizer("0123456789=")
    tokenizer.chat_template = read_chat_template("plain")
    ids, mask = encode_messages(tokenizer, turns("31=", "13", "20=", "02"))
    assert ids == [5, 3, 12, 3, 5, 1, 4, 2, 12, 2, 4, 1]
    assert mask == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert encode_prompt(tokenizer, turns("31=")) == [5, 3, 12]


@pytest.mark.parametrize("template", ["chatml", "plain"])
@pytest.mark.parametrize("text", ["yes", "", " spaces ", "two\nlines\n", "שלום مرحبا", "👩‍👩‍👧😀", "naïve\u2028"])
def test_T31_stop_token_is_inside_the_mask(template, text):
    tokenizer = bpe_tokenizer(template)
    ids, mask = encode_messages(tokenizer, turns("hi", text, "more", text))
    runs = masked_runs(mask)
    assert len(runs) == 2
    for start, end in runs:
        assert ids[end - 1] in stop_token_ids(tokenizer)
        assert tokenizer.decode(ids[start : end - 1]) == text


def test_T31_white_space_after_the_stop_token_may_be_marked():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = MARKED_LINE_BREAK
    ids, mask = encode_messages(tokenizer, turns("hi", "yes", "more", "no"))
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert [ids[end - 2] for _, end in masked_runs(mask)] == [stop, stop]


def test_T31_stop_token_outside_the_mask_is_refused():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template, tokenizer.chat_template_source = STOP_OUTSIDE, "my.jinja"
    message = error_of(ConfigError, encode_messages, tokenizer, turns("hi", "yes"), "a.jsonl:7")
    assert message.startswith("a.jsonl:7: chat template 'my.jinja' leaves the end-of-turn token <|im_end|> outside")
    assert "chat_template: chatml" in message
    tokenizer.chat_template = NO_STOP
    assert "without a special token" in error_of(ConfigError, encode_messages, tokenizer, turns("hi", "yes"))


def test_T33_template_without_marker_is_refused_by_name(tmp_path):
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = NO_MARKER
    tokenizer.name_or_path = "org/model"
    message = error_of(ConfigError, encode_messages, tokenizer, turns("hi", "yes"))
    assert message.startswith("the chat template of tokenizer 'org/model' has no {% generation %} marker")
    assert "chat_template: chatml" in message
    # The word alone, as in `add_generation_prompt`, is no marker.
    tokenizer.chat_template = NO_MARKER + "{% if add_generation_prompt %}{{ 'x' }}{% endif %}"
    assert "no {% generation %} marker" in error_of(ConfigError, encode_messages, tokenizer, turns("hi", "yes"))
    # A prompt needs none.
    assert encode_prompt(tokenizer, turns("hi"))


def test_T33_template_that_marks_only_some_turns_is_refused():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = FIRST_TURN_ONLY
    message = error_of(ConfigError, encode_messages, tokenizer, turns("hi", "yes", "more", "no"), "f:1")
    assert "marks 1 of 2 assistant turns" in message


def test_T36_mask_that_runs_over_the_turn_is_refused():
    # This tokenizer has no token for the line break that ends the marked span; transformers then marks all the rest.
    tokenizer = word_tokenizer(MARKED_LINE_BREAK)
    assert "marks 1 of 2" in error_of(ConfigError, encode_messages, tokenizer, turns("hi", "yes", "bye", "no"))
    assert "marks the last token" in error_of(ConfigError, encode_messages, tokenizer, turns("hi", "yes", "bye"))


def test_T32_pad_and_eos_the_same_token_keeps_the_loss_on_stop_tokens():
    tokenizer = bpe_tokenizer("plain")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    ids, mask = encode_messages(tokenizer, turns("hi", "yes", "more", "no"))
    assert [learned for token, learned in zip(ids, mask, strict=True) if token == tokenizer.eos_token_id] == [1, 1]


def test_T30_prompt_tokens_are_those_of_the_training_row():
    for template in ("chatml", "plain"):
        tokenizer = bpe_tokenizer(template)
        prompt = encode_prompt(tokenizer, turns("the cat ab"))
        ids, mask = encode_messages(tokenizer, turns("the cat ab", "\nsat"))
        if template == "chatml":
            assert ids[: len(prompt)] == prompt
            assert mask[: len(prompt) + 1] == [0] * len(prompt) + [1]
        assert render_prompt(tokenizer, turns("the cat ab")) == tokenizer.decode(prompt)


def test_no_second_bos():
    tokenizer = bpe_tokenizer("plain", bos="<s>")
    ids, mask = encode_messages(tokenizer, turns("hi", "yes"))
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert mask[0] == 0


def test_no_assistant_turn_means_no_loss():
    ids, mask = encode_messages(word_tokenizer(CHATML), turns("hi"))
    assert mask == [0] * len(ids)


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ("hi", "must be a list of at least one message, not 'hi'"),
        ([], "not []"),
        (["hi"], "message 1 must be an object"),
        ([{"content": "x"}], "the role of message 1 must be a string, but it is missing"),
        ([*turns("hi"), {"role": "user"}], "the content of message 2 must be a string, but it is missing"),
        ([{"role": "user", "content": None}], "content of message 1 must be a string, but it is None"),
        ([{"role": "user", "content": [{"type": "text"}]}], "content of message 1"),
        ([{"role": "asistant", "content": "x"}], "unknown role 'asistant'; did you mean 'assistant'?"),
        ([{"role": "gpt" * 40, "content": "x"}], "roles are system, developer, user, assistant, tool"),
    ],
)
def test_malformed_messages(messages, what):
    message = error_of(DataError, check_messages, messages, "f:3")
    assert message.startswith("f:3: ")
    assert what in message


def test_refusals_of_template_and_tokenizer_name_the_row():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = CHATML + "{{ raise_exception('roles must\nalternate') }}"
    message = error_of(DataError, encode_messages, tokenizer, turns("hi", "yes"), "f:3")
    assert message.startswith("f:3: the chat template of tokenizer")
    assert message.endswith("refuses it: roles must")
    message = error_of(DataError, encode_prompt, character_with_plain("123"), turns("1x"), "f:4")
    assert message == "f:4: the tokenizer cannot encode 'x' (U+0078, character 2)"


def character_with_plain(characters):
    tokenizer = character_tokenizer(characters)
    tokenizer.chat_template = read_chat_template("plain")
    return tokenizer


def test_no_template_at_all():
    tokenizer = character_tokenizer("123")
    for call in (encode_messages, encode_prompt):
        message = error_of(ConfigError, call, tokenizer, turns("1"))
        assert "has no chat template" in message
        assert "chat_template: chatml" in message
