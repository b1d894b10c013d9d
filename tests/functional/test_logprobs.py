from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from roll_lightning.errors import ConfigError
from roll_lightning.functional.logprobs import count_chunks, token_logprobs

BATCH, TOKENS, DIM, VOCAB = 3, 7, 5, 11


class Case:
    """Random hidden states, a head, and ragged positions."""

    def __init__(self, dtype: torch.dtype = torch.float64, bias: bool = True, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.hidden = (2 * torch.randn(BATCH, TOKENS, DIM)).to(dtype).requires_grad_()
        self.head = nn.Linear(DIM, VOCAB, bias=bias).to(dtype)
        self.input_ids = torch.randint(VOCAB, (BATCH, TOKENS))
        self.positions = torch.rand(BATCH, TOKENS) < 0.6
        self.positions[:, 3] = True
        self.positions[2] = False
        self.weights = torch.randn(BATCH, TOKENS).to(torch.promote_types(dtype, torch.float32))

    def run(self, **kwargs: object) -> Tensor:
        arguments = {"vocab_size": VOCAB, **kwargs}
        return token_logprobs(self.hidden, self.head, self.input_ids, self.positions, **arguments).logprobs  # type: ignore[arg-type]

    def gradients(self, logprobs: Tensor) -> list[Tensor]:
        leaves = [self.hidden, *self.head.parameters()]
        return list(torch.autograd.grad((logprobs * self.weights).sum(), leaves))


def plain(case: Case, temperature: float = 1.0, postprocess=lambda logits: logits) -> Tensor:
    """The textbook form, token by token through torch.distributions."""
    rows = []
    logits = postprocess(case.head(case.hidden)).to(case.weights.dtype) / temperature
    for b in range(BATCH):
        row = [logits.new_zeros(())]
        for t in range(1, TOKENS):
            distribution = torch.distributions.Categorical(logits=logits[b, t - 1])
            chosen = distribution.log_prob(case.input_ids[b, t])
            row.append(chosen if case.positions[b, t] else logits.new_zeros(()))
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("chunk_tokens", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_T22_equals_plain_log_softmax_at_every_temperature_and_chunk_size(chunk_tokens, temperature):
    case = Case()
    logprobs = case.run(max_chunk_elements=chunk_tokens * VOCAB, temperature=temperature)
    expected = plain(case, temperature)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(case.gradients(logprobs), case.gradients(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk_tokens", [2, 1000])
def test_float32_equals_plain_form(chunk_tokens):
    case = Case(torch.float32)
    logprobs = case.run(max_chunk_elements=chunk_tokens * VOCAB, temperature=1.5)
    expected = plain(case, 1.5)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-6)
    for ours, theirs in zip(case.gradients(logprobs), case.gradients(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_hand_computed():
    head = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [1.0], [2.0]]))
    hidden = torch.tensor([[[1.0], [2.0], [99.0]]])
    out = token_logprobs(hidden, head, torch.tensor([[0, 2, 1]]), torch.ones(1, 3), vocab_size=3, entropy=True)
    # softmax(0, 1, 2) = .0900, .2447, .6652; softmax(0, 2, 4) = .0159, .1173, .8668
    torch.testing.assert_close(out.logprobs, torch.tensor([[0.0, -0.407606, -2.142932]]), rtol=0, atol=1e-6)
    torch.testing.assert_close(out.entropy, torch.tensor([[0.0, 0.832396, 0.441052]]), rtol=0, atol=1e-5)


def test_position_zero_is_never_scored():
    case = Case()
    case.positions[:] = False
    without = case.run()
    case.positions[:, 0] = True
    assert torch.equal(case.run(), without)
    assert torch.equal(case.run(), torch.zeros(BATCH, TOKENS, dtype=torch.float64))
    assert count_chunks(case.positions, VOCAB, 1) == 1


def test_positions_are_not_written_to():
    case = Case()
    case.positions[:, 0] = True
    case.run()
    assert case.positions[:, 0].all()


@pytest.mark.parametrize("chunk_tokens", [2, 1000])
def test_tied_weights(chunk_tokens):
    """The embedding is the head: its gradient has both parts."""
    torch.manual_seed(0)
    embedding = nn.Embedding(VOCAB, DIM).double()
    head = nn.Linear(DIM, VOCAB, bias=False).double()
    head.weight = embedding.weight
    ids = torch.randint(VOCAB, (BATCH, TOKENS))
    positions = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    hidden = embedding(ids).cumsum(1)
    ours = token_logprobs(hidden, head, ids, positions, vocab_size=VOCAB, max_chunk_elements=chunk_tokens * VOCAB)
    full = head(hidden)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    torch.testing.assert_close(ours.logprobs.sum(), full.sum(), rtol=0, atol=1e-11)
    (gradient,) = torch.autograd.grad(ours.logprobs.sum(), embedding.weight, retain_graph=True)
    (expected,) = torch.autograd.grad(full.sum(), embedding.weight)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("chunk_tokens", [2, 1000])
def test_postprocess_comes_before_the_temperature(chunk_tokens):
    case = Case()

    def cap(logits: Tensor) -> Tensor:
        return 3 * torch.tanh(logits / 3)

    logprobs = case.run(temperature=0.5, postprocess=cap, max_chunk_elements=chunk_tokens * VOCAB)
    expected = plain(case, 0.5, cap)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(case.gradients(logprobs), case.gradients(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_entropy_is_of_the_tempered_distribution(temperature):
    case = Case()
    out = token_logprobs(
        case.hidden,
        case.head,
        case.input_ids,
        case.positions,
        vocab_size=VOCAB,
        temperature=temperature,
        entropy=True,
        max_chunk_elements=2 * VOCAB,
    )
    expected = torch.distributions.Categorical(logits=case.head(case.hidden) / temperature).entropy()
    assert out.entropy is not None
    mask = case.positions[:, 1:]
    torch.testing.assert_close(out.entropy[:, 1:][mask], expected[:, :-1][mask].detach(), rtol=0, atol=1e-12)
    assert not out.entropy[~case.positions].any()
    for ours, theirs in zip(
        case.gradients(out.logprobs), case.gradients(case.run(temperature=temperature)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_forbidden_tokens():
    """A postprocess that forbids tokens with -inf gives finite values, entropies and gradients."""
    case = Case()
    case.input_ids.clamp_(max=VOCAB - 2)

    def forbid(logits: Tensor) -> Tensor:
        return logits.masked_fill(torch.arange(VOCAB) == VOCAB - 1, -torch.inf)

    out = token_logprobs(
        case.hidden, case.head, case.input_ids, case.positions, vocab_size=VOCAB, entropy=True, postprocess=forbid
    )
    expected = torch.distributions.Categorical(logits=case.head(case.hidden)[..., :-1]).entropy()
    assert out.entropy is not None
    mask = case.positions[:, 1:]
    torch.testing.assert_close(out.entropy[:, 1:][mask], expected[:, :-1][mask].detach())
    assert all(gradient.isfinite().all() for gradient in case.gradients(out.logprobs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_models_give_float32(dtype):
    case = Case(dtype)
    logprobs = case.run(temperature=1.5)
    logits = case.head(case.hidden).float()
    expected = (logits / 1.5)[:, :-1].log_softmax(-1).gather(-1, case.input_ids[:, 1:, None]).squeeze(-1)
    assert logprobs.dtype == torch.float32
    mask = case.positions[:, 1:]
    torch.testing.assert_close(logprobs[:, 1:][mask], expected[mask], rtol=0, atol=1e-6)
    assert [gradient.dtype for gradient in case.gradients(logprobs)] == [dtype] * 3


@pytest.mark.parametrize("chunk_tokens", [2, 1000])
def test_autocast_changes_only_the_head(chunk_tokens):
    case = Case(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs = case.run(temperature=1.5, max_chunk_elements=chunk_tokens * VOCAB)
        logits = case.head(case.hidden)
    assert (logits.dtype, logprobs.dtype) == (torch.bfloat16, torch.float32)
    expected = (logits.float() / 1.5)[:, :-1].log_softmax(-1).gather(-1, case.input_ids[:, 1:, None]).squeeze(-1)
    mask = case.positions[:, 1:]
    torch.testing.assert_close(logprobs[:, 1:][mask], expected[mask], rtol=0, atol=1e-6)
    assert [gradient.dtype for gradient in case.gradients(logprobs)] == [torch.float32] * 3


def test_no_selected_position_still_uses_every_parameter():
    case = Case()
    case.positions[:] = False
    logprobs = case.run()
    assert torch.equal(logprobs, torch.zeros(BATCH, TOKENS, dtype=torch.float64))
    for gradient in case.gradients(logprobs):  # autograd.grad raises for an unused leaf
        assert not gradient.any()


@pytest.mark.parametrize("width", [1, TOKENS])
def test_idle_call_is_exact_even_where_the_logit_is_infinite(width):
    case = Case()
    case.positions[:] = False

    def forbid_all_but_one(logits: Tensor) -> Tensor:
        return logits.masked_fill(torch.arange(VOCAB) != (int(case.input_ids[0, 0]) + 1) % VOCAB, -torch.inf)

    out = token_logprobs(
        case.hidden[:, :width],
        case.head,
        case.input_ids[:, :width],
        case.positions[:, :width],
        vocab_size=VOCAB,
        postprocess=forbid_all_but_one,
    )
    assert not out.logprobs.any()
    gradients = torch.autograd.grad(out.logprobs.sum(), [case.hidden, *case.head.parameters()])
    assert not any(gradient.any() for gradient in gradients)


class CountingHead(nn.Linear):
    """Counts its calls, as a collective head would feel them."""

    calls = 0

    def forward(self, states: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(states)


@pytest.mark.parametrize("min_chunks", [1, 2, 4, 9])
@pytest.mark.parametrize("empty", [False, True])
def test_min_chunks_sets_the_number_of_head_calls_and_changes_nothing_else(min_chunks, empty):
    case = Case()
    case.positions[:] = False
    if not empty:
        case.positions[0, 1:6] = True
    expected = case.run()
    expected_gradients = case.gradients(expected)
    counting = CountingHead(DIM, VOCAB).double()
    counting.load_state_dict(case.head.state_dict())
    case.head = counting
    own = count_chunks(case.positions, VOCAB, 2 * VOCAB)
    assert own == (1 if empty else 3)
    logprobs = case.run(max_chunk_elements=2 * VOCAB, min_chunks=min_chunks)
    calls = max(own, min_chunks)
    assert counting.calls == calls
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(case.gradients(logprobs), expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert counting.calls == (2 * calls if calls > 1 else calls)  # several chunks: backward computes each again


def test_one_chunk_is_not_computed_again_and_scoring_has_no_graph():
    case = Case()
    counting = CountingHead(DIM, VOCAB).double()
    case.head = counting
    case.gradients(case.run())
    assert counting.calls == 1
    with torch.no_grad():
        assert not case.run(max_chunk_elements=VOCAB).requires_grad


def test_T24_scoring_and_training_passes_agree_bit_for_bit():
    case = Case(torch.float32)
    with torch.no_grad():
        scored = case.run(max_chunk_elements=2 * VOCAB, temperature=0.5)
    assert torch.equal(scored, case.run(max_chunk_elements=2 * VOCAB, temperature=0.5))


def test_T10_unselected_places_change_nothing():
    case = Case()
    case.positions[0, :5] = False
    expected = case.run()
    wanted = case.gradients(expected)
    predictors = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    predictors[:, :-1] = case.positions[:, 1:]
    with torch.no_grad():
        case.hidden[~predictors] = torch.nan
        case.input_ids[~case.positions] = 0
    logprobs = case.run()
    assert torch.equal(logprobs, expected)
    for ours, theirs in zip(case.gradients(logprobs), wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_gradcheck():
    case = Case()

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        def head(states: Tensor) -> Tensor:
            return states @ weight.T

        return token_logprobs(
            hidden, head, case.input_ids, case.positions, vocab_size=VOCAB, temperature=0.7, max_chunk_elements=40
        ).logprobs

    weight = case.head.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(compute, (case.hidden, weight))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"max_chunk_elements": 0}, "max_chunk_elements is 0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": VOCAB + 1}, "the head gives 11"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ConfigError, match=message):
        Case().run(**change)


@pytest.mark.parametrize("limit", [10**9, 2 * VOCAB])
def test_gradients_of_log_probabilities_and_entropy(limit):
    """Against finite differences, whole and in chunks."""
    torch.manual_seed(0)
    hidden = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, 5, dtype=torch.float64, requires_grad=True)
    ids, positions = torch.randint(VOCAB, (2, 6)), torch.rand(2, 6) < 0.8

    def score(hidden, weight):
        out = token_logprobs(
            hidden,
            lambda states: states @ weight.T,
            ids,
            positions,
            vocab_size=VOCAB,
            temperature=1.3,
            entropy=True,
            max_chunk_elements=limit,
        )
        return out.logprobs, out.entropy, out.logprobs * 2 + out.entropy.square()

    assert torch.autograd.gradcheck(score, (hidden, weight))


def test_entropy_gradient_with_impossible_tokens_is_finite():
    hidden = torch.zeros(1, 3, 1, requires_grad=True)
    forbid = torch.tensor([0.0, 1.0, -torch.inf])
    out = token_logprobs(
        hidden,
        lambda states: states + forbid,
        torch.tensor([[0, 1, 0]]),
        torch.ones(1, 3),
        vocab_size=3,
        entropy=True,
    )
    (out.entropy * 1e6).sum().backward()
    assert torch.isfinite(hidden.grad).all()
