"""Adapters: what PEFT reads back, what a merge gives, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import write_model

from roll_lightning.errors import ConfigError
from roll_lightning.models.adapter_files import save_adapter
from roll_lightning.models.loading import PolicyConfig, check_policy, load_policy
from roll_lightning.models.lora import LoraConfig, adapter_off, adapter_tensors, merged_tensors

IDS = torch.arange(2, 12)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("base") / "model", "qwen2", weights=True)


def policy(base, **lora):
    return load_policy(PolicyConfig(str(base), lora=LoraConfig(**lora)), seed=0)


def stir(hf) -> None:
    """Adapters that do something, as after training."""
    torch.manual_seed(1)
    with torch.no_grad():
        for _, parameter in adapter_tensors(hf):
            parameter.add_(torch.randn_like(parameter) * 0.1)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS, use_cache=False).logits


def export(model, folder, base="base"):
    folder.mkdir()
    save_adapter(folder, model.hf, {n: v.clone() for n, v in adapter_tensors(model.hf)}, str(base), model.base_digest)
    return folder


def test_fresh_adapters_change_nothing_and_alone_are_trained(base):
    fresh, plain = policy(base, r=4), load_policy(PolicyConfig(str(base)), seed=0)
    assert torch.equal(logits(fresh.hf), logits(plain.hf))
    trained = {name for name, parameter in fresh.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_" in name for name in trained)
    assert not any("lm_head" in name or "embed" in name for name in trained)


def test_seed_decides_fresh_adapters_and_leaves_the_global_state_alone(base):
    before = torch.random.get_rng_state()
    first, again = policy(base, r=4), policy(base, r=4)
    other = load_policy(PolicyConfig(str(base), lora=LoraConfig(r=4)), seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    flat = [torch.cat([v.flatten() for _, v in adapter_tensors(m.hf)]) for m in (first, again, other)]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])


@pytest.mark.parametrize("rslora", [False, True])
def test_peft_reads_the_export(base, tmp_path, rslora):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    ours = policy(base, r=4, alpha=12, rslora=rslora)
    stir(ours.hf)
    folder = export(ours, tmp_path / "adapter", base)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    plain = logits(load_policy(PolicyConfig(str(base)), seed=0).hf)
    assert not torch.allclose(logits(ours.hf), plain, atol=1e-2)
    assert torch.allclose(logits(theirs), logits(ours.hf), atol=1e-6)


def test_merged_weights_are_those_of_peft(base, tmp_path):
    """W + alpha / r · B A, with the names of the base model."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    ours = policy(base, r=4, alpha=12)
    stir(ours.hf)
    merged = {name: value.clone() for name, value in merged_tensors(ours.hf)}
    folder = export(ours, tmp_path / "adapter", base)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).merge_and_unload()
    expected = dict(theirs.named_parameters())
    assert merged.keys() == expected.keys()
    for name, value in merged.items():
        assert torch.allclose(value, expected[name], atol=1e-6), name


def test_merge_by_hand(base):
    ours = policy(base, r=1, alpha=3, target_modules=["q_proj"])
    layer = ours.hf.model.layers[0].self_attn.q_proj
    plain = layer.base_layer.weight.detach().clone()
    with torch.no_grad():
        layer.lora_A["default"].weight.fill_(0.5)
        layer.lora_B["default"].weight.fill_(2.0)
    merged = {name: value.clone() for name, value in merged_tensors(ours.hf)}
    assert torch.allclose(merged["model.layers.0.self_attn.q_proj.weight"], plain + 3.0, atol=1e-6)
    assert torch.equal(merged["model.layers.1.self_attn.q_proj.weight"], _weight(ours, 1))


def _weight(model, layer):
    return model.hf.model.layers[layer].self_attn.q_proj.base_layer.weight


def test_adapter_off_is_the_base_model_and_comes_back(base):
    ours, plain = policy(base, r=4), load_policy(PolicyConfig(str(base)), seed=0)
    stir(ours.hf)
    on = logits(ours.hf)
    trained = [name for name, p in ours.named_parameters() if p.requires_grad]
    with adapter_off(ours.hf):
        assert torch.equal(logits(ours.hf), logits(plain.hf))
    assert torch.equal(logits(ours.hf), on)
    assert [name for name, p in ours.named_parameters() if p.requires_grad] == trained


def test_start_from_an_adapter(base, tmp_path):
    first = policy(base, r=4, alpha=12, target_modules=["q_proj", "v_proj"])
    stir(first.hf)
    folder = export(first, tmp_path / "adapter", base)
    again = policy(base, path=str(folder))
    assert torch.equal(logits(again.hf), logits(first.hf))
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {
        n for n, p in first.named_parameters() if p.requires_grad
    }


def test_start_from_an_adapter_that_peft_wrote(base, tmp_path):
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    config = PeftLoraConfig(r=2, lora_alpha=8, target_modules=["o_proj"], init_lora_weights=False)
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    theirs.save_pretrained(tmp_path / "theirs")
    assert torch.allclose(logits(policy(base, path=str(tmp_path / "theirs")).hf), logits(theirs), atol=1e-6)


