"""Who sets the coefficient of the KL term."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from roll_lightning.errors import CheckpointError, ConfigError, RollLightningError


class KLController(ABC):
    """Gives the coefficient β of a KL penalty. Chosen in YAML by ``class_path``.

    What β weighs depends on the placement; :func:`roll_lightning.functional.kl.kl_estimate` has the proofs:

    - in the reward, ``r_t - β k_t``: with k1 the gradient is β ∇KL(policy ‖ reference), exact; k3, k2, abs are biased.
    - in the loss, ``loss_t + β k_t``: with k2 or the full KL it is the same exact gradient; k1 gives none at all,
      k3 that of the forward KL, abs that of twice the total variation.

    On several ranks ``update`` must get the same numbers on each, so that all have the same coefficient.
    """

    @property
    @abstractmethod
    def coefficient(self) -> float:
        """β, 0 or more."""

    @abstractmethod
    def update(self, kl: float, samples: int) -> None:
        """Take note of an iteration.

        Args:
            kl: the mean KL of the iteration, in the unit of the target: nats per response, or nats per token.
            samples: rollouts of the iteration, over all ranks.
        """

    def formula(self) -> str:
        """β in words, for ``roll-lightning explain``."""
        return f"{self.coefficient:g}"

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from iteration to iteration, as primitives."""
        return {}

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state_dict` gave."""


class FixedKL(KLController):
    """The same coefficient throughout.

    Args:
        coefficient: β, 0 or more.

    Raises:
        ConfigError: it is negative or not finite.
    """

    def __init__(self, coefficient: float = 0.001) -> None:
        if not 0 <= coefficient < math.inf:
            raise ConfigError(f"FixedKL.coefficient is {coefficient}; it must be a finite number, 0 or more")
        self._coefficient = float(coefficient)

    @property
    def coefficient(self) -> float:
        """β as it was set."""
        return self._coefficient

    def update(self, kl: float, samples: int) -> None:
        """Nothing changes."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to take up.

        Raises:
            CheckpointError: the state is that of another controller.
        """
        if state:
            raise CheckpointError(
                f"the checkpoint has a KL coefficient that adapts ({state}), but the config has FixedKL; resume with "
                f"AdaptiveKL, or start a new run from the checkpoint's weights"
            )


class AdaptiveKL(KLController):
    """Steers the KL to a target (Ziegler et al., arXiv 1909.08593, section 2.2).

    ``β ← β (1 + clip(kl / target - 1, -0.2, 0.2) · samples / horizon)`` after each iteration: with 512 samples and a
    horizon of 10 000, at most 1.024 % up or down.

    Args:
        init: the first β, above 0.
        target: the KL to keep, above 0, in the unit of what :meth:`update` gets (6 nats per response in the paper).
        horizon: samples over which a full-sized error would change β by 20 %; more is slower. It must be above a fifth
            of an iteration's samples, or β could become 0 or negative.

    Raises:
        ConfigError: an argument is not finite and above 0.
    """

    MAX_ERROR = 0.2

    def __init__(self, init: float = 0.2, target: float = 6.0, horizon: float = 10_000) -> None:
        for name, value in (("init", init), ("target", target), ("horizon", horizon)):
            if not 0 < value < math.inf:
                raise ConfigError(f"AdaptiveKL.{name} is {value}; it must be a finite number above 0")
        self.target = target
        self.horizon = horizon
        self._coefficient = float(init)

    @property
    def coefficient(self) -> float:
        """β as it is now."""
        return self._coefficient

    def check_samples(self, samples: int) -> None:
        """Find a horizon that is too short for iterations of so many samples, before a model loads.

        Raises:
            ConfigError: it is.
        """
        if self.MAX_ERROR * samples >= self.horizon:
            raise ConfigError(
                f"model.kl.horizon is {self.horizon:g}, but an iteration has {samples} samples, so the coefficient "
                f"could become 0 or negative; set it above {self.MAX_ERROR * samples:g} (10000 is usual)"
            )

    def update(self, kl: float, samples: int) -> None:
        """Adapt β; see :class:`AdaptiveKL`.

        Raises:
            ConfigError: see :meth:`check_samples`.
            RollLightningError: the KL is not finite.
        """
        if not math.isfinite(kl):
            raise RollLightningError(f"the KL to the reference is {kl}, so its coefficient cannot adapt to it")
        self.check_samples(samples)
        error = min(max(kl / self.target - 1, -self.MAX_ERROR), self.MAX_ERROR)
        self._coefficient *= 1 + error * samples / self.horizon

    def formula(self) -> str:
        """See :class:`KLController`; ``kl`` and ``samples`` are what :meth:`update` gets."""
        error = f"clip(kl / {self.target:g} - 1, -{self.MAX_ERROR:g}, {self.MAX_ERROR:g})"
        return f"{self.coefficient:g}, then β (1 + {error} samples / {self.horizon:g}) after each iteration"

    def state_dict(self) -> dict[str, Any]:
        """The coefficient."""
        return {"coefficient": self._coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the coefficient; target and horizon are the config's.

        Raises:
            CheckpointError: the state has none.
        """
        if "coefficient" not in state:
            raise CheckpointError(
                "the checkpoint has no adapted KL coefficient, but the config has AdaptiveKL; resume with FixedKL, or "
                "start a new run from the checkpoint's weights"
            )
        self._coefficient = float(state["coefficient"])
