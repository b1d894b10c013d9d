"""When a response ends: stop tokens, stop strings, length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roll_lightning.engines.base import Request
from roll_lightning.errors import ConfigError


def stop_token_table(requests: Sequence[Request]) -> Tensor:
    """Stop tokens of each request, int64 `[rows, most]`, filled up with -1, which no token equals."""
    most = max((len(r.params.stop_token_ids) for r in requests), default=0)
    rows = [r.params.stop_token_ids + (-1,) * (most - len(r.params.stop_token_ids)) for r in requests]
    return torch.tensor(rows, dtype=torch.long).reshape(len(requests), most)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    return text[: min((at for at in map(text.find, stop) if at >= 0), default=len(text))]


class StopStrings:
    """Watches the responses of one ``generate`` call for stop strings, also those that span several tokens.

    Only a tail of each response is decoded at each token, and only if the token could complete a stop string.

    Raises:
        ConfigError: for an empty stop string, or one that is a special token (those are not in decoded text).
    """

    def __init__(self, tokenizer: Any, requests: Sequence[Request]) -> None:
        self._tokenizer = tokenizer
        self._stops = {i: r.params.stop for i, r in enumerate(requests) if r.params.stop}
        for stop in {s for stops in self._stops.values() for s in stops}:
            if not stop:
                raise ConfigError("an empty string is among the stop strings; take it out")
            if stop in tokenizer.all_special_tokens:
                number = tokenizer.convert_tokens_to_ids(stop)
                raise ConfigError(f"stop string {stop!r} is a special token; put its id {number} in stop_token_ids")
        self._special = frozenset(tokenizer.all_special_ids) if self._stops else frozenset()
        self._windows = {i: 4 + max(len(s.encode()) for s in stops) for i, stops in self._stops.items()}
        self._tokens: dict[int, list[int]] = {i: [] for i in self._stops}
        self._pieces: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._stops)

    def ends(self, request: int, token: int) -> bool:
        """Take the next token of a request and say whether its text now holds one of its stop strings."""
        stops = self._stops.get(request)
        if stops is None or token in self._special:
            return False
        tokens = self._tokens[request]
        tokens.append(token)
        if not self._may_complete(token, stops):
            return False
        # Each token is at least one byte of text, so a string of n bytes that ends here lies in the last n tokens; the
        # four before them complete a split character and keep the tokenizer's rules for the first token out of it.
        if not _holds(self.decode(tokens[-self._windows[request] :]), stops):
            return False
        return _holds(self.decode(tokens), stops)

    def decode(self, tokens: list[int]) -> str:
        """Text of the tokens without special tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _may_complete(self, token: int, stops: Sequence[str]) -> bool:
        """Whether text that ends with this token can be the first to hold a stop string."""
        if token not in self._pieces:
            self._pieces[token] = self.decode([token])
        piece = self._pieces[token]
        # A lone token may decode to part of a character, or lose the space that it has inside a text.
        if not piece or "\ufffd" in piece:
            return True
        return any(stop[-1].isspace() or stop[-1] in piece for stop in stops)


def _holds(text: str, stops: Sequence[str]) -> bool:
    return any(stop in text for stop in stops)
