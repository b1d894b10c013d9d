"""Tokenizers that the tests of roll_lightning.data train or spell out themselves."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from roll_lightning.models.tokenizer import read_chat_template

CORPUS = ["the cat sat on the mat", "abababab abcabc", "aaaa bbbb ab ba", "question and answer"] * 20


def bpe_tokenizer(template: str | None = "chatml", bos: str | None = None) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained here; pad and EOS are the same token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + ([bos] if bos else [])
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(CORPUS, trainer)
    if bos:
        number = backend.token_to_id(bos)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A <|endoftext|>",
            special_tokens=[(bos, number), ("<|endoftext|>", backend.token_to_id("<|endoftext|>"))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", pad_token="<|endoftext|>", bos_token=bos
    )
    tokenizer.chat_template = template and read_chat_template(template)
    return tokenizer


def word_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Words between white space, and no token for white space itself. Ids are the positions in this list."""
    words = ["<eos>", "<|im_start|>", "<|im_end|>", "system", "user", "assistant", "hi", "yes", "no", "bye", "ok", "."]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )
    tokenizer.chat_template = template
    return tokenizer


def turns(*texts: str) -> list[dict[str, str]]:
    """A conversation in which user and assistant take turns."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
