"""DeepSpeed that also runs on CPU ranks, so that a config can be tried before it meets a GPU."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy


class RollDeepSpeedStrategy(DeepSpeedStrategy):
    """Lightning's strategy without its refusal of CPU ranks; on GPUs it is Lightning's own, unchanged.

    Takes the arguments of :class:`lightning.pytorch.strategies.DeepSpeedStrategy`.
    """

    strategy_name = "roll_deepspeed"

    @property
    def _on_cpu(self) -> bool:
        return isinstance(self.accelerator, CPUAccelerator)

    def setup_environment(self) -> None:
        """Choose DeepSpeed's CPU accelerator and gloo where there is no GPU."""
        if not self._on_cpu:
            super().setup_environment()
            return
        os.environ["DS_ACCELERATOR"] = "cpu"
        self._process_group_backend = "gloo"
        # Lightning's DeepSpeed class refuses CPU here; its parent's set-up is what remains.
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        """Join the process group; CPU devices have no index to validate."""
        if not self._on_cpu:
            super().setup_distributed()
            return
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    @property
    def root_device(self) -> torch.device:
        """The device of this rank; DeepSpeed wants an index, also for CPU."""
        if self._on_cpu:
            return torch.device("cpu", 0)
        return DDPStrategy.root_device.fget(self)

    def _setup_model(self, model: Any) -> Any:
        return model if self._on_cpu else super()._setup_model(model)

    def teardown(self) -> None:
        """Take DeepSpeed's hooks off the module, so that it can be validated and trained again."""
        import deepspeed

        if isinstance(self.model, deepspeed.DeepSpeedEngine):
            self.model.destroy()
        super().teardown()
