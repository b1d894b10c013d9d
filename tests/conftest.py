import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import pytest
from tiny import write_instruct_model

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def quickstart_folder(tmp_path_factory) -> Path:
    """A working folder as the documentation assumes.

    It has what the quickstart writes, after a short SFT run, and what `make example-real-data` writes, with a tiny
    model in place of the real one.
    """
    from roll_lightning.cli import main

    folder = tmp_path_factory.mktemp("quickstart")
    sys.path.insert(0, str(ROOT / "examples"))
    import sorting_task
    import sums_task

    sorting_task.make_task(folder / "runs/quickstart", seed=0, warmup=512, train=256, held_out=16)
    sums_task.make_task(folder / "runs/real_model/data", seed=0)
    write_instruct_model(folder / "runs/models/SmolLM2-135M-Instruct")
    (folder / "configs").symlink_to(ROOT / "configs")
    before = Path.cwd()
    os.chdir(folder)
    try:
        root = ["--trainer.default_root_dir", "runs/quickstart/sft"]
        assert main(["fit", "--config", "configs/sft.yaml", "--trainer.max_steps", "4", *root]) == 0
        shutil.copytree("runs/quickstart/sft/hf", "runs/quickstart/rlvr/hf")
    finally:
        os.chdir(before)
    return folder
