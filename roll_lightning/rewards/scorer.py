"""Applies a weighted list of rewards to rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from roll_lightning.data.types import Rollout
from roll_lightning.errors import ConfigError, RewardError
from roll_lightning.rewards.base import Reward
from roll_lightning.rewards.domains import has_verifier, refuse_unknown_domains, refuse_unserved_domains
from roll_lightning.rewards.pool import OnError, RewardPool
from roll_lightning.rewards.weighted import WeightedReward, as_weighted


class RewardScorer:
    """Fills ``components``, ``score`` and ``reward`` of rollouts from a list of rewards.

    For each rollout, with value ``v_i`` and weight ``w_i`` of reward i, over the rewards that serve its prompt's
    domain: ``components[name_i] = v_i``; ``score`` is the sum of ``w_i v_i`` over those that are no shaping (the raw
    score, on which groups are filtered); ``reward`` is the sum over all of them. A verifier's ``None`` makes both
    ``None``. A shaping reward's ``None`` makes ``reward`` ``None`` and leaves the score: what cannot be shaped is not
    trained on, but it is still measured.

    Args:
        rewards: a bare reward counts with weight 1, as shaping if it says so itself.
        workers: see :class:`RewardPool`.
        deadline: seconds per rollout and reward; see :class:`RewardPool`.
        on_error: see :class:`RewardPool`.

    Raises:
        ConfigError: no reward in the list is a verifier, two have one name, or the pool refuses one.
    """

    def __init__(
        self, rewards: Sequence[Reward], *, workers: int = 2, deadline: float = 10.0, on_error: OnError = "raise"
    ) -> None:
        self.rewards: tuple[WeightedReward, ...] = tuple(map(as_weighted, rewards))
        if all(reward.shaping for reward in self.rewards):
            raise ConfigError(
                f"rewards is [{', '.join(reward.name for reward in self.rewards)}], without a reward that gives the "
                "raw score; add a verifier such as ExactMatch, or wrap one in WeightedReward with shaping: false"
            )
        self.pool = RewardPool(self.rewards, workers=workers, deadline=deadline, on_error=on_error)

    @property
    def failures(self) -> Counter[str]:
        """Rollouts that each reward failed on so far, by name; stays empty under ``on_error="raise"``."""
        return self.pool.failures

    def check_domains(self, present: Mapping[str, Collection[str]], *, complete: bool) -> None:
        """Refuse rewards and prompts that do not go together.

        Args:
            present: the prompts' domains by the key that names their source, such as ``data.train``.
            complete: no other prompts will come, so a reward for another domain must be an error.

        Raises:
            ConfigError: a domain has no verifier, or a reward names a domain that is not there.
        """
        if complete:
            refuse_unknown_domains(self.rewards, present)
        refuse_unserved_domains(self.rewards, present)

    def score(self, rollouts: Sequence[Rollout]) -> int:
        """Fill the rollouts in place; returns how many of them have no reward (could not be scored).

        Raises:
            RewardError: no verifier serves a rollout's domain; under ``on_error="raise"``, the first failure; a worker
                that does not start, always.
        """
        self._refuse_unserved(rollouts)
        for rollout, verdicts in zip(rollouts, self.pool.score(rollouts), strict=True):
            rollout.components = {name: verdict.value for name, verdict in verdicts.items()}
            rollout.reward_faults = {name: verdict.fault for name, verdict in verdicts.items() if verdict.fault}
            rollout.score = self._sum(rollout, [reward for reward in self.rewards if not reward.shaping])
            rollout.reward = self._sum(rollout, self.rewards)
        return sum(rollout.reward is None for rollout in rollouts)

    def close(self) -> None:
        """End the pool's worker processes."""
        self.pool.close()

    def _refuse_unserved(self, rollouts: Sequence[Rollout]) -> None:
        served = {domain: has_verifier(self.rewards, domain) for domain in {r.prompt.domain for r in rollouts}}
        for rollout in rollouts:
            if not served[rollout.prompt.domain]:
                raise RewardError(
                    f"no verifier serves the domain {rollout.prompt.domain!r} of prompt {rollout.prompt.id!r}; add the "
                    "domain to the `domains` of one"
                )

    @staticmethod
    def _sum(rollout: Rollout, rewards: Sequence[WeightedReward]) -> float | None:
        total = 0.0
        for reward in rewards:
            if reward.name not in rollout.components:  # it does not serve this domain
                continue
            value = rollout.components[reward.name]
            if value is None:
                return None
            total += reward.weight * value
        return total
