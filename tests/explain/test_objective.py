"""The whole objective as printed, computed from rewards and log-probabilities, is what ``training_step`` returns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from explain.formula_language import Formulas
from tiny import quiet_trainer

from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.data.batch import WindowTotals
from roll_lightning.data.types import Prompt, Rollout
from roll_lightning.datamodules.rlvr import RLVRDataModule
from roll_lightning.explain.command import attach
from roll_lightning.explain.numbers import IterationNumbers
from roll_lightning.explain.objective import objective
from roll_lightning.explain.text import Definition
from roll_lightning.functional.advantages import GAE, AdvantageShaping, GroupRelative, LeaveOneOut, ReinforcePlusPlus
from roll_lightning.functional.logprobs import TokenLogprobs
from roll_lightning.functional.off_policy import ImportanceWeight, OffPolicyCorrection, RejectionMask
from roll_lightning.functional.policy_losses import CISPO, PPOClip, Vanilla
from roll_lightning.functional.sample_masks import LengthWeight, SampleSelection
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.critic_config import CriticConfig
from roll_lightning.modules.kl_term import KLConfig
from roll_lightning.modules.rlvr import RLVRModule
from roll_lightning.rewards.exact_match import ExactMatch

REWARDS = [1.0, 0.0, 0.5, 3.0, 1.0, 0.0]
LENGTHS = [4, 7, 2, 5, 1, 6]
PROMPT = 2
WIDTH = PROMPT + max(LENGTHS)

OBJECTIVES = {
    "plain": {},
    "one step": {"updates": 1},
    "grpo": {"kl": KLConfig("loss", "k3", 0.1), "aggregation": "seq-mean-token-mean", "policy_loss": PPOClip(0.1, 0.2)},
    "gspo": {"policy_loss": PPOClip(0.01, 0.02, ratio="sequence"), "aggregation": "seq-mean-token-mean"},
    "one step of a sequence": {"policy_loss": PPOClip(0.01, 0.02, ratio="sequence"), "updates": 1},
    "dr_grpo": {"advantage": GroupRelative("group", "none"), "aggregation": "seq-mean-token-sum-norm"},
    "rloo": {
        "advantage": LeaveOneOut(),
        "policy_loss": Vanilla(),
        "kl": KLConfig("reward", "k1", 0.2),
        "aggregation": "seq-mean-token-sum",
    },
    "reinforce++": {
        "advantage": ReinforcePlusPlus(0.9),
        "kl": KLConfig("reward", "k2", 0.2),
        "shaping": AdvantageShaping(clip_rewards=1.0, clip=1.5),
    },
    "everything": {
        "advantage": GroupRelative("batch", "batch"),
        "policy_loss": CISPO(0.2, 0.3, unified_mask=True),
        "kl": KLConfig("loss", "k2", 0.3, target=4.0, horizon=1000),
        "shaping": AdvantageShaping(clip_rewards=2.0, whiten=True),
        "off_policy": OffPolicyCorrection(ImportanceWeight("sequence", 1.5, 0.5)),
        "samples": SampleSelection(weights=[LengthWeight()]),
        "entropy_coefficient": 0.2,
        "positive_nll_coefficient": 0.3,
        "aggregation": "seq-mean-token-mean",
    },
    "ppo": {
        "advantage": GAE(0.9, 0.8),
        "kl": KLConfig("reward", "k1", 0.2),
        "shaping": AdvantageShaping(whiten=True),
        "critic": CriticConfig(shared=True, coefficient=0.5, value_clip=0.3),
        "aggregation": "seq-mean-token-sum",
    },
    "critic without clip": {"advantage": GAE(), "critic": CriticConfig(shared=True)},
    "rejection": {
        "off_policy": OffPolicyCorrection(ImportanceWeight("token", 1.2), [RejectionMask("token", 0.1, 10.0)]),
        "entropy_coefficient": -0.2,
    },
}


def random_logprobs(seed: int) -> torch.Tensor:
    return -0.3 * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).abs() - 0.1


def rollouts(engine: torch.Tensor) -> list[Rollout]:
    made = []
    for row, (reward, length) in enumerate(zip(REWARDS, LENGTHS, strict=True)):
        logprobs = [0.0] * PROMPT + engine[row, PROMPT : PROMPT + length].tolist()
        ids, mask = [1] * (PROMPT + length), [0] * PROMPT + [1] * length
        prompt = Prompt(id=str(row // 3), token_ids=(1,) * PROMPT, text="")
        made.append(
            Rollout(prompt, row // 3, row % 3, ids, mask, logprobs, "", "stop", (0, 0), score=reward, reward=reward)
        )
    return made


def attached(folder: Path, updates: int, **settings) -> tuple[RLVRModule, IterationNumbers]:
    module = RLVRModule(PolicyConfig("nowhere"), **settings)
    data = RLVRDataModule(train="nowhere.jsonl", batch_size=6, ppo_epochs=updates)
    rollout = RolloutCallback(2, 3, rewards=[ExactMatch()], max_new_tokens=8)
    trainer = quiet_trainer(folder, rollout)
    attach(trainer, module, data)
    module.window_metrics = module.make_window_metrics()
    return module, IterationNumbers.of(trainer, module, data)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_printed_objective_is_that_of_a_training_step(name, tmp_path, monkeypatch):
    settings = dict(OBJECTIVES[name])
    module, numbers = attached(tmp_path, settings.pop("updates", 2), **settings)
    policy, entropy = random_logprobs(1), random_logprobs(5).abs()
    old = random_logprobs(2) if numbers.updates > 1 else policy
    engine, reference = random_logprobs(3), random_logprobs(4)
    before, critic = numbers_like(policy, 6), numbers_like(policy, 7).requires_grad_()
    policy.requires_grad_()

    made = rollouts(engine)
    experience = module.maker.start(made, comparable=True)
    whole = experience.response_mask.clone()
    experience.old_logprobs = old.detach() if numbers.recomputes_old else None
    experience.ref_logprobs = reference if module.kl.placement != "none" else None
    if module.critic_config is not None:
        experience.values = before.float()
    module.maker.finish(experience, made)
    mask = experience.response_mask
    window = WindowTotals(0, int(mask.sum()), int(mask.any(1).sum()))
    monkeypatch.setattr(module, "token_logprobs", lambda *_, **__: TokenLogprobs(policy, entropy, critic))
    monkeypatch.setattr(module, "policy", SimpleNamespace(values_reach_body=True))
    code = module.training_step(experience.batch(range(6), window), 0)

    printed = {line.symbol: line.formula for line in objective(module, numbers).lines if isinstance(line, Definition)}
    printed |= {"β": printed["β"].split(", then")[0]} if "β" in printed else {}
    printed["r_i"] = printed["r_i"].replace("exact_match", "reward")
    values = facts(whole, mask) | {"π": policy.exp(), "π_old": old.detach().exp()}
    values |= {"π_engine": engine.exp(), "π_ref": reference.exp(), "H": entropy}
    values |= {"N": window.tokens, "S": window.sequences, "n_i": mask.sum(1, keepdim=True).double()}
    values |= {"V": critic, "V_old": before, "V_old(k)": before, "V_old(k+1)": following(before, mask)}
    # Means of weights and advantages are over what is in the loss, off-policy ratios over what was before rejection.
    read = Formulas(Early(printed, values, whole, ("w",)), values, mask)
    assert float(read["L"]) == pytest.approx(float(code), rel=1e-5, abs=1e-6)
    # Advantages and given weights are float32.
    for of in [policy] if module.critic_config is None else [policy, critic]:
        gradients = [torch.autograd.grad(x, of, retain_graph=True)[0] for x in (read["L"], code)]
        assert torch.allclose(*gradients, rtol=1e-4, atol=1e-6)
        assert gradients[0].abs().max() > 1e-3


def numbers_like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def following(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What the next token of the answer has, 0 after its last."""
    shifted = torch.zeros_like(values)
    shifted[:, :-1] = torch.where(mask[:, 1:], values[:, 1:], 0.0)
    return shifted


