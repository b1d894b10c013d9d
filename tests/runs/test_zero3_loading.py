"""Under ZeRO-3 no rank ever holds a whole pretrained model, and what it holds is right."""

from __future__ import annotations

import pytest
import torch
from runs.tiny_run import make_task, rlvr_data, rollout_callback
from spine.forked import run_forked
from spine.toy import strategy_of
from tiny import quiet_trainer
from torch import nn

from roll_lightning.models.full_tensors import full_tensors, is_zero3_parameter
from roll_lightning.models.loading import PolicyConfig, load_policy
from roll_lightning.models.lora import LoraConfig
from roll_lightning.models.zero3 import whole_modules
from roll_lightning.modules.rlvr import KLConfig, RLVRModule


def check_weights(hf: nn.Module, plain: nn.Module) -> None:
    expected = dict(plain.named_parameters())
    for name, value in full_tensors(hf):
        assert torch.equal(value, expected[name]), name


class Watched(RLVRModule):
    """Looks at policy and reference as soon as they are loaded."""

    def configure_model(self) -> None:
        super().configure_model()
        scratch = self.policy_config.from_scratch
        with whole_modules():
            settings = PolicyConfig(self.policy_config.path, from_scratch=scratch, lora=self.policy_config.lora)
            plain = load_policy(settings, seed=0)
        for policy in (self.ready_policy, *self._reference):
            for name, parameter in policy.hf.named_parameters():
                in_shards = not scratch and ".lora_" not in name
                assert is_zero3_parameter(parameter) is in_shards, name
                assert (parameter.numel() == 0) is in_shards, name
            check_weights(policy.hf, plain.hf)


@pytest.mark.parametrize("kind", ["pretrained", "from scratch", "lora"])
def test_in_shards_from_the_file_on(tmp_path, kind):
    task = make_task(tmp_path / "task")
    lora = LoraConfig(r=4) if kind == "lora" else None
    policy = PolicyConfig(str(task / "model"), from_scratch=kind == "from scratch", lora=lora)

    def start() -> None:
        trainer = quiet_trainer(
            tmp_path / "run", rollout_callback(), strategy=strategy_of("zero3"), devices=2, max_epochs=1
        )
        trainer.fit(Watched(policy, kl=KLConfig("loss")), datamodule=rlvr_data(task))

    codes = run_forked(start, tmp_path / "out.txt", 2)
    assert codes == [0, 0], (tmp_path / "out.txt").read_text()[-3000:]
