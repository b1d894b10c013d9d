from __future__ import annotations

import random

import pytest
from engine_helpers import byte_tokenizer, character_tokenizer

from roll_lightning.engines.base import Request, SamplingParams
from roll_lightning.engines.stopping import StopStrings, cut_at_stop, stop_token_table
from roll_lightning.errors import ConfigError


def request(*stop: str, ids: tuple[int, ...] = ()) -> Request:
    return Request((1,), SamplingParams(99, stop=stop, stop_token_ids=ids), seed=0, group=0)


def test_stop_token_table_is_padded_with_no_token() -> None:
    assert stop_token_table([request(ids=(3, 4)), request(), request(ids=(5,))]).tolist() == [[3, 4], [-1, -1], [5, -1]]
    assert stop_token_table([request(), request()]).shape == (2, 0)


def test_cut_is_before_the_first_stop_string() -> None:
    assert cut_at_stop("one END two STOP", ("STOP", "END")) == "one "
    assert cut_at_stop("nothing here", ("STOP",)) == "nothing here"


@pytest.mark.parametrize("stop", ["t s", " the", "ö", "猫", "\n", "he", "answer is 4", "42 "])
def test_stops_at_the_first_token_that_completes_the_string(stop: str) -> None:
    # Random tokens of a byte-level BPE: strings lie across tokens, characters are split over them.
    tokenizer = byte_tokenizer()
    rng = random.Random(0)
    text = "the cat sat on the mat. Größe 猫 é the answer is 42 \n"
    hits = 0
    for _ in range(30):
        tokens = []
        while len(tokens) < 60:
            start = rng.randrange(len(text))
            piece = text[start : start + rng.randrange(1, 20)].encode()
            # Written byte by byte half of the time, so that a character is several tokens.
            if rng.random() < 0.5:
                tokens += tokenizer.encode(piece.decode(), add_special_tokens=False)
            else:
                tokens += [tokenizer.convert_tokens_to_ids(t) for b in piece for t in byte_token(b)]
            if rng.random() < 0.1:
                tokens.append(0)
        watch = StopStrings(tokenizer, [request(stop)])
        ended = next((n for n, token in enumerate(tokens, 1) if watch.ends(0, token)), None)
        plain = next(
            (n for n in range(1, len(tokens) + 1) if stop in tokenizer.decode(tokens[:n], skip_special_tokens=True)),
            None,
        )
        assert ended == plain
        hits += plain is not None
    assert hits > 3


def test_a_tokenizer_that_drops_the_leading_space_still_finds_it_inside() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "\u2581": 1, "a": 2, "b": 3}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    assert fast.decode([1, 2, 3]) == "ab"
    assert fast.decode([2, 1, 2, 3]) == "a ab"
    watch = StopStrings(fast, [request(" ab")])
    assert [watch.ends(0, token) for token in (3, 2, 1, 2, 3)] == [False, False, False, False, True]


def byte_token(byte: int) -> list[str]:
    """The byte-level BPE's name of a byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [bytes_to_unicode()[byte]]


def test_requests_without_stop_strings_are_not_watched() -> None:
    watch = StopStrings(character_tokenizer(), [request(), request("a")])
    assert watch
    assert not watch.ends(0, 2)
    assert watch.ends(1, 2)
    assert not StopStrings(character_tokenizer(), [request()])


def test_bad_stop_strings_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty string"):
        StopStrings(character_tokenizer(), [request("")])
    with pytest.raises(ConfigError, match=r"'<eos>' is a special token; put its id 1 in stop_token_ids"):
        StopStrings(character_tokenizer(), [request("<eos>")])