class TestRefusals:
    def refused(self, config: PolicyConfig, *words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_policy(config, seed=0)
        text = str(caught.value)
        assert "\n" not in text
        assert all(word in text for word in words), text

    def test_adapter_of_another_base(self, base, tmp_path):
        """Of the same shape, so only the note beside the adapter tells."""
        first = policy(base, r=4)
        folder = export(first, tmp_path / "adapter", base)
        other = write_model(tmp_path / "other", "qwen2", weights=True, initializer_range=0.3)
        self.refused(
            PolicyConfig(str(other), lora=LoraConfig(path=str(folder))), "lora.path", "model.policy.path", str(base)
        )

    def test_adapter_of_a_larger_base_without_a_note(self, base, tmp_path):
        folder = export(policy(base, r=4), tmp_path / "adapter", "owner/base")
        (folder / "base_weights.json").unlink()
        other = write_model(tmp_path / "other", "qwen2", weights=True, hidden_size=64)
        self.refused(PolicyConfig(str(other), lora=LoraConfig(path=str(folder))), "lora.path", "owner/base", "shapes")

    def test_adapter_of_another_base_by_name(self, base, tmp_path):
        """Nothing but the name tells that this is a foreign adapter: layers and shapes fit."""
        folder = export(policy(base, r=4), tmp_path / "adapter", "owner/base")
        (folder / "base_weights.json").unlink()
        with pytest.warns(UserWarning, match=r"lora.path .* says that its base model is owner/base, not .*model"):
            policy(base, path=str(folder))

    def test_adapter_with_fewer_modules_than_it_says(self, base, tmp_path):
        from safetensors.torch import load_file, save_file

        folder = export(policy(base, r=4), tmp_path / "adapter", base)
        weights = load_file(folder / "adapter_model.safetensors")
        weights.pop(sorted(weights)[0])
        save_file(weights, folder / "adapter_model.safetensors")
        self.refused(PolicyConfig(str(base), lora=LoraConfig(path=str(folder))), "is only in the model")

    def test_other_rank_than_the_adapters(self, base, tmp_path):
        folder = export(policy(base, r=4), tmp_path / "adapter")
        self.refused(PolicyConfig(str(base), lora=LoraConfig(path=str(folder), r=8)), "model.policy.lora.r", "8", "4")

    def test_a_kind_that_is_more_than_a_product(self, base, tmp_path):
        folder = export(policy(base, r=4), tmp_path / "adapter")
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"use_dora": True}))
        self.refused(PolicyConfig(str(base), lora=LoraConfig(path=str(folder))), "use_dora", "merge")

    def test_no_such_modules(self, base):
        self.refused(PolicyConfig(str(base), lora=LoraConfig(target_modules=["query"])), "target_modules", "query")

    def test_a_misspelt_module_among_others(self, base):
        """PEFT leaves out what it does not find."""
        config = LoraConfig(target_modules=["q_proj", "v_prjo"])
        self.refused(PolicyConfig(str(base), lora=config), "target_modules", "no layer v_prjo")

    def test_a_broken_expression(self, base):
        self.refused(PolicyConfig(str(base), lora=LoraConfig(target_modules="*(")), "target_modules", "regular")

    @pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
    def test_a_tied_head(self, tmp_path, kind):
        """A merge would lose its update, or change the embedding too."""
        tied = write_model(tmp_path / "tied", kind, weights=True, tie_word_embeddings=True)
        self.refused(PolicyConfig(str(tied), lora=LoraConfig(target_modules=["lm_head"])), "lm_head", "shares")

    def test_an_embedding(self, base):
        config = LoraConfig(target_modules=["q_proj", "embed_tokens"])
        self.refused(PolicyConfig(str(base), lora=config), "embed_tokens", "no linear layer")

    @pytest.mark.parametrize("kind", ["pissa", "olora", "pissa_niter_4"])
    def test_an_initialiser_that_changes_the_base_model(self, base, tmp_path, kind):
        """Its base weights are no longer W, and the reference with the adapter off would not be the base model."""
        folder = export(policy(base, r=4), tmp_path / "adapter", base)
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"init_lora_weights": kind}))
        self.refused(PolicyConfig(str(base), lora=LoraConfig(path=str(folder))), f"init_lora_weights {kind}")

    @pytest.mark.parametrize(
        ("name", "text"),
        [("adapter_model.safetensors", "junk"), ("base_weights.json", "{"), ("base_weights.json", "[]")],
    )
    def test_broken_files(self, base, tmp_path, name, text):
        folder = export(policy(base, r=4), tmp_path / "adapter", base)
        (folder / name).write_text(text)
        self.refused(PolicyConfig(str(base), lora=LoraConfig(path=str(folder))), "lora.path", name, "is broken")

    @pytest.mark.parametrize("text", ["{", "[]"])
    def test_a_broken_adapter_in_place_of_a_model(self, tmp_path, text):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"is an adapter; set model.policy.path"):
            check_policy(PolicyConfig(str(tmp_path)))

    def test_no_such_folder(self, base, tmp_path):
        with pytest.raises(ConfigError, match=r"lora.path .*nowhere has no adapter_config"):
            check_policy(PolicyConfig(str(base), lora=LoraConfig(path=str(tmp_path / "nowhere"))))

    def test_an_adapter_in_place_of_a_model(self, base, tmp_path):
        folder = export(policy(base, r=4), tmp_path / "adapter", base)
        with pytest.raises(ConfigError, match=r"is an adapter; set model.policy.path to its base model"):
            check_policy(PolicyConfig(str(folder)))

    def test_quantised_weights_without_adapters(self, base):
        with pytest.raises(ConfigError, match=r"quantize_bits is 4.*set model.policy.lora"):
            PolicyConfig(str(base), quantize_bits=4)

    @pytest.mark.parametrize("wrong", [{"r": 0}, {"alpha": 0}, {"dropout": 1.0}, {"target_modules": []}])
    def test_numbers(self, wrong):
        with pytest.raises(ConfigError, match=f"model.policy.lora.{next(iter(wrong))}"):
            LoraConfig(**wrong)
