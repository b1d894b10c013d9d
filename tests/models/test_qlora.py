"""Adapters on quantised weights, with bitsandbytes on the CPU."""

from __future__ import annotations

import pytest
import torch
from tiny import write_model

from roll_lightning.models.loading import PolicyConfig, load_policy
from roll_lightning.models.lora import LoraConfig, merged_tensors

pytest.importorskip("bitsandbytes", reason="bitsandbytes is an extra")
IDS = torch.arange(2, 12)[None]


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_quantised_and_close(tmp_path, bits):
    base = write_model(tmp_path / "model", "llama", weights=True, hidden_size=64, intermediate_size=128)
    plain = load_policy(PolicyConfig(str(base)), seed=0)
    ours = load_policy(PolicyConfig(str(base), lora=LoraConfig(r=4), quantize_bits=bits), seed=0)
    weight = ours.hf.model.layers[0].mlp.up_proj.base_layer.weight
    assert weight.dtype == (torch.uint8 if bits == 4 else torch.int8)
    assert ours.base_digest is None
    merged = dict(merged_tensors(ours.hf))
    for name, value in plain.hf.named_parameters():
        error = (merged[name].float() - value).abs().max() / value.abs().max()
        assert error < (0.2 if bits == 4 else 0.02), name
    ours.hf(input_ids=IDS).logits.sum().backward()
    assert all(p.grad is not None for p in ours.parameters() if p.requires_grad)


def test_gradients_after_eval_mode_are_those_before(tmp_path):
    """Generation runs in eval mode between training steps; bitsandbytes may repack weights there and lose gradients."""
    base = write_model(tmp_path / "model", "llama", weights=True, hidden_size=64, intermediate_size=128)
    ours = load_policy(PolicyConfig(str(base), lora=LoraConfig(r=4), quantize_bits=4), seed=0)

    def gradients() -> list[torch.Tensor]:
        ours.zero_grad()
        ours.train().hf(input_ids=IDS).logits.square().sum().backward()
        return [p.grad.clone() for name, p in ours.named_parameters() if "lora_B" in name]

    before = gradients()
    with torch.no_grad():
        ours.eval().hf(input_ids=IDS)
    assert all(g.abs().sum() > 0 for g in before)
    assert all(torch.equal(one, two) for one, two in zip(gradients(), before, strict=True))
