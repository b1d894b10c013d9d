"""How far the policy may go from its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from roll_lightning.errors import ConfigError
from roll_lightning.functional.kl import KLKind
from roll_lightning.functional.kl_controller import AdaptiveKL, FixedKL, KLController

Placement = Literal["none", "loss", "reward"]


@dataclass(frozen=True)
class KLConfig:
    """A penalty on the KL divergence from the reference.

    Args:
        placement: ``none``: no reference is loaded; ``loss``: the estimate is added to each token's loss; ``reward``:
            it is taken from each token's reward, before advantages.
        estimator: k1, k2, k3 or abs; see :func:`roll_lightning.functional.kl.kl_estimate` for which gradient each gives
            at which placement: k2 is the exact one in the loss, k1 in the reward.
        coefficient: weight of the penalty, at the start if it adapts.
        target: KL in nats per response that the coefficient is steered to after each iteration; ``None`` fixes it.
        horizon: samples over which a full-sized error would change the coefficient by 20 %.
    """

    placement: Placement = "none"
    estimator: KLKind = "k2"
    coefficient: float = 0.001
    target: float | None = None
    horizon: float = 10_000

    def __post_init__(self) -> None:
        if self.placement not in get_args(Placement):
            raise ConfigError(f"model.kl.placement is {self.placement!r}; it must be none, loss or reward")
        if self.coefficient < 0:
            raise ConfigError(f"model.kl.coefficient is {self.coefficient}; it must be 0 or more")
        if self.target is not None and self.placement == "none":
            raise ConfigError("model.kl.target is set, but model.kl.placement is none; set it to loss or reward")

    def controller(self) -> KLController:
        """Who sets the coefficient from iteration to iteration."""
        if self.target is None:
            return FixedKL(self.coefficient)
        return AdaptiveKL(self.coefficient, self.target, self.horizon)
