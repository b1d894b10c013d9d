"""A GGUF file becomes a Hugging Face folder with the same model in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tiny import tiny_config

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from smollm2 import convert

TEMPLATE = "{% for turn in messages %}<|im_start|>{{ turn.content }}<|im_end|>{% endfor %}"


def write_gguf(file: Path) -> torch.nn.Module:
    """A tiny model as GGUF, as llama.cpp's converter writes it; the model."""
    import gguf
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import AutoModelForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *sorted(ByteLevel.alphabet()), "Ġa"]
    config = tiny_config(vocab_size=len(tokens), tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.named_parameters():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), as_in_gguf(name, weight.detach(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def as_in_gguf(name: str, weight: torch.Tensor, config) -> object:
    """GGUF pairs neighbouring rows of query and key for the rotation, Hugging Face the two halves of a head."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is not None:
        weight = weight.reshape(heads, 2, len(weight) // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)
    return weight.numpy()


def test_gguf_becomes_a_folder_that_trains(tmp_path):
    pytest.importorskip("gguf")
    from roll_lightning.models.loading import PolicyConfig, load_causal_lm
    from roll_lightning.models.tokenizer import load_tokenizer, stop_token_ids

    model = write_gguf(tmp_path / "model.gguf")
    convert(tmp_path / "model.gguf", tmp_path / "made/model")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["model"]
    loaded = load_causal_lm(PolicyConfig(str(tmp_path / "made/model")), seed=0)
    ids = torch.arange(40)[None]
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    tokenizer = load_tokenizer(str(tmp_path / "made/model"))
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.decode(tokenizer.encode("hi a")) == "hi a"
    assert stop_token_ids(tokenizer) == (2,)
