"""PPO's critic in real runs: gradients, warm-up, clipping, resuming, export, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs.run_ends import assert_same_state, last_state, logged, weights
from runs.tiny_run import SGDModule, make_task, rlvr_module, run_rlvr
from tiny import write_model

from roll_lightning.errors import ConfigError
from roll_lightning.functional.advantages import GAE, AdvantageShaping, GroupRelative
from roll_lightning.models.loading import PolicyConfig, load_policy
from roll_lightning.models.lora import LoraConfig
from roll_lightning.models.value_model import load_value_model
from roll_lightning.modules.critic_config import CriticConfig
from roll_lightning.modules.kl_term import KLConfig
from roll_lightning.modules.optim import OptimizerConfig, ScheduleConfig
from roll_lightning.modules.rlvr import RLVRModule

LR, CRITIC_LR = 0.05, 0.2
ONE_UPDATE = {"ppo_epochs": 1, "batch_size": 16}


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    """With a critic that has values: those of a fresh one are 0, and so would be its body's gradient."""
    folder = make_task(tmp_path_factory.mktemp("task"))
    critic = load_value_model(PolicyConfig(str(folder / "model")), 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.nn.init.normal_(critic.hf.score.weight, std=0.1)
    critic.hf.save_pretrained(folder / "critic")
    return folder


class Watched(SGDModule):
    """Plain SGD with the groups' learning rates; keeps its experience, the start, and each update's gradients."""

    def configure_optimizers(self) -> Any:
        groups = [{"params": list(group.parameters), "lr": group.lr} for group in self.parameter_groups()]
        return torch.optim.SGD(groups)

    def make_experience(self, rollouts, iteration):
        self.experience = super().make_experience(rollouts, iteration)
        return self.experience

    def on_before_optimizer_step(self, optimizer):
        super().on_before_optimizer_step(optimizer)
        self.raw = {name: p.grad.clone() for name, p in self.named_parameters() if p.grad is not None}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.clipped = {name: p.grad.clone() for name, p in self.named_parameters() if p.grad is not None}


def settings(**changes: Any) -> dict[str, Any]:
    base = {"advantage": GAE(0.9, 0.8), "kl": KLConfig(), "optimizer": OptimizerConfig(lr=LR)}
    return base | {"critic": CriticConfig(lr=CRITIC_LR)} | changes


def train(task, root, kind=Watched, epochs=1, attempt=0, data=None, clip=None, **changes):
    module = rlvr_module(task, kind, **settings(**changes))
    run_rlvr(
        task, root, module=module, max_epochs=epochs, attempt=attempt, data=data or ONE_UPDATE, gradient_clip_val=clip
    )
    return module


def gae_by_hand(rewards, values, gamma, lam):
    """Sums over the whole future, written out (arXiv 1506.02438, equation 16)."""
    deltas = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, [*values[1:], 0.0], strict=True)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def expected_gradients(task, module, shared: bool):
    """Of the objective, from plain logits and hidden states of the models that the run began with."""
    rollouts = module.rollouts
    policy = load_policy(PolicyConfig(str(task / "model")), 0, dropout=False).hf
    critic = None if shared else load_value_model(PolicyConfig(str(task / "critic")), 0).hf
    head = torch.nn.Linear(32, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    tokens = sum(rollout.response_length for rollout in rollouts)
    total = torch.zeros(())
    for rollout in rollouts:
        ids = torch.tensor([rollout.token_ids])
        places = [place for place, trained in enumerate(rollout.loss_mask) if trained]
        body = (policy if shared else critic).base_model(ids).last_hidden_state[0]
        values = (head if shared else critic.score)(body)[[place - 1 for place in places], 0]
        logprobs = policy(ids).logits[0].log_softmax(-1)
        taken = torch.stack([logprobs[place - 1, ids[0, place]] for place in places])
        rewards = [0.0] * (len(places) - 1) + [rollout.reward]
        advantages = torch.tensor(gae_by_hand(rewards, values.tolist(), 0.9, 0.8))
        returns = advantages + values.detach()
        total = total - (advantages * taken).sum() / tokens + 0.5 * (values - returns).square().sum() / tokens
    total.backward()
    grads = {f"policy.hf.{name}": p.grad for name, p in policy.named_parameters()}
    if shared:
        return grads | {"policy.value_head.weight": head.weight.grad, "policy.value_head.bias": head.bias.grad}
    return grads | {f"critic.hf.{name}": p.grad for name, p in critic.named_parameters()}


class Remembers(Watched):
    def make_experience(self, rollouts, iteration):
        self.rollouts = rollouts
        return super().make_experience(rollouts, iteration)


@pytest.mark.parametrize("shared", [False, True])
def test_one_step_is_the_gradient_of_the_objective(task, tmp_path, shared):
    critic = CriticConfig(shared=shared, path=None if shared else str(task / "critic"), lr=CRITIC_LR)
    module = train(task, tmp_path, Remembers, critic=critic)
    expected = expected_gradients(task, module, shared)
    assert module.raw.keys() == {name for name, grad in expected.items() if grad is not None}
    for name, grad in module.raw.items():
        assert torch.allclose(grad, expected[name], atol=2e-6), name
    assert max(float(grad.abs().max()) for name, grad in expected.items() if "critic" in name or "head" in name) > 1e-2
    # Both learning rates, with SGD: the step is the gradient times the rate.
    start = dict(load_policy(PolicyConfig(str(task / "model")), 0).named_parameters())
    name = "hf.model.embed_tokens.weight"
    moved = start[name] - dict(module.policy.named_parameters())[name]
    assert torch.allclose(moved, LR * module.raw[f"policy.{name}"], atol=1e-6)
    values = logged(tmp_path)
    assert values[0, "critic/clipfrac"] == 0
    assert values[0, "critic/lr"] == pytest.approx(CRITIC_LR)
    assert values[0, "actor/lr"] == pytest.approx(LR)


def test_values_returns_and_metrics_of_an_iteration(task, tmp_path):
    critic = CriticConfig(path=str(task / "critic"), lr=CRITIC_LR)
    module = train(task, tmp_path, Remembers, critic=critic)
    experience, mask = module.experience, module.experience.response_mask
    values = load_value_model(PolicyConfig(str(task / "critic")), 0)(experience.input_ids, mask).detach()
    assert torch.allclose(experience.values, values, atol=1e-5)
    assert torch.allclose(experience.returns[mask], (experience.advantages + values)[mask], atol=1e-5)
    returns, old = experience.returns[mask].double(), experience.values[mask].double()
    found = logged(tmp_path)
    assert found[0, "critic/explained_variance"] == pytest.approx(1 - float((returns - old).var() / returns.var()))
    assert found[0, "critic/value"] == pytest.approx(float(old.mean()), rel=1e-5)
    assert found[0, "critic/vpred"] == pytest.approx(float(old.mean()), rel=1e-4)
    assert found[0, "critic/error"] == pytest.approx(float((returns - old).square().mean()), rel=1e-4)
    assert found[0, "critic/loss"] == pytest.approx(float((returns - old).square().mean()) / 2, rel=1e-4)


def test_the_value_clip_bites_on_later_updates(task, tmp_path):
    critic = CriticConfig(lr=CRITIC_LR, value_clip=1e-4)
    train(task, tmp_path, critic=critic, data={"ppo_epochs": 3, "batch_size": 16})
    found = logged(tmp_path)
    assert found[0, "critic/clipfrac"] == 0
    assert found[1, "critic/clipfrac"] > 0.3


@pytest.mark.parametrize("shared", [False, True])
def test_warm_up_trains_the_critic_only(task, tmp_path, shared):
    critic = CriticConfig(shared=shared, lr=1e-2, warmup_iterations=1)
    parts = {"critic": critic, "optimizer": OptimizerConfig(lr=1e-2), "schedule": ScheduleConfig("linear", 1)}
    train(task, tmp_path, RLVRModule, 2, data={"ppo_epochs": 1, "batch_size": 8}, **parts)
    start = load_policy(PolicyConfig(str(task / "model")), 0).state_dict()
    states = [torch.load(path, weights_only=True) for path in sorted((tmp_path / "checkpoints").glob("*.ckpt"))]
    assert [state["global_step"] for state in states][-1] == 4
    found = logged(tmp_path)
    # The policy's schedule of two steps begins when the critic's warm-up ends: half, then whole.
    assert [found[step, "actor/lr"] for step in range(4)] == pytest.approx([0, 0, 0.5e-2, 1e-2])
    assert found[0, "critic/lr"] == pytest.approx(0.5e-2)
    assert found[0, "actor/grad_norm"] == found[1, "actor/grad_norm"] == 0
    assert found[0, "critic/grad_norm"] > 0
    assert found[2, "actor/ratio_max"] > 0
    end = weights(tmp_path)
    assert not torch.equal(end["policy.hf.model.embed_tokens.weight"], start["hf.model.embed_tokens.weight"])


def test_warm_up_leaves_the_policy_to_the_bit(task, tmp_path):
    for shared in (False, True):
        root = tmp_path / str(shared)
        critic = CriticConfig(shared=shared, lr=1e-2, warmup_iterations=1)
        module = rlvr_module(task, **settings(critic=critic, optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1)))
        run_rlvr(task, root, module=module, max_epochs=2, max_steps=2, data={"ppo_epochs": 1, "batch_size": 8})
        start = load_policy(PolicyConfig(str(task / "model")), 0).state_dict()
        end = weights(root)
        for name, value in start.items():
            assert torch.equal(end[f"policy.{name}"], value), name
        head = "policy.value_head.weight" if shared else "critic.hf.score.weight"
        assert end[head].abs().max() > 0


