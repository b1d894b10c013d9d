"""What must change no policy loss: masked places, padding, row order; and what every one of them must give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import pad

from roll_lightning.cli import main
from roll_lightning.commandline.classes import find_class, import_known_classes, parameters
from roll_lightning.functional.policy_losses import CISPO, TIS, TOPR, Kimi15, PolicyLoss, PPOClip, Vanilla

CONFIG = Path(__file__).parents[2] / "configs" / "rlvr.yaml"
LEVELS = ["token", "sequence", "segment"]
LOSSES = [Vanilla()]
for _level in LEVELS:
    LOSSES += [PPOClip(ratio=_level), PPOClip(dual_clip=1.5, ratio=_level), TIS(ratio=_level), TOPR(2, 0.5, _level)]
    LOSSES += [CISPO(ratio=_level), CISPO(unified_mask=True, ratio=_level), Kimi15(ratio=_level)]


def name_of(loss: PolicyLoss) -> str:
    return "-".join(f"{value}" for value in (type(loss).__name__, *vars(loss).values()) if not isinstance(value, tuple))


every_loss = pytest.mark.parametrize("loss", LOSSES, ids=name_of)


def random_case(rows: int = 5, tokens: int = 9) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    old = -3 * torch.rand(rows, tokens, generator=generator)
    case = {"old_logprobs": old, "logprobs": old + 0.4 * torch.randn(rows, tokens, generator=generator)}
    case["advantages"] = torch.randn(rows, tokens, generator=generator)
    case["mask"] = torch.rand(rows, tokens, generator=generator) < 0.6
    case["mask"][-1] = False  # a row in which nothing counts
    return case


def run(loss: PolicyLoss, case: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Loss, gradient and metrics, each ``[batch, tokens]``."""
    logprobs = case["logprobs"].clone().requires_grad_()
    out = loss(logprobs, case["old_logprobs"], case["advantages"], case["mask"])
    out.per_token.sum().backward()
    return {"loss": out.per_token.detach(), "gradient": logprobs.grad, **out.metrics}


@every_loss
@pytest.mark.parametrize("place", ["logprobs", "old_logprobs", "advantages", "all"])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e4, -1e4])
def test_T10_T21_masked_places_change_nothing(loss, place, junk):
    case = random_case()
    places = ["logprobs", "old_logprobs", "advantages"] if place == "all" else [place]
    dirty = case | {key: torch.where(case["mask"], case[key], junk) for key in places}
    expected, found = run(loss, case), run(loss, dirty)
    for key in expected:
        assert torch.equal(expected[key], found[key]), key
        assert not found[key][~case["mask"]].any(), key


@every_loss
def test_row_order_changes_nothing(loss):
    case, order = random_case(), torch.tensor([3, 0, 4, 2, 1])
    expected, found = run(loss, case), run(loss, {key: value[order] for key, value in case.items()})
    for key in expected:
        assert torch.equal(expected[key][order], found[key]), key


@every_loss
def test_rows_do_not_see_one_another(loss):
    case = random_case()
    expected, found = run(loss, case), run(loss, {key: value[1:2] for key, value in case.items()})
    for key in expected:
        torch.testing.assert_close(found[key], expected[key][1:2], rtol=1e-6, atol=0)


@every_loss
def test_padding_changes_nothing(loss):
    case = random_case()
    expected, found = run(loss, case), run(loss, {key: pad(value, (0, 6)) for key, value in case.items()})
    for key in expected:
        torch.testing.assert_close(found[key], pad(expected[key], (0, 6)), rtol=1e-5, atol=1e-7)


@every_loss
@pytest.mark.parametrize("difference", [1e4, -1e4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("moved", ["logprobs", "old_logprobs"])
def test_T21_finite_at_huge_differences(loss, difference, sign, moved):
    case = random_case()
    case |= {"advantages": sign * case["advantages"].abs(), moved: case[moved] + difference}
    for key, value in run(loss, case).items():
        assert value.isfinite().all(), key


@every_loss
def test_T24_the_first_ratio_is_exactly_one(loss):
    case = random_case()
    found = run(loss, case | {"old_logprobs": case["logprobs"].clone()})
    assert torch.equal(found["ratio"], case["mask"].float())
    assert not any(found[key].any() for key in found if "clipfrac" in key or "kl" in key)


@every_loss
def test_metrics_have_the_names_that_the_loss_says_and_no_gradient(loss):
    case = random_case()
    case |= {key: case[key].requires_grad_() for key in ("logprobs", "old_logprobs", "advantages")}
    out = loss(**case)
    assert set(out.metrics) == set(loss.metric_names)
    assert len(set(loss.metric_names)) == len(loss.metric_names)
    for value in (out.per_token, *out.metrics.values()):
        assert value.shape == case["mask"].shape
        assert value.dtype == torch.float32
    assert not any(value.requires_grad for value in out.metrics.values())
    out.per_token.sum().backward()
    assert case["old_logprobs"].grad is None
    assert case["advantages"].grad is None


@every_loss
def test_the_mask_may_be_of_numbers(loss):
    case = random_case()
    expected = run(loss, case)
    for dtype in (torch.long, torch.float32):
        found = run(loss, case | {"mask": case["mask"].to(dtype)})
        assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize("cls", [PPOClip, Vanilla, TIS, TOPR, CISPO, Kimi15])
def test_T56_found_by_short_name_with_its_arguments(cls):
    import_known_classes()
    assert find_class(cls.__name__, [PolicyLoss], "model.policy_loss") is cls
    assert ("ratio" in parameters(cls)) == (cls is not Vanilla)
    assert not any(parameter.required for parameter in parameters(cls).values())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("PPOClip --model.policy_loss.ratio sequence", {"high": 0.28, "ratio": "sequence"}),
        ("Vanilla", {}),
        ("TIS --model.policy_loss.upper_bound 2", {"lower_bound": 0.0, "upper_bound": 2.0}),
        ("TOPR --model.policy_loss.negative_weight 0.5", {"positive_weight": 1.0, "negative_weight": 0.5}),
        ("CISPO --model.policy_loss.high 0.3", {"low": 0.1, "high": 0.3, "unified_mask": False}),
        ("CISPO --model.policy_loss.unified_mask true", {"unified_mask": True}),
        ("Kimi15 --model.policy_loss.tau 0.2 --model.policy_loss.ratio segment", {"tau": 0.2, "ratio": "segment"}),
    ],
)
def test_settable_from_the_shell(arguments, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status = main(["fit", "--config", str(CONFIG), "--model.policy_loss", *arguments.split(), "--print_config"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    found = yaml.safe_load(printed.out)["model"]["init_args"]["policy_loss"]
    assert found["class_path"].endswith("." + arguments.split()[0])
    assert {key: found["init_args"][key] for key in expected} == expected
