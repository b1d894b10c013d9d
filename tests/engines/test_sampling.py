from __future__ import annotations

import math

import pytest
import torch

from roll_lightning.engines.base import SamplingParams
from roll_lightning.engines.sampling import (
    RowSampling,
    UniformStreams,
    draw_tokens,
    filtered_log_softmax,
    inverse_cdf,
)

CPU = torch.device("cpu")


def sampling(*params: SamplingParams) -> RowSampling:
    return RowSampling.from_params(params, CPU)


def chi_square_p(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """The probability of a larger deviation than the observed one, if the probabilities are right."""
    kept = probabilities > 0
    assert counts[~kept].sum() == 0
    expected = probabilities[kept] * counts.sum()
    statistic = ((counts[kept] - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((kept.sum() - 1) / 2), statistic / 2))


def test_inverse_cdf_by_hand() -> None:
    # Probabilities .1 .2 .3 .4: the quantile's interval is [cdf before, cdf).
    logprobs = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).log().repeat(7, 1)
    uniforms = torch.tensor([0.0, 0.09, 0.11, 0.29, 0.31, 0.59, 0.999999], dtype=torch.float64)
    assert inverse_cdf(logprobs, uniforms).tolist() == [0, 0, 1, 1, 2, 2, 3]


def test_the_largest_uniform_stays_inside_whatever_the_total_rounds_to() -> None:
    logits = torch.randn(500, 300, generator=torch.Generator().manual_seed(0)) * 5
    logits[:, 200:] = -torch.inf
    logprobs = logits.log_softmax(-1)
    tokens = inverse_cdf(logprobs, torch.full((500,), math.nextafter(1.0, 0.0), dtype=torch.float64))
    assert logprobs.exp().double().sum(-1).unique().numel() > 10
    assert logprobs.gather(1, tokens[:, None]).isfinite().all()


def test_tokens_of_probability_zero_are_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    largest = math.nextafter(1.0, 0.0)
    for uniform, token in ((0.0, 1), (largest, 3)):
        tokens, logprobs = draw_tokens(
            logits, torch.tensor([uniform], dtype=torch.float64), sampling(SamplingParams(max_new_tokens=1))
        )
        assert tokens.item() == token
        assert logprobs.item() == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1),
        SamplingParams(1, temperature=0.5),
        SamplingParams(1, temperature=1.5, top_k=4),
        SamplingParams(1, top_p=0.8),
        SamplingParams(1, temperature=1.3, top_k=6, top_p=0.7),
    ],
)
def test_filters_and_frequencies_against_a_plain_computation(params: SamplingParams) -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 1.1, 0.0, -0.4, 1.9, 0.8])
    exact = plain_distribution(logits.tolist(), params)
    rows = 20_000
    streams = UniformStreams([17 * i + 5 for i in range(rows)])
    uniforms = streams.draw(range(rows), CPU)
    tokens, logprobs = draw_tokens(logits.repeat(rows, 1), uniforms, sampling(*[params] * rows))
    assert torch.allclose(logprobs.double(), exact.log()[tokens], atol=1e-6)
    assert chi_square_p(tokens.bincount(minlength=8).double(), exact) > 1e-3


def plain_distribution(logits: list[float], params: SamplingParams) -> torch.Tensor:
    """Temperature, top-k, top-p, renormalise: with Python numbers and a loop."""
    weights = [math.exp(x / params.temperature) for x in logits]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    if params.top_k:
        order = order[: params.top_k]
    total = sum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        kept.append(i)
        mass += weights[i] / total
        if mass >= params.top_p:
            break
    norm = sum(weights[i] for i in kept)
    return torch.tensor([weights[i] / norm if i in kept else 0.0 for i in range(len(weights))], dtype=torch.float64)


def test_rows_do_not_see_the_parameters_of_others() -> None:
    torch.manual_seed(3)
    logits = torch.randn(5, 30) * 2
    params = [
        SamplingParams(1, temperature=0.7),
        SamplingParams(1, top_k=3),
        SamplingParams(1, top_p=0.5),
        SamplingParams(1, temperature=0.0, top_k=2),
        SamplingParams(1),
    ]
    uniforms = torch.rand(5, dtype=torch.float64)
    together = draw_tokens(logits, uniforms, sampling(*params))
    for i, p in enumerate(params):
        alone = draw_tokens(logits[i : i + 1], uniforms[i : i + 1], sampling(p))
        assert alone[0].item() == together[0][i].item()
        assert alone[1].item() == together[1][i].item()


def test_greedy_takes_the_mode_and_reports_temperature_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    params = SamplingParams(1, temperature=0.0, top_k=1, top_p=0.1)
    tokens, logprobs = draw_tokens(logits, torch.tensor([0.999], dtype=torch.float64), sampling(params))
    assert tokens.item() == 1
    assert logprobs.item() == pytest.approx(3 - math.log(1 + math.e**3 + math.e))


def test_ties_at_the_top_k_boundary_keep_exactly_k() -> None:
    logprobs = filtered_log_softmax(torch.zeros(1, 6), sampling(SamplingParams(1, top_k=2)))
    assert logprobs.isfinite().sum() == 2


def test_top_p_is_reached_exactly_at_a_boundary() -> None:
    # 0.5 alone reaches top_p 0.5, so nothing else is kept.
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    logprobs = filtered_log_softmax(logits, sampling(SamplingParams(1, top_p=0.5)))
    assert logprobs.exp().tolist() == [[1.0, 0.0, 0.0]]


def test_streams_follow_their_seed_alone() -> None:
    one = UniformStreams([7, 8, 9])
    first = [one.draw([0, 1, 2], CPU), one.draw([2, 0], CPU)]
    other = UniformStreams([9, 7])
    again = [other.draw([0], CPU), other.draw([0], CPU)]
    assert again[0].item() == first[0][2].item()
    assert again[1].item() == first[1][0].item()


def test_top_p_one_keeps_the_tail_although_rounding_fills_the_mass_early() -> None:
    # The first token's probability rounds to 1 in float64, the second one's is far below: it is still kept.
    logits = torch.tensor([[0.0, -60.0], [0.0, 0.0]])
    logprobs = filtered_log_softmax(logits, sampling(SamplingParams(1), SamplingParams(1, top_p=0.5)))
    assert logprobs.tolist()[0] == [0.0, -60.0]


def test_no_step_is_prepared_that_no_row_needs() -> None:
    plain = sampling(SamplingParams(1), SamplingParams(9))
    assert (plain.temperature, plain.top_k, plain.top_p, plain.greedy) == (None, None, None, None)
