"""``transformers`` loads an export with the very logits of the trained policy."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model

from roll_lightning.callbacks.checkpoint import RunCheckpoint
from roll_lightning.callbacks.hf_export import HFExport
from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.errors import ConfigError
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.optim import OptimizerConfig
from roll_lightning.modules.sft import SFTModule


def train(folder, export, tied=False, model_type="llama", dtype="float32", steps=2, **checkpoint):
    rows = write_jsonl(folder / "rows.jsonl", sorting_rows(8, answer="completion"))
    model = write_model(folder / "model", model_type, tie_word_embeddings=tied)
    module = SFTModule(PolicyConfig(str(model), from_scratch=True, dtype=dtype), OptimizerConfig(lr=1e-2))
    trainer = quiet_trainer(folder / "run", RunCheckpoint(**checkpoint), export, max_steps=steps)
    trainer.fit(module, datamodule=SFTDataModule(str(rows), batch_size=2, max_length=16))
    return module


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(2, 12)[None], use_cache=False).logits


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_identical_logits(tmp_path, tied, model_type):
    from transformers import AutoModelForCausalLM

    module = train(tmp_path, HFExport(), tied, model_type)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run/hf")
    assert torch.equal(logits(loaded), logits(module.policy.hf))
    assert loaded.config.tie_word_embeddings is tied
    assert (loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()) is tied
    start = AutoModelForCausalLM.from_config(loaded.config)
    assert not torch.equal(logits(start), logits(loaded))


def test_the_tokenizer_is_there_and_encodes_the_same(tmp_path):
    from transformers import AutoTokenizer

    module = train(tmp_path, HFExport())
    loaded = AutoTokenizer.from_pretrained(tmp_path / "run/hf")
    assert loaded("538210=")["input_ids"] == module.tokenizer("538210=")["input_ids"] == [7, 5, 10, 4, 3, 2, 12]
    assert loaded.eos_token_id == 1


def test_the_newest_replaces_the_last(tmp_path):
    from transformers import AutoModelForCausalLM

    module = train(tmp_path, HFExport(), steps=3, every_n_steps=1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run/hf")
    assert torch.equal(logits(loaded), logits(module.policy.hf))
    assert [path.name for path in (tmp_path / "run").glob("hf*")] == ["hf"]


def test_one_folder_per_checkpoint(tmp_path):
    train(tmp_path, HFExport(str(tmp_path / "exports"), per_step=True), steps=3, every_n_steps=1)
    assert sorted(path.name for path in (tmp_path / "exports").iterdir()) == ["step=1", "step=2", "step=3"]


def test_dtype_is_kept(tmp_path):
    from safetensors.torch import load_file

    train(tmp_path, HFExport(), dtype="bfloat16")
    weights = load_file(tmp_path / "run/hf/model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "run/hf/config.json").read_text())["dtype"] == "bfloat16"


def test_no_bars_of_transformers(tmp_path, capfd):
    train(tmp_path, HFExport())
    assert "Writing model shards" not in capfd.readouterr().err


def test_an_export_does_not_replace_what_the_run_begins_with(tmp_path):
    model = write_model(tmp_path / "run/hf", weights=True)
    before = (model / "model.safetensors").read_bytes()
    rows = write_jsonl(tmp_path / "rows.jsonl", sorting_rows(8, answer="completion"))
    trainer = quiet_trainer(tmp_path / "run", RunCheckpoint(), HFExport(), max_steps=1)
    with pytest.raises(ConfigError, match=r"would replace .*run/hf, which the run begins with"):
        trainer.fit(SFTModule(PolicyConfig(str(model))), datamodule=SFTDataModule(str(rows), batch_size=2))
    assert (model / "model.safetensors").read_bytes() == before
