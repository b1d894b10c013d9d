"""Loading ``transformers`` models under DeepSpeed ZeRO-3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.strategies import Strategy

from roll_lightning.models.sharding import is_zero3


@contextmanager
def load_in_shards(strategy: Strategy, from_scratch: bool) -> Iterator[None]:
    """Under ZeRO-3, let ``from_pretrained`` inside put each weight into shards as it is read; else change nothing.

    A model from scratch is made whole, since its random weights must not depend on the ranks; DeepSpeed cuts it up when
    it sets up its engine.
    """
    if not is_zero3(strategy):
        yield
        return
    with _no_partitioning():
        if from_scratch:
            yield
        else:
            with _hf_knows_zero3(strategy):
                yield


@contextmanager
def _no_partitioning() -> Iterator[None]:
    """Leave the ``zero.Init`` that Lightning's strategy opens: inside it, what an initialiser writes is lost."""
    from deepspeed.runtime.zero.partition_parameters import restore_init_context, shutdown_init_context

    shutdown_init_context()
    try:
        yield
    finally:
        restore_init_context()


@contextmanager
def _hf_knows_zero3(strategy: Any) -> Iterator[None]:
    """Tell ``transformers``; unsaid afterwards, because a later load on one rank alone would wait for the others."""
    from transformers.integrations import HfDeepSpeedConfig
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    known = HfDeepSpeedConfig(strategy.config)
    try:
        yield
    finally:
        del known
        unset_hf_deepspeed_config()


def start_zero3_inference(model: Any, strategy: Any) -> None:
    """Let a model that is not trained run under ZeRO-3: it needs an engine of its own that gathers its weights."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        **{key: strategy.config[key] for key in ("bf16", "fp16") if key in strategy.config},
    }
    deepspeed.initialize(model=model, config=config, optimizer=None, model_parameters=[], dist_init_required=False)
