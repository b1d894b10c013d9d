"""Critics are loaded from causal language models and from exported critics."""

from __future__ import annotations

import pytest
import torch
from tiny import write_model
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

from roll_lightning.errors import ConfigError
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.models.value_model import load_value_model

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 3, 4]])
ALL = torch.ones_like(IDS, dtype=torch.bool)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2"])
def test_a_language_model_becomes_a_critic_whose_values_are_0(tmp_path, model_type):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} if model_type == "gpt2" else {}
    write_model(tmp_path, model_type, weights=True, attention_dropout=0.3, **sizes)
    critic = load_value_model(PolicyConfig(str(tmp_path)), seed=0).train()
    assert critic(IDS, ALL).tolist() == [[0.0] * 4] * 2
    body = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = body(IDS).last_hidden_state
        assert torch.allclose(critic.hf.base_model(IDS).last_hidden_state, expected, atol=1e-6)
    assert all(parameter.requires_grad for parameter in critic.parameters())


def test_an_exported_critic_keeps_its_head(tmp_path):
    write_model(tmp_path / "model", weights=True)
    critic = load_value_model(PolicyConfig(str(tmp_path / "model")), seed=0)
    torch.nn.init.normal_(critic.hf.score.weight)
    critic.hf.save_pretrained(tmp_path / "critic")
    again = load_value_model(PolicyConfig(str(tmp_path / "critic")), seed=0)
    assert torch.allclose(again(IDS, ALL), critic(IDS, ALL), atol=1e-5)
    assert again(IDS, ALL)[:, 1:].abs().min() > 0
    logits = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic").eval()(IDS).logits[..., 0]
    assert torch.allclose(again(IDS, ALL)[:, 1:], logits[:, :-1], atol=1e-6)


def test_from_scratch_begins_at_0_too(tmp_path):
    write_model(tmp_path)
    critic = load_value_model(PolicyConfig(str(tmp_path), from_scratch=True), seed=0)
    assert critic(IDS, ALL).abs().max() == 0
    assert critic.hf.model.embed_tokens.weight.std() > 0


def test_missing_weights_of_the_body_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    write_model(tmp_path, weights=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"model.critic.path .* lacks 1 weights, model.norm.weight"):
        load_value_model(PolicyConfig(str(tmp_path)), seed=0)


def test_a_model_without_a_token_classifier_is_refused(tmp_path):
    AutoConfig.for_model("mamba", hidden_size=8, num_hidden_layers=1, vocab_size=8).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model.critic.path .* cannot be loaded"):
        load_value_model(PolicyConfig(str(tmp_path), from_scratch=True), seed=0)
