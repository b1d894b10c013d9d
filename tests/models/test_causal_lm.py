"""The policy's log-probabilities against those of the logits that transformers itself gives."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_config
from torch import Tensor, nn

from roll_lightning.errors import ConfigError
from roll_lightning.models.causal_lm import CausalPolicy

ROWS = [[3, 5, 7, 9, 2, 1], [4, 6, 1], [8, 0, 0, 10, 1]]


def model_of(kind: str = "qwen2", **changes) -> nn.Module:
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        # Wide weights, so that the distribution is far from uniform and soft-capping bends it.
        config = tiny_config(kind, **{"initializer_range": 0.5, **changes})
        return AutoModelForCausalLM.from_config(config).train()


def batch_of(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Right-padded ids, and the tokens after the first of each row."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    steps = torch.arange(width)[None]
    return ids, (steps < lengths[:, None]) & (steps > 0)


def plain_logprobs(model: nn.Module, row: list[int], temperature: float) -> Tensor:
    """From the full logits of one row alone, without any padding."""
    logits = model(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1] / temperature
    return logits.log_softmax(-1)[torch.arange(len(row) - 1), row[1:]]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


MODELS = [
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2", {"tie_word_embeddings": False}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"tie_word_embeddings": False}),
    ("gemma2", {"final_logit_softcapping": 2.0, "head_dim": 8, "attn_implementation": "eager"}),
    ("cohere", {"logit_scale": 0.3}),
    ("granite", {"logits_scaling": 4.0}),
]


@pytest.mark.parametrize("pad", [0, 1], ids=["pad", "pad=eos"])
@pytest.mark.parametrize(("kind", "changes"), MODELS)
def test_T32_logprobs_and_gradient_equal_those_of_the_full_logits(kind, changes, pad):
    """In float64; but some models compute their norms in float32 all the same."""
    model = model_of(kind, **changes).double()
    ids, positions = batch_of(ROWS, pad)
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = CausalPolicy(model)(ids, positions, temperature=0.7).logprobs
    (ours * weights)[positions].sum().backward()
    our_gradients = gradients(model)
    loss = torch.tensor(0.0, dtype=torch.float64)
    for number, row in enumerate(ROWS):
        plain = plain_logprobs(model, row, 0.7)
        torch.testing.assert_close(ours[number, 1 : len(row)], plain, atol=1e-6, rtol=0)
        loss = loss + (plain * weights[number, 1 : len(row)]).sum()
    loss.backward()
    for name, expected in gradients(model).items():
        largest = float(expected.abs().max())
        torch.testing.assert_close(our_gradients[name], expected, atol=1e-6 * max(1.0, largest), rtol=0, msg=name)
    assert not ours[~positions].any()


def test_T52_several_chunks_give_the_same_as_one():
    model = model_of()
    ids, positions = batch_of(ROWS, 0)
    whole, parts = CausalPolicy(model), CausalPolicy(model, max_chunk_elements=3 * model.config.vocab_size)
    first = whole(ids, positions, entropy=True)
    first.logprobs.sum().backward()
    expected = gradients(model)
    second = parts(ids, positions, entropy=True)
    second.logprobs.sum().backward()
    torch.testing.assert_close(second.logprobs, first.logprobs, atol=1e-6, rtol=0)
    torch.testing.assert_close(second.entropy, first.entropy, atol=1e-6, rtol=0)
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-5, msg=name)


def test_LT_gradient_checkpointing_gives_the_same_gradient_and_is_really_on(monkeypatch):
    import torch.utils.checkpoint

    model = model_of()
    ids, positions = batch_of(ROWS, 0)
    CausalPolicy(model)(ids, positions).logprobs.sum().backward()
    expected = gradients(model)
    calls = []
    layer = model.model.layers[0]
    plain_forward = type(layer).forward
    monkeypatch.setattr(
        type(layer), "forward", lambda self, *a, **k: calls.append(self) or plain_forward(self, *a, **k)
    )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    CausalPolicy(model)(ids, positions).logprobs.sum().backward()
    assert len(calls) == 2 * len(model.model.layers), "each layer's forward runs again in backward"
    for name, value in gradients(model).items():
        assert torch.equal(value, expected[name]), name


class _Wrapped(nn.Module):
    """A model that changes its logits in a way that no config key tells."""

    def __init__(self, hf: nn.Module, change) -> None:
        super().__init__()
        self.hf, self.config, self.base_model, self.change = hf, hf.config, hf.base_model, change

    def get_output_embeddings(self):
        return self.hf.get_output_embeddings()

    def forward(self, **kwargs):
        output = self.hf(**kwargs)
        output.logits = self.change(output.logits)
        return output


@pytest.mark.parametrize(("kind", "changes"), MODELS)
@pytest.mark.parametrize("spread", [0.02, 0.5])
def test_known_logit_changes_are_accepted(kind, changes, spread):
    policy = CausalPolicy(model_of(kind, **changes, initializer_range=spread))
    policy.check_logits()
    assert policy.training


@pytest.mark.parametrize(
    "change",
    [lambda logits: logits * 1.1, lambda logits: 30 * torch.tanh(logits / 30)],
    ids=["scale", "cap"],
)
@pytest.mark.parametrize("spread", [0.02, 0.5])
def test_an_unknown_change_of_the_logits_is_refused(change, spread):
    """Also with small random weights, whose logits a cap leaves as they are: training would grow into it."""
    policy = CausalPolicy(_Wrapped(model_of(initializer_range=spread), change))
    with pytest.raises(ConfigError, match=r"model type qwen2 changes its logits .*logit_postprocess"):
        policy.check_logits()


def test_check_logits_leaves_mode_and_hooks_alone():
    model = model_of().eval()
    before = model(input_ids=torch.tensor([ROWS[0]])).logits
    policy = CausalPolicy(model)
    policy.eval()
    policy.check_logits()
    assert not policy.training
    assert torch.equal(model(input_ids=torch.tensor([ROWS[0]])).logits, before)


def test_T22_decode_gives_the_next_token_as_the_trainer_scores_it():
    from transformers import DynamicCache

    model = model_of("gemma2", final_logit_softcapping=2.0, head_dim=8, attn_implementation="eager").eval()
    row = ROWS[0]
    ids = torch.tensor([row])
    with torch.no_grad():
        ours = CausalPolicy(model)(ids, torch.ones_like(ids, dtype=torch.bool)).logprobs[0, -1]
        prefix = ids[:, :-1]
        mask, places = torch.ones_like(prefix), torch.arange(prefix.shape[1])[None]
        logits = CausalPolicy(model).decode(prefix, mask, places, DynamicCache(config=model.config))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.log_softmax(-1)[0, row[-1]], ours, atol=1e-6, rtol=0)
