"""The critic's models: what reward is to be expected from each token on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from roll_lightning.errors import ConfigError
from roll_lightning.functional.values import token_values
from roll_lightning.models.full_tensors import gathered
from roll_lightning.models.loading import ModelKind, PolicyConfig, load_transformer
from roll_lightning.models.quiet import no_load_report
from roll_lightning.models.zero3 import whole_modules

CLASSIFIER: ModelKind = "AutoModelForTokenClassification"


class ValueModel(nn.Module):
    """A critic of its own: a ``transformers`` token classifier with one label.

    Args:
        hf: the classifier.
    """

    def __init__(self, hf: nn.Module) -> None:
        super().__init__()
        self.hf: Any = hf

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.hf.config

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Values ``[batch, tokens]`` in float32; see :func:`~roll_lightning.functional.values.token_values`.

        Args:
            input_ids: ``[batch, tokens]``, right-padded.
            positions: ``[batch, tokens]`` bool, the tokens whose values are asked for.
        """
        hidden = self.hf.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        return token_values(hidden, getattr(self.hf, head_name(self.hf)), positions)


def value_head(hidden_size: int) -> nn.Linear:
    """A head whose first values are 0."""
    with whole_modules():
        head = nn.Linear(hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def head_name(hf: Any) -> str:
    """What the output layer of a token classifier is called."""
    return "score" if hasattr(hf, "score") else "classifier"


def load_value_model(config: PolicyConfig, seed: int) -> ValueModel:
    """A critic from a causal language model, whose first values are 0, or from an exported critic; not yet sharded.

    Args:
        config: which; without dropout.
        seed: of random weights, for ``from_scratch``.

    Raises:
        ConfigError: it cannot be loaded, or has no token classifier in ``transformers``.
    """
    with no_load_report():
        hf, missing = load_transformer(config, CLASSIFIER, seed, dropout=False, key="model.critic")
    name = head_name(hf)
    body = [weight for weight in missing if not weight.startswith(f"{name}.")]
    if body:
        raise ConfigError(
            f"model.critic.path {config.path} lacks {len(body)} weights, {body[0]} among them, which would start at "
            f"random; give a folder with all weights of a causal language model, or of an exported critic"
        )
    fresh = [] if not (missing or config.from_scratch) else list(getattr(hf, name).parameters())
    with torch.no_grad(), gathered(fresh, changed=True):
        for parameter in fresh:
            parameter.zero_()
    return ValueModel(hf)
