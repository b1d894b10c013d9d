"""The rows that decode together, and the record of what they wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from roll_lightning.data.types import FinishReason
from roll_lightning.engines import kv_cache
from roll_lightning.engines.base import Request
from roll_lightning.engines.sampling import RowSampling
from roll_lightning.engines.stopping import StopStrings, stop_token_table
from roll_lightning.errors import EngineError


@dataclass
class PromptStates:
    """Computed prompts: what the model knows after reading them.

    Args:
        cache: keys and values, right-aligned.
        lengths: tokens of each prompt, int64 `[prompts]`.
        logits: logits of the next token, float32 `[prompts, vocab]`.
    """

    cache: Any
    lengths: Tensor
    logits: Tensor

    def select(self, rows: Tensor) -> None:
        """Keep these rows in place, repeats allowed, and drop columns that are padding in all of them."""
        lengths = self.lengths[rows]
        kv_cache.select_rows(self.cache, rows, self._padding(lengths))
        self.lengths, self.logits = lengths, self.logits[rows]

    def copy(self, rows: Tensor) -> PromptStates:
        """The states of these rows in memory of their own."""
        lengths = self.lengths[rows]
        return PromptStates(kv_cache.copy_rows(self.cache, rows, self._padding(lengths)), lengths, self.logits[rows])

    def append(self, other: PromptStates) -> None:
        """Put the rows of ``other`` below these, in place."""
        kv_cache.append_rows(self.cache, other.cache)
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.logits = torch.cat([self.logits, other.logits])

    def _padding(self, lengths: Tensor) -> int:
        return int(self.cache.get_seq_length()) - int(lengths.max())


class DecodeBatch:
    """Rows that decode together. ``states`` is on the policy's device, the bookkeeping `[rows]` on the CPU.

    Args:
        requests: all requests of the ``generate`` call.
        rows: the request number of each row.
        states: cache, lengths and next-token logits of each row.
    """

    def __init__(self, requests: Sequence[Request], rows: list[int], states: PromptStates) -> None:
        self._requests = requests
        self.states = states
        self.generated = torch.zeros(len(rows), dtype=torch.long)
        self.finished = torch.zeros(len(rows), dtype=torch.bool)
        self._set_rows(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _set_rows(self, rows: list[int]) -> None:
        """Build what follows from the rows' requests."""
        self.rows = rows
        self.row_ids = torch.tensor(rows, dtype=torch.long)
        requests = [self._requests[row] for row in rows]
        self.limits = torch.tensor([r.params.max_new_tokens for r in requests])
        self._stop_tokens = stop_token_table(requests)
        self.sampling = RowSampling.from_params([r.params for r in requests], self.states.logits.device)

    def select(self, keep: Tensor) -> None:
        """Keep these rows (CPU indices) in place."""
        self.states.select(keep.to(self.states.lengths.device))
        self.generated, self.finished = self.generated[keep], self.finished[keep]
        self._set_rows([self.rows[i] for i in keep.tolist()])

    def append(self, other: DecodeBatch) -> None:
        """Put the rows of ``other`` below these, in place."""
        self.states.append(other.states)
        self.generated = torch.cat([self.generated, other.generated])
        self.finished = torch.cat([self.finished, other.finished])
        self._set_rows(self.rows + other.rows)

    def advance(self, tokens: Tensor, stop_strings: StopStrings) -> Tensor:
        """Count one more token per live row and mark the rows that end with it.

        Args:
            tokens: what was drawn, int64 `[rows]` on the CPU.
            stop_strings: watches the rows that have stop strings.

        Returns:
            Rows that a stop token or stop string has ended, bool `[rows]`; it means something for rows that were live.
        """
        live = ~self.finished
        self.generated += live
        stopped = (tokens[:, None] == self._stop_tokens).any(dim=1)
        if stop_strings:
            drawn = zip(self.rows, tokens.tolist(), live.tolist(), strict=True)
            stopped |= torch.tensor([alive and stop_strings.ends(row, token) for row, token, alive in drawn])
        self.finished |= stopped | (self.generated >= self.limits)
        return stopped


@dataclass
class Transcript:
    """What the requests wrote, step by step; taken apart by request only at the end."""

    _rows: list[Tensor] = field(default_factory=list)
    _tokens: list[Tensor] = field(default_factory=list)
    _logprobs: list[Tensor] = field(default_factory=list)
    _stopped: list[Tensor] = field(default_factory=list)

    def add(self, rows: Tensor, tokens: Tensor, logprobs: Tensor, stopped: Tensor) -> None:
        """Add one step: request numbers, tokens, log-probabilities and "ended by a stop" of the live rows.

        Raises:
            EngineError: for a log-probability that is not finite, naming the request.
        """
        bad = ~logprobs.isfinite()
        if bad.any():
            raise EngineError(
                f"request {int(rows[bad][0])}: the policy's logits are not finite (NaN or inf), so no token can be "
                "drawn; look at the last optimizer step (loss, gradient norm, learning rate)"
            )
        self._rows.append(rows)
        self._tokens.append(tokens)
        self._logprobs.append(logprobs)
        self._stopped.append(stopped)

    def split(self, requests: int) -> list[tuple[list[int], list[float], FinishReason]]:
        """Tokens, log-probabilities and finish reason of each request."""
        rows = torch.cat(self._rows)
        # Stable: a request's tokens stay in the order of the steps.
        order = rows.argsort(stable=True)
        tokens = torch.cat(self._tokens)[order].tolist()
        logprobs = torch.cat(self._logprobs)[order].tolist()
        stopped = set(rows[torch.cat(self._stopped)].tolist())
        ends = rows.bincount(minlength=requests).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        return [
            (tokens[start:end], logprobs[start:end], "stop" if number in stopped else "length")
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]