@pytest.mark.parametrize(("own", "joint"), [(1e-3, 1e-2), (None, 1e-2), (1e-3, None)])
def test_each_gradient_is_clipped_by_its_own_bound(task, tmp_path, own, joint):
    critic = CriticConfig(path=str(task / "critic"), lr=CRITIC_LR, gradient_clip_val=own)
    module = train(task, tmp_path, critic=critic, clip=joint)
    for prefix, bound in (("policy.", joint), ("critic.", own or joint)):
        raw, clipped = (
            torch.stack([grad.norm() for name, grad in grads.items() if name.startswith(prefix)]).norm()
            for grads in (module.raw, module.clipped)
        )
        assert raw > 1.5 * (bound or 0)
        assert clipped == pytest.approx(bound or float(raw), rel=1e-3)


def test_clipping_by_value_has_two_bounds_too(task, tmp_path):
    critic = CriticConfig(path=str(task / "critic"), lr=CRITIC_LR, gradient_clip_val=1e-4)
    module = rlvr_module(task, Watched, **settings(critic=critic))
    clip = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"}
    run_rlvr(task, tmp_path, module=module, max_epochs=1, data=ONE_UPDATE, **clip)
    for prefix, bound in (("policy.", 1e-3), ("critic.", 1e-4)):
        largest = max(float(grad.abs().max()) for name, grad in module.clipped.items() if name.startswith(prefix))
        assert largest == pytest.approx(bound)


