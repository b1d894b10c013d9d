"""Values and metrics of each policy loss against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from roll_lightning.errors import ConfigError
from roll_lightning.functional.policy_losses import CISPO, TIS, TOPR, Kimi15, PPOClip, Vanilla

# A token has probability 0.2 now, so its log-probability is LOGP.
LOGP = math.log(0.2)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def one_token(loss, ratio: float, advantage: float, **more):
    """Loss, gradient and metrics of one token of probability 0.2."""
    logprobs = tensor(LOGP).requires_grad_()
    out = loss(logprobs, tensor(LOGP - math.log(ratio)), tensor(advantage), torch.ones(1, 1), **more)
    out.per_token.sum().backward()
    return out.per_token.item(), logprobs.grad.item(), {name: value.item() for name, value in out.metrics.items()}


def common(ratio: float) -> dict[str, float]:
    return {"ratio": ratio, "approxkl": math.log(ratio) ** 2 / 2, "policykl": math.log(ratio)}


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_vanilla(ratio, advantage):
    loss, gradient, metrics = one_token(Vanilla(), ratio, advantage)
    assert loss == pytest.approx(-advantage * LOGP, abs=1e-12)
    assert gradient == -advantage
    assert metrics == pytest.approx(common(ratio), abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "weight", "below", "above"),
    [(0.25, 0.5, 1, 0), (0.6, 0.6, 0, 0), (1.0, 1.0, 0, 0), (1.9, 1.9, 0, 0), (4.0, 2.0, 0, 1)],
)
@pytest.mark.parametrize("advantage", [3.0, -3.0])
def test_tis(ratio, weight, below, above, advantage):
    loss, gradient, metrics = one_token(TIS(lower_bound=0.5, upper_bound=2.0), ratio, advantage)
    assert loss == pytest.approx(-weight * advantage * LOGP, abs=1e-12)
    assert gradient == pytest.approx(-weight * advantage, abs=1e-12)
    clipped = {"tis_lower_clipfrac": below, "tis_upper_clipfrac": above, "tis_total_clipfrac": below + above}
    assert metrics == pytest.approx(common(ratio) | clipped | {"tis_clipped_ratio_mean": weight}, abs=1e-12)


def test_tis_default_bounds_are_0_and_1():
    assert one_token(TIS(), 0.001, 1.0)[1] == pytest.approx(-0.001, rel=1e-12)
    assert one_token(TIS(), 5.0, 1.0)[1] == -1.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient", "positive", "clipped"),
    [
        (0.1, 4.0, -8.0, 1, 0),  # positives: 2 A, whatever the ratio
        (9.0, 4.0, -8.0, 1, 0),
        (0.1, -4.0, 0.2, 0, 0),  # negatives: 0.5 A times the ratio, at most 1
        (1.0, -4.0, 2.0, 0, 0),
        (9.0, -4.0, 2.0, 0, 1),
        (2.0, 0.0, 0.0, 0, 1),
    ],
)
def test_topr(ratio, advantage, gradient, positive, clipped):
    loss, slope, metrics = one_token(TOPR(positive_weight=2.0, negative_weight=0.5), ratio, advantage)
    assert loss == pytest.approx(gradient * LOGP, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)
    expected = common(ratio) | {
        "topr_positive_loss": gradient * LOGP / 2 * positive,
        "topr_negative_loss": gradient * LOGP / 0.5 * (1 - positive),
        "topr_weighted_positive_loss": gradient * LOGP * positive,
        "topr_weighted_negative_loss": gradient * LOGP * (1 - positive),
        "topr_positive_ratio": positive,
        "topr_negative_ratio": 1 - positive,
        "topr_negative_total_clipfrac": clipped,
    }
    assert metrics == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("score", "advantage", "gradient"),
    [
        (1.0, -4.0, 8.0),  # a good answer below the group's mean: still a positive
        (0.0, 4.0, -0.2),  # a bad one above it: tapered by the ratio 0.1
        (-1.0, -4.0, 0.2),
    ],
)
def test_topr_goes_by_the_score_if_there_is_one(score, advantage, gradient):
    loss = TOPR(positive_weight=2.0, negative_weight=0.5)
    _, slope, metrics = one_token(loss, 0.1, advantage, scores=torch.tensor([score]))
    assert slope == pytest.approx(gradient, abs=1e-12)
    assert metrics["topr_positive_ratio"] == (score > 0)


def test_topr_scores_are_those_of_rows():
    ones = torch.ones(2, 3)
    out = TOPR()(-ones, -ones, ones, ones, scores=torch.tensor([0.0, 1.0]))
    assert out.metrics["topr_positive_ratio"].tolist() == [[0, 0, 0], [1, 1, 1]]


CISPO_CASES = [
    # ratio, advantage, weight, below, above, dropped by the unified mask
    (1.0, 2.0, 1.0, 0, 0, False),
    (1.2, 2.0, 1.2, 0, 0, False),
    (5.0, 2.0, 1.3, 0, 1, True),
    (5.0, -2.0, 1.3, 0, 1, False),
    (0.1, 2.0, 0.8, 1, 0, False),
    (0.1, -2.0, 0.8, 1, 0, True),
]


@pytest.mark.parametrize(("ratio", "advantage", "weight", "below", "above", "dropped"), CISPO_CASES)
@pytest.mark.parametrize("unified", [False, True])
def test_cispo(ratio, advantage, weight, below, above, dropped, unified):
    loss, gradient, metrics = one_token(CISPO(low=0.2, high=0.3, unified_mask=unified), ratio, advantage)
    kept = not (unified and dropped)
    assert loss == pytest.approx(-weight * advantage * LOGP * kept, abs=1e-12)
    assert gradient == pytest.approx(-weight * advantage * kept, abs=1e-12)
    expected = common(ratio) | {
        "cispo_lower_clipfrac": below,
        "cispo_upper_clipfrac": above,
        "cispo_total_clipfrac": below + above,
        "cispo_clipped_ratio_mean": weight,
    }
    if unified:
        expected["cispo_masked_positive_tokens"] = int(dropped and advantage > 0)
        expected["cispo_masked_negative_tokens"] = int(dropped and advantage < 0)
        expected["cispo_kept_tokens"] = int(not dropped)
    assert metrics == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.0, 2.0), (3.0, 2.0), (0.2, 2.0), (3.0, -2.0)])
def test_kimi15(ratio, advantage):
    loss, gradient, metrics = one_token(Kimi15(tau=0.5), ratio, advantage)
    d = math.log(ratio)
    assert loss == pytest.approx(-advantage * LOGP + 0.25 * d**2, abs=1e-12)
    assert gradient == pytest.approx(-advantage + 0.5 * d, abs=1e-12)
    expected = common(ratio) | {
        "kimi15_log_ratio_mean": d,
        "kimi15_log_ratio_abs_mean": abs(d),
        "kimi15_policy_grad_magnitude": 2 * abs(d),
        "kimi15_kl_reg_magnitude": 0.25 * d**2,
    }
    assert metrics == pytest.approx(expected, abs=1e-12)


def test_kimi15_comes_to_rest_at_advantage_over_tau():
    assert one_token(Kimi15(tau=0.5), math.exp(0.6 / 0.5), 0.6)[1] == pytest.approx(0, abs=1e-12)


# A row of two turns: a token that doubled, one of the environment, one that halved (all have probability 0.2 now).
ROW = tensor(LOGP, 7.0, LOGP), tensor(LOGP - math.log(2), 7.0, LOGP + math.log(2)), tensor(1.0, 5.0, -1.0)
MASK = torch.tensor([[1, 0, 1]])


@pytest.mark.parametrize(
    ("loss", "token", "sequence"),
    [
        (lambda level: PPOClip(low=0.2, high=0.2, ratio=level), (-1.2, 0, 0.8), (-1, 0, 1)),
        (lambda level: TIS(0, 1.5, ratio=level), (-1.5 * LOGP, 0, 0.5 * LOGP), (-LOGP, 0, LOGP)),
        (lambda level: TOPR(ratio=level), (-LOGP, 0, 0.5 * LOGP), (-LOGP, 0, LOGP)),
        (lambda level: CISPO(0.4, 0.4, ratio=level), (-1.4 * LOGP, 0, 0.6 * LOGP), (-LOGP, 0, LOGP)),
        (lambda level: CISPO(0.4, 0.4, True, ratio=level), (0, 0, 0), (-LOGP, 0, LOGP)),
        (
            lambda level: Kimi15(tau=2.0, ratio=level),
            (-LOGP + math.log(2) ** 2, 0, LOGP + math.log(2) ** 2),
            (-LOGP, 0, LOGP),
        ),
    ],
)
def test_levels_of_the_ratio(loss, token, sequence):
    """2 and 1/2 make 1 together; each turn has one token, so that segments are tokens here."""
    for level, expected in (("token", token), ("sequence", sequence), ("segment", token)):
        out = loss(level)(*ROW, MASK)
        torch.testing.assert_close(out.per_token, tensor(*expected), rtol=1e-12, atol=1e-12)
        ratio = (1, 0, 1) if level == "sequence" else (2, 0, 0.5)
        torch.testing.assert_close(out.metrics["ratio"], tensor(*ratio), rtol=1e-12, atol=0)
        # The divergence from the old policy is that of tokens at every level.
        torch.testing.assert_close(out.metrics["policykl"], tensor(math.log(2), 0, -math.log(2)), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TIS(lower_bound=-0.1), r"TIS.lower_bound is -0.1; it must be 0 or more"),
        (lambda: TIS(lower_bound=float("nan")), r"TIS.lower_bound is nan"),
        (lambda: TIS(lower_bound=2.0, upper_bound=2.0), r"TIS.upper_bound is 2.0; .* above TIS.lower_bound \(2.0\)"),
        (lambda: TIS(upper_bound=float("inf")), r"TIS.upper_bound is inf"),
        (lambda: TOPR(positive_weight=-1.0), r"TOPR.positive_weight is -1.0; it must be a finite number, 0 or more"),
        (lambda: TOPR(negative_weight=float("nan")), r"TOPR.negative_weight is nan"),
        (lambda: TOPR(0.0, 0.0), r"are both 0"),
        (lambda: CISPO(low=0.0), r"CISPO.low is 0.0"),
        (lambda: CISPO(low=1.1), r"CISPO.low is 1.1"),
        (lambda: CISPO(high=0.0), r"CISPO.high is 0.0"),
        (lambda: CISPO(high=float("inf")), r"CISPO.high is inf"),
        (lambda: Kimi15(tau=0.0), r"Kimi15.tau is 0.0; .* \(Vanilla has no such term\)"),
        (lambda: Kimi15(tau=float("inf")), r"Kimi15.tau is inf"),
        *[
            (lambda cls=cls: cls(ratio="seq"), rf"{cls.__name__}.ratio is 'seq'; it must be token, sequence or segment")
            for cls in (PPOClip, TIS, TOPR, CISPO, Kimi15)
        ],
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
