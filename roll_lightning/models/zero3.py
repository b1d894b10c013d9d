"""Loading ``transformers`` models under DeepSpeed ZeRO-3."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.strategies import Strategy

from roll_lightning.models.sharding import is_zero3


@contextmanager
def hf_in_shards(strategy: Strategy) -> Iterator[None]:
    """Under ZeRO-3, let ``from_pretrained`` inside put each weight into shards as it is read; else change nothing.

    It works inside the strategy's ``model_sharded_context``, in which Lightning calls ``configure_model``.
    """
    if not is_zero3(strategy):
        yield
        return
    from transformers.integrations import HfDeepSpeedConfig
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    settings: Any = strategy
    known = HfDeepSpeedConfig(settings.config)
    try:
        yield
    finally:
        # Else a later load on one rank alone would wait for the others.
        del known
        unset_hf_deepspeed_config()


@contextmanager
def whole_modules() -> Iterator[None]:
    """Modules made inside keep whole weights, also in ``model_sharded_context``; DeepSpeed cuts them up later.

    There a weight is cut as soon as it exists, and an initialiser that writes it afterwards writes nothing.
    """
    if "deepspeed" not in sys.modules:
        yield
        return
    from deepspeed.runtime.zero.partition_parameters import restore_init_context, shutdown_init_context

    shutdown_init_context()
    try:
        yield
    finally:
        restore_init_context()


def start_zero3_inference(model: Any, strategy: Any) -> Any:
    """Let a model that is not trained run under ZeRO-3: it needs an engine of its own that gathers its weights.

    Returns:
        The engine; ``destroy()`` takes its hooks off the model again.
    """
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        **{key: strategy.config[key] for key in ("bf16", "fp16") if key in strategy.config},
    }
    settings: dict[str, Any] = {"optimizer": None, "model_parameters": [], "dist_init_required": False}
    return deepspeed.initialize(model=model, config=config, **settings)[0]