@pytest.mark.parametrize("shared", [False, True])
def test_resumed_is_the_same_run(task, tmp_path, shared):
    def go(root: Path, attempt: int = 0, **limits: Any) -> None:
        critic = CriticConfig(shared=shared, lr=1e-2, value_clip=0.2, warmup_iterations=1)
        parts = settings(critic=critic, kl=KLConfig("reward", "k1", 0.1), shaping=AdvantageShaping(whiten=True))
        run_rlvr(task, root, module=rlvr_module(task, **parts), attempt=attempt, **limits)

    go(tmp_path / "whole", max_epochs=3)
    # In the middle of the second iteration, of four updates each.
    go(tmp_path / "parts", max_epochs=3, max_steps=6)
    go(tmp_path / "parts", attempt=1, max_epochs=3)
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))
    # Stopped inside an epoch, Lightning logs that epoch's means so far, too.
    assert logged(tmp_path / "parts").items() >= logged(tmp_path / "whole").items()


@pytest.mark.parametrize("shared", [False, True])
def test_the_critic_is_exported_and_starts_another_run(task, tmp_path, shared):
    critic = CriticConfig(shared=shared, lr=1e-2)
    module = train(task, tmp_path / "first", RLVRModule, 2, critic=critic)
    ids, mask = torch.tensor([[3, 4, 5, 6, 7]]), torch.ones(1, 5, dtype=torch.bool)
    with torch.no_grad():
        model = module.policy if shared else module.critic
        expected = model(ids, mask).values if shared else model(ids, mask)
        exported = load_value_model(PolicyConfig(str(tmp_path / "first/hf/critic")), 0)
        assert torch.allclose(exported(ids, mask), expected, atol=1e-5)
    assert expected[:, 1:].abs().min() > 0
    again = CriticConfig(path=str(tmp_path / "first/hf/critic"), lr=1e-2)
    second = train(task, tmp_path / "second", Remembers, critic=again)
    with torch.no_grad():
        experience = second.experience
        assert torch.allclose(experience.values, exported(experience.input_ids, experience.response_mask), atol=1e-5)


