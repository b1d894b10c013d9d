from __future__ import annotations

from tiny import quiet_trainer, sorting_rows, write_jsonl, write_model

from roll_lightning.callbacks.progress_lines import ProgressLines
from roll_lightning.datamodules.sft import SFTDataModule
from roll_lightning.models.loading import PolicyConfig
from roll_lightning.modules.sft import SFTModule


def test_a_line_says_epoch_step_and_time(tmp_path, capsys):
    rows = write_jsonl(tmp_path / "rows.jsonl", sorting_rows(8, answer="completion"))
    module = SFTModule(PolicyConfig(str(write_model(tmp_path / "model")), from_scratch=True))
    trainer = quiet_trainer(tmp_path, ProgressLines(every_seconds=0), max_epochs=2, enable_checkpointing=False)
    trainer.fit(module, datamodule=SFTDataModule(str(rows), batch_size=4, max_length=16))
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines() if line.startswith("  epoch")]
    assert [line[1:3] for line in lines] == [
        ["epoch 1/2", "step 1"],
        ["epoch 1/2", "step 2"],
        ["epoch 2/2", "step 3"],
        ["epoch 2/2", "step 4"],
    ]
    assert all(line[-1].endswith(" s") for line in lines)
