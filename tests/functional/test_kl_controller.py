from __future__ import annotations

import math

import pytest
import torch

from roll_lightning.errors import CheckpointError, ConfigError, RollLightningError
from roll_lightning.functional.kl_controller import AdaptiveKL, FixedKL


def test_fixed_stays():
    controller = FixedKL(0.05)
    controller.update(1e9, 4096)
    assert controller.coefficient == 0.05
    assert controller.state_dict() == {}
    controller.load_state_dict({})


@pytest.mark.parametrize(
    ("kl", "samples", "expected"),
    [
        (6.0, 500, 0.2),  # on target
        (6.6, 500, 0.201),  # a tenth above: 0.2 (1 + 0.1 · 0.05)
        (5.4, 500, 0.199),
        (7.2, 500, 0.202),  # a fifth above: the bound
        (600.0, 500, 0.202),
        (0.0, 500, 0.198),
        (-3.0, 500, 0.198),  # an estimate of the KL may be negative
        (600.0, 1000, 0.204),  # twice the samples, twice the step
    ],
)
def test_adaptive_hand_computed(kl, samples, expected):
    controller = AdaptiveKL(init=0.2, target=6.0, horizon=10_000)
    controller.update(kl, samples)
    assert controller.coefficient == pytest.approx(expected, rel=1e-12)


def test_adaptive_compounds():
    controller = AdaptiveKL(init=1.0, target=1.0, horizon=10)
    for kl in (2.0, 2.0, 0.5):
        controller.update(kl, 1)
    assert controller.coefficient == pytest.approx(1.02 * 1.02 * 0.98, rel=1e-12)


def test_adaptive_steers_a_policy_to_its_target():
    """A policy whose KL falls as the coefficient grows settles at the target from either side."""
    for init in (0.05, 5.0):
        controller = AdaptiveKL(init=init, target=0.5, horizon=20)
        for _ in range(200):
            controller.update(0.5 / controller.coefficient, 16)
        assert 0.5 / controller.coefficient == pytest.approx(0.5, rel=1e-3)


def test_state_survives_resuming(tmp_path):
    """Six iterations at once, and three and three with a checkpoint read weights-only in between."""
    kls = [0.1, 9.0, 6.3, 5.9, 20.0, 6.1]
    whole, first, second = (AdaptiveKL() for _ in range(3))
    for kl in kls:
        whole.update(kl, 256)
    for kl in kls[:3]:
        first.update(kl, 256)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for kl in kls[3:]:
        second.update(kl, 256)
    assert second.coefficient == whole.coefficient
    assert second.coefficient != AdaptiveKL().coefficient


def test_a_state_of_the_other_controller_is_refused():
    with pytest.raises(CheckpointError, match="resume with AdaptiveKL"):
        FixedKL().load_state_dict(AdaptiveKL().state_dict())
    with pytest.raises(CheckpointError, match="resume with FixedKL"):
        AdaptiveKL().load_state_dict(FixedKL().state_dict())


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_kl_that_is_not_finite_leaves_the_coefficient(kl):
    controller = AdaptiveKL()
    with pytest.raises(RollLightningError, match=f"the KL to the reference is {kl}"):
        controller.update(kl, 8)
    assert controller.coefficient == 0.2


def test_a_horizon_that_could_turn_the_coefficient_negative():
    controller = AdaptiveKL(horizon=100)
    controller.check_samples(499)
    for call in (lambda: controller.check_samples(500), lambda: controller.update(6.0, 500)):
        with pytest.raises(ConfigError, match=r"model.kl.horizon is 100, but .* 500 samples.* above 100 "):
            call()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FixedKL(-0.1), "FixedKL.coefficient is -0.1"),
        (lambda: FixedKL(math.nan), "FixedKL.coefficient is nan"),
        (lambda: FixedKL(math.inf), "FixedKL.coefficient is inf"),
        (lambda: AdaptiveKL(init=0.0), "AdaptiveKL.init is 0.0"),
        (lambda: AdaptiveKL(target=-1.0), "AdaptiveKL.target is -1.0"),
        (lambda: AdaptiveKL(horizon=math.nan), "AdaptiveKL.horizon is nan"),
    ],
)
def test_bad_settings(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
