"""Runs with adapters: what is trained, saved, exported, and what the KL term refers to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs.run_ends import assert_same_state, last_state, logged
from runs.tiny_run import make_task, rlvr_module, run_rlvr, run_sft, sft_module

from roll_lightning.callbacks.hf_export import HFExport
from roll_lightning.errors import CheckpointError, ConfigError
from roll_lightning.models.loading import PolicyConfig, load_policy
from roll_lightning.models.lora import LoraConfig, merged_tensors


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def wide_task(tmp_path_factory) -> Path:
    """bitsandbytes quantises in blocks of 64."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is an extra")
    return make_task(tmp_path_factory.mktemp("wide"), hidden_size=64, intermediate_size=128)


def policy(task: Path, bits: int | None = None, **lora) -> PolicyConfig:
    return PolicyConfig(str(task / "model"), lora=LoraConfig(**({"r": 4} | lora)), quantize_bits=bits)


def train(task: Path, root: Path, kind: str, epochs: int = 2, attempt: int = 0, bits: int | None = None, **lora):
    config = policy(task, bits, **lora)
    if kind == "sft":
        module = sft_module(task, policy=config)
        run_sft(task, root, module=module, max_epochs=epochs, attempt=attempt)
    else:
        module = rlvr_module(task, policy=config)
        run_rlvr(task, root, module=module, max_epochs=epochs, attempt=attempt)
    return module


@pytest.mark.parametrize("kind", ["sft", "rlvr"])
def test_only_adapters_move_and_only_they_are_saved(task, tmp_path, kind):
    module = train(task, tmp_path, kind)
    base = load_policy(PolicyConfig(str(task / "model")), seed=0)
    fresh = load_policy(policy(task), seed=0)
    before, frozen = dict(fresh.hf.named_parameters()), dict(base.hf.named_parameters())
    for name, value in module.policy.hf.named_parameters():
        plain = name.replace(".base_layer.", ".")
        assert torch.equal(value, before[name]) is (".lora_" not in name), name
        assert ".lora_" in name or torch.equal(value, frozen[plain])
    saved = last_state(tmp_path)["state_dict"]
    assert saved
    assert all(".lora_" in name for name in saved)


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("kind", ["sft", "rlvr"])
def test_T44_T45_resumed_to_the_bit(task, tmp_path, kind, bits, request):
    task = request.getfixturevalue("wide_task") if bits else task
    train(task, tmp_path / "whole", kind, bits=bits)
    train(task, tmp_path / "parts", kind, epochs=1, bits=bits)
    train(task, tmp_path / "parts", kind, attempt=1, bits=bits)
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))
    assert logged(tmp_path / "parts") == logged(tmp_path / "whole")


def test_T44_resumed_with_a_tied_head(tmp_path):
    """The state dict has the tied weight under both of its names."""
    task = make_task(tmp_path / "tied", tie_word_embeddings=True)
    train(task, tmp_path / "whole", "sft")
    train(task, tmp_path / "parts", "sft", epochs=1)
    train(task, tmp_path / "parts", "sft", attempt=1)
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"))


def test_a_merged_export_stops_where_the_base_model_stops(task, tmp_path):
    from transformers import GenerationConfig

    module = sft_module(task, policy=policy(task))
    module.policy = load_policy(policy(task), 0)
    module.policy.hf.generation_config = GenerationConfig(eos_token_id=[1, 5], pad_token_id=0)
    run_sft(task, tmp_path / "run", module=module, max_epochs=1, callbacks=[HFExport(str(tmp_path / "hf"), merge=True)])
    assert GenerationConfig.from_pretrained(tmp_path / "hf").eos_token_id == [1, 5]


def test_the_reference_is_the_adapter_turned_off(task, tmp_path):
    """The KL to it is that to a second copy of the base model, and no such copy is loaded."""
    module = train(task, tmp_path / "off", "rlvr")
    assert module._reference == ()
    config = policy(task)
    copy = rlvr_module(task, policy=config, reference=PolicyConfig(str(task / "model")))
    run_rlvr(task, tmp_path / "copy", module=copy, max_epochs=2)
    assert len(copy._reference) == 1
    assert logged(tmp_path / "off") == logged(tmp_path / "copy")
    kl = [value for (step, name), value in logged(tmp_path / "off").items() if name == "critic/kl"]
    assert kl[0] == 0
    assert all(value != 0 for value in kl[4:])


@pytest.mark.parametrize("bits", [None, 4])
def test_merged_export_is_a_whole_model_with_the_policys_logits(task, tmp_path, bits, request):
    from transformers import AutoModelForCausalLM

    task = request.getfixturevalue("wide_task") if bits else task
    module = rlvr_module(task, policy=policy(task, bits))
    merged = HFExport(str(tmp_path / "merged"), merge=True)
    run_rlvr(task, tmp_path / "run", module=module, max_epochs=1, callbacks=[merged])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not hasattr(loaded.config, "quantization_config")
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        ours, theirs = module.policy.hf.eval()(input_ids=ids).logits, loaded.eval()(input_ids=ids).logits
    assert torch.allclose(ours, theirs, atol=2e-5)
    assert not torch.allclose(
        theirs, load_policy(PolicyConfig(str(task / "model")), 0).hf.eval()(ids).logits, atol=1e-3
    )
    weights = dict(merged_tensors(module.policy.hf))
    assert_same_state(dict(loaded.named_parameters()), {k: torch.nn.Parameter(v) for k, v in weights.items()})


def test_a_run_goes_on_from_another_runs_adapter(task, tmp_path):
    first = train(task, tmp_path / "sft", "sft")
    second = train(task, tmp_path / "rl", "rlvr", epochs=0, r=None, path=str(tmp_path / "sft/hf"))
    assert_same_state(second.policy.hf.state_dict(), first.policy.hf.state_dict())


def test_another_rank_is_refused_on_resume(task, tmp_path):
    train(task, tmp_path, "sft", epochs=1)
    with pytest.raises(CheckpointError, match="adapter was"):
        train(task, tmp_path, "sft", r=8)


def test_dropout_of_adapters_is_refused_where_a_ratio_must_be_1(task, tmp_path):
    with pytest.raises(ConfigError, match=r"model.policy.lora.dropout is 0.1; reinforcement learning needs 0"):
        train(task, tmp_path, "rlvr", dropout=0.1)
    train(task, tmp_path, "sft", dropout=0.1)


def test_merge_without_adapters_is_refused(task, tmp_path):
    with pytest.raises(ConfigError, match=r"export.merge is true, but model.policy.lora is not set"):
        run_sft(task, tmp_path, callbacks=[HFExport(str(tmp_path / "m"), merge=True)])
