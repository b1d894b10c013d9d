"""Who says what reward is to be expected, and how it learns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roll_lightning.errors import ConfigError
from roll_lightning.models.loading import PolicyConfig


@dataclass(frozen=True)
class CriticConfig:
    """A critic: a model of its own beside the policy, or a head on the policy's hidden states.

    Args:
        shared: a head on the policy's body instead of a model of its own: half the memory, and the value loss moves the
            body, too.
        path: folder or hub name of a causal language model, or of an exported critic (``hf/critic``); ``None`` takes
            the policy's own start. Values begin at 0, but for an exported critic's.
        lr: learning rate of the critic, of the head alone if ``shared``; it follows ``model.schedule``.
        gradient_clip_val: of the critic's own gradient, clipped apart from the policy's; ``None`` takes
            ``trainer.gradient_clip_val``.
        coefficient: weight of the value loss.
        value_clip: how far a value may move in an iteration, in units of the reward; ``None`` sets no limit.
        warmup_iterations: iterations at the start that train the critic only; the policy's schedule begins after them.
    """

    shared: bool = False
    path: str | None = None
    lr: float = 1e-5
    gradient_clip_val: float | None = None
    coefficient: float = 1.0
    value_clip: float | None = None
    warmup_iterations: int = 0

    def __post_init__(self) -> None:
        if self.shared and self.path is not None:
            raise ConfigError(
                f"model.critic.path is {self.path}, but model.critic.shared takes the policy's body; drop one of them"
            )
        for name in ("lr", "coefficient"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"model.critic.{name} is {getattr(self, name)}; it must be above 0")
        for name in ("value_clip", "gradient_clip_val"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"model.critic.{name} is {value}; it must be above 0, or null")
        if self.warmup_iterations < 0:
            raise ConfigError(f"model.critic.warmup_iterations is {self.warmup_iterations}; it must be 0 or more")

    def model(self, policy: PolicyConfig) -> PolicyConfig:
        """What a critic of its own is loaded from; it trains all its weights, whatever the policy does."""
        scratch = policy.from_scratch and self.path is None
        return replace(policy, path=self.path or policy.path, from_scratch=scratch, lora=None, quantize_bits=None)
