"""Models from a folder, a hub name or a config alone, and every fault in one line."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from tiny import tiny_config, write_model

from roll_lightning.errors import ConfigError
from roll_lightning.models.loading import PolicyConfig, load_causal_lm, model_facts, turn_off_dropout


def weights(model) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def message_of(config: PolicyConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        load_causal_lm(config, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_from_scratch_depends_on_the_seed_alone(tmp_path):
    config = PolicyConfig(str(write_model(tmp_path)), from_scratch=True)
    torch.manual_seed(1)
    first = weights(load_causal_lm(config, 5))
    torch.manual_seed(2)
    second, other = weights(load_causal_lm(config, 5)), weights(load_causal_lm(config, 6))
    assert all(torch.equal(second[name], value) for name, value in first.items())
    assert not torch.equal(other["model.layers.0.mlp.up_proj.weight"], first["model.layers.0.mlp.up_proj.weight"])


@pytest.mark.parametrize("from_scratch", [True, False])
def test_loading_leaves_the_global_random_state_alone(tmp_path, from_scratch):
    folder = write_model(tmp_path, weights=True)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    load_causal_lm(PolicyConfig(str(folder), from_scratch=from_scratch), 5)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


def test_a_folder_gives_its_weights(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = write_model(tmp_path, weights=True)
    expected = weights(AutoModelForCausalLM.from_pretrained(folder))
    found = weights(load_causal_lm(PolicyConfig(str(folder)), 9))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_home_folder_is_understood(tmp_path, monkeypatch):
    write_model(tmp_path / "mine", weights=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_causal_lm(PolicyConfig("~/mine"), 0).config.model_type == "llama"


def test_dtype_and_attention_and_checkpointing_reach_the_model(tmp_path):
    config = PolicyConfig(
        str(write_model(tmp_path)),
        from_scratch=True,
        dtype="bfloat16",
        attn_implementation="eager",
        gradient_checkpointing=True,
    )
    model = load_causal_lm(config, 0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"
    assert model.is_gradient_checkpointing
    with pytest.raises(ConfigError, match=r"model.policy.dtype is 'half'; it must be one of float32"):
        PolicyConfig("x", dtype="half")


@pytest.mark.parametrize("kind", ["llama", "gpt2", "phi", "gemma2"])
def test_T24_every_dropout_of_the_model_is_off(tmp_path, kind):
    changes = {"attention_dropout": 0.3, "attn_pdrop": 0.3, "resid_pdrop": 0.3, "embd_pdrop": 0.3}
    folder = write_model(tmp_path, kind, **changes)
    model = load_causal_lm(PolicyConfig(str(folder), from_scratch=True, attn_implementation="eager"), 0, dropout=False)
    model.train()
    ids = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    noisy = load_causal_lm(PolicyConfig(str(folder), from_scratch=True, attn_implementation="eager"), 0).train()
    assert not torch.equal(noisy(input_ids=ids).logits, noisy(input_ids=ids).logits)


def test_T24_dropout_of_an_inner_config_is_off():
    from transformers import Gemma3Config

    config = Gemma3Config(text_config={"attention_dropout": 0.2})
    turn_off_dropout(config)
    assert config.text_config.attention_dropout == 0.0


def test_bad_paths(tmp_path):
    assert "does not exist" in message_of(PolicyConfig(str(tmp_path / "none")))
    assert "does not exist" in message_of(PolicyConfig("./none"))
    assert "does not exist" in message_of(PolicyConfig("a/b/c"))
    assert "path is empty" in message_of(PolicyConfig(""))
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in message_of(PolicyConfig(str(tmp_path / "empty")))
    assert "set model.policy.from_scratch true" in message_of(PolicyConfig(str(write_model(tmp_path / "bare"))))


def test_a_path_below_a_local_folder_is_no_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert "runs/sft does not exist" in message_of(PolicyConfig("runs/sft"))


@pytest.mark.parametrize("from_scratch", [True, False])
def test_a_hub_name_without_network_is_one_line(from_scratch):
    message = message_of(PolicyConfig("some-owner/some-model", from_scratch=from_scratch))
    assert message.startswith("model.policy.path some-owner/some-model cannot be loaded: ")
    assert message.endswith("or a hub name with the network on")


def test_weights_that_are_missing_broken_or_of_another_model(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_model(tmp_path, weights=True)
    file = folder / "model.safetensors"
    state = load_file(file)
    lost = "model.layers.1.mlp.up_proj.weight"
    save_file({n: v for n, v in state.items() if n != lost}, file, metadata={"format": "pt"})
    assert f"lacks 1 weights, {lost} among them" in message_of(PolicyConfig(str(folder)))
    save_file({**state, lost: torch.zeros(3, 3)}, file, metadata={"format": "pt"})
    assert "other shapes than its config.json says" in message_of(PolicyConfig(str(folder)))
    file.write_bytes(b"no safetensors")
    assert "cannot be loaded" in message_of(PolicyConfig(str(folder)))


@pytest.mark.parametrize(
    "text", ["{", '{"model_type": "nobody"}', '{"model_type": "qwen2", "hidden_size": "wide"}', "{}"]
)
def test_bad_config_files(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert "cannot be loaded" in message_of(PolicyConfig(str(tmp_path), from_scratch=True))


def test_an_unknown_attention_is_one_line(tmp_path):
    config = PolicyConfig(str(write_model(tmp_path)), from_scratch=True, attn_implementation="none_such")
    assert "none_such" in message_of(config)


def test_model_facts_are_json_and_see_a_changed_shape():
    facts = model_facts(tiny_config())
    assert json.loads(json.dumps(facts)) == facts
    assert facts == model_facts(tiny_config())
    changed = model_facts(tiny_config(num_hidden_layers=3))
    assert {key for key in facts if facts[key] != changed[key]} >= {"num_hidden_layers"}