class Early(dict):
    """Formulas, some of them taken over another mask."""

    def __init__(self, printed, values, mask, symbols) -> None:
        super().__init__({symbol: formula for symbol, formula in printed.items() if symbol not in symbols})
        for symbol in symbols:
            if symbol in printed:
                values[symbol] = Formulas(printed, values, mask)[symbol]


def facts(whole: torch.Tensor, mask: torch.Tensor) -> dict[str, object]:
    rewards = torch.tensor(REWARDS, dtype=torch.float64)[:, None]
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    last = torch.zeros(whole.shape, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        last[row, PROMPT + length - 1] = 1
    groups = [rewards[:3], rewards[3:]]
    clipped = rewards.clamp(-2, 2)  # only "everything" clips rewards that a statistic is taken of
    return {
        "reward": rewards,
        "length": lengths,
        "shortest": lengths.min(),
        "longest": lengths.max(),
        "counts": mask.any(1),
        "mean_group": torch.cat([group.mean().expand(3, 1) for group in groups]),
        "std_group": torch.cat([group.std().expand(3, 1) for group in groups]),
        "mean_others": torch.cat([(group.sum() - group) / 2 for group in groups]),
        "mean_batch": clipped.mean(),
        "std_batch": clipped.std(),
        "[k is last]": last,
    }
