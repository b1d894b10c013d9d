from __future__ import annotations

import json

import huggingface_hub.constants
import pytest
from tokenizers import AddedToken

from roll_lightning.data.encode import encode_prompt_text
from roll_lightning.errors import ConfigError, DataError
from roll_lightning.models.tokenizer import character_tokenizer, load_tokenizer, read_chat_template, stop_token_ids


def error_of(*args):
    with pytest.raises(ConfigError) as info:
        load_tokenizer(*args)
    message = str(info.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.fixture
def digits(tmp_path):
    character_tokenizer("0123456789=").save_pretrained(tmp_path / "digits")
    return str(tmp_path / "digits")


TEXTS = ["538210=", " 5  = 8 ", "a\nb\r\n\t", "שלום مرحبا", "é e\u0301 👩‍👩‍👧", "don't . ,", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_characters_round_trip_exactly_before_and_after_saving(text, tmp_path):
    tokenizer = character_tokenizer("".join(TEXTS))
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, load_tokenizer(str(tmp_path))):
        ids = each(text).input_ids
        assert len(ids) == len(text)
        assert each.decode(ids) == text
        assert each.decode([*ids, each.eos_token_id, each.pad_token_id], skip_special_tokens=True) == text


def test_character_ids_by_hand(digits):
    for tokenizer in (character_tokenizer("0123456789=00"), load_tokenizer(digits)):
        assert tokenizer("538210=").input_ids == [7, 5, 10, 4, 3, 2, 12]
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, None)
        assert tokenizer("1<eos>").input_ids == [3, 1]
        assert len(tokenizer) == 14


def test_unknown_characters_are_refused():
    with pytest.raises(Exception, match="Missing"):
        character_tokenizer("123")("4")
    with pytest.raises(ConfigError, match="characters is empty"):
        character_tokenizer("")


def test_T32_missing_padding_token_becomes_eos(tmp_path):
    tokenizer = character_tokenizer("123")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.pad_token_id == loaded.eos_token_id == 1


def test_no_eos(tmp_path):
    tokenizer = character_tokenizer("123")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    message = error_of(str(tmp_path))
    assert "has no eos_token" in message
    assert "`tokenizer: path`" in message


def test_bad_paths(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert error_of("model").startswith("folder 'model' has no tokenizer")
    assert error_of("broken").startswith("the tokenizer in 'broken' cannot be loaded")
    for missing in (
        str(tmp_path / "nowhere"),
        "./nowhere",
        "../nowhere",
        "~/nowhere/at/all",
        "digits/nowhere",
        "a/b/c",
    ):
        assert error_of(missing).startswith(f"there is no folder {missing!r}")
    assert error_of("org/nothing-there").startswith("'org/nothing-there' is no local folder, and the hub did not")
    for path in ("model", "broken", "./nowhere", "org/nothing-there"):
        assert "`tokenizer: path`" in error_of(path)


def test_chat_template_by_name_file_or_not_at_all(tmp_path, digits):
    assert load_tokenizer(digits).chat_template is None
    assert load_tokenizer(digits, "plain").chat_template == read_chat_template("plain")
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}=")
    tokenizer = load_tokenizer(digits, str(tmp_path / "mine.jinja"))
    messages = [{"role": "user", "content": "12"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "12="
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(str(tmp_path / "saved")).apply_chat_template(messages, tokenize=False) == "12="


def test_bad_templates(tmp_path, digits):
    assert error_of(digits, "chatlm").startswith("chat_template 'chatlm' is unknown; did you mean 'chatml'?")
    assert "one of chatml, plain, or a .jinja file" in error_of(digits, "zzz")
    assert "cannot be read" in error_of(digits, str(tmp_path / "no.jinja"))
    (tmp_path / "bad.jinja").write_text("{% for m in messages %}\n{{ m. }}")
    assert "is not valid Jinja: line 2" in error_of(digits, str(tmp_path / "bad.jinja"))
    message = error_of(digits, "chatml")
    assert "needs the token <|im_start|>" in message
    assert "chat_template: plain" in message


def test_a_template_that_refuses_an_empty_turn_is_taken(tmp_path, digits):
    (tmp_path / "strict.jinja").write_text("{% if not messages[0].content %}{{ raise_exception('no') }}{% endif %}x")
    assert load_tokenizer(digits, str(tmp_path / "strict.jinja")).chat_template.endswith("x")


def test_T31_stop_tokens_are_eos_and_the_end_of_turn(digits):
    plain = character_tokenizer("0123456789=")
    assert stop_token_ids(plain) == (1,)
    assert stop_token_ids(load_tokenizer(digits, "plain")) == (1,)
    tokenizer = character_tokenizer("systemuseraint\n0123456789=")
    tokenizer.add_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")], special_tokens=True)
    tokenizer.chat_template = read_chat_template("chatml")
    assert stop_token_ids(tokenizer) == (1, tokenizer.convert_tokens_to_ids("<|im_end|>"))
    tokenizer.eos_token = "<|im_end|>"
    assert stop_token_ids(tokenizer) == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_a_character_tokenizer_loads_the_same_beside_a_model(tmp_path, model_type):
    """Qwen2 gives a tokenizer without unknown token one more token when it is loaded beside its config."""
    from transformers import AutoConfig

    made = character_tokenizer("0123456789=")
    made.save_pretrained(tmp_path)
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert len(loaded) == len(made) == 14
    assert loaded("538210=")["input_ids"] == made("538210=")["input_ids"] == [7, 5, 10, 4, 3, 2, 12]
    assert loaded.decode(loaded("538210=")["input_ids"]) == "538210="
    if model_type == "qwen2":
        return  # its tokenizer class drops characters that it does not know
    with pytest.raises(DataError, match="'x'"):
        encode_prompt_text(loaded, "12x")