def test_another_critic_is_refused_on_resuming(task, tmp_path):
    train(task, tmp_path, RLVRModule)
    write_model(tmp_path / "other", "qwen2", weights=True, hidden_size=16)
    other = CriticConfig(path=str(tmp_path / "other"), lr=1e-2)
    with pytest.raises(ConfigError.__mro__[1], match="the model changed since the checkpoint was written: critic "):
        train(task, tmp_path, RLVRModule, 2, attempt=1, critic=other)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0}, "model.critic.lr is 0; it must be above 0"),
        ({"coefficient": -1.0}, "model.critic.coefficient is -1.0"),
        ({"value_clip": 0.0}, "model.critic.value_clip is 0.0; it must be above 0, or null"),
        ({"gradient_clip_val": -1.0}, "model.critic.gradient_clip_val is -1.0"),
        ({"warmup_iterations": -1}, "model.critic.warmup_iterations is -1"),
        ({"shared": True, "path": "x"}, "model.critic.path is x, but model.critic.shared takes the policy's body"),
    ],
)
def test_wrong_settings(changes, named):
    with pytest.raises(ConfigError, match=named):
        CriticConfig(**changes)


def test_contradictions_are_refused(task, tmp_path):
    policy = PolicyConfig(str(task / "model"))
    with pytest.raises(ConfigError, match=r"model.advantage GAE needs a critic; set model.critic"):
        RLVRModule(policy, advantage=GAE())
    with pytest.raises(ConfigError, match=r"model.critic is set, but model.advantage GroupRelative has no use"):
        RLVRModule(policy, advantage=GroupRelative(), critic=CriticConfig())
    with pytest.raises(ConfigError, match=r"model.critic.warmup_iterations 3 leaves nothing of trainer.max_epochs 3"):
        train(task, tmp_path, epochs=3, critic=CriticConfig(warmup_iterations=3))
    with pytest.raises(ConfigError, match=r"model.critic.path .*nowhere does not exist"):
        train(task, tmp_path, critic=CriticConfig(path=str(tmp_path / "nowhere")))
    write_model(tmp_path / "small", "qwen2", weights=True, vocab_size=5)
    with pytest.raises(ConfigError, match=r"the critic of .*small only 5; model.critic.path must have the policy's"):
        train(task, tmp_path, critic=CriticConfig(path=str(tmp_path / "small")))


def test_an_export_does_not_replace_the_critic_that_the_run_begins_with(task, tmp_path):
    train(task, tmp_path, RLVRModule)
    (tmp_path / "checkpoints").rename(tmp_path / "old")
    with pytest.raises(ConfigError, match=r"the export would replace .*critic, which the run begins with"):
        train(task, tmp_path, RLVRModule, critic=CriticConfig(path=str(tmp_path / "hf/critic")))


@pytest.mark.parametrize("shared", [False, True])
def test_beside_adapters_the_critic_trains_whole_is_saved_and_exported(task, tmp_path, shared):
    policy = PolicyConfig(str(task / "model"), lora=LoraConfig(r=4))
    critic = CriticConfig(shared=shared, lr=1e-2)

    def go(root: Path, epochs: int, attempt: int = 0):
        return train(task, root, RLVRModule, epochs, attempt, policy=policy, critic=critic)

    module = go(tmp_path / "whole", 2)
    go(tmp_path / "parts", 1)
    go(tmp_path / "parts", 2, attempt=1)
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert {name for name in trained if "lora_" not in name} == {
        name for name, _ in module.named_parameters() if name.startswith(("critic.", "policy.value_head"))
    }
    ids, mask = torch.tensor([[3, 4, 5, 6, 7]]), torch.ones(1, 5, dtype=torch.bool)
    with torch.no_grad():
        expected = module.policy(ids, mask).values if shared else module.critic(ids, mask)
        exported = load_value_model(PolicyConfig(str(tmp_path / "whole/hf/critic")), 0)
        assert torch.allclose(exported(ids, mask), expected, atol=1e-5)
    assert expected[:, 1:].abs().min() > 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("policy", "precision"), [({"gradient_checkpointing": True}, "bf16-mixed"), ({"dtype": "bfloat16"}, "bf16-true")]
)
def test_precisions_and_checkpointed_activations(task, tmp_path, shared, policy, precision):
    """The first losses are those of float32, within the precision."""
    found = []
    for number, (config, value) in enumerate([({}, "32-true"), (policy, precision)]):
        root = tmp_path / str(number)
        critic = CriticConfig(shared=shared, path=None if shared else str(task / "critic"), lr=1e-2)
        parts = settings(critic=critic, policy=PolicyConfig(str(task / "model"), **config))
        replay = {"replay_dir": str(tmp_path / "0/rollouts")} if number else {"record_dir": str(root / "rollouts")}
        module = rlvr_module(task, **parts)
        run_rlvr(task, root, module=module, max_epochs=1, data=ONE_UPDATE, precision=value, rollout=replay)
        found.append(logged(root)[0, "critic/loss"])
    assert found[1] == pytest.approx(found[0], rel=0.03)
    assert shared or found[1] != found[0]
