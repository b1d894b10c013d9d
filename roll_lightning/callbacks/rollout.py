"""Makes the experience of each iteration, and the rollouts of validation and prediction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from roll_lightning.callbacks.weight_sync import WeightSyncCallback
from roll_lightning.collectors.base import Collector, Purpose, RolloutTask
from roll_lightning.collectors.replay import read_rollouts, rollout_file, write_rollouts
from roll_lightning.collectors.single_turn import SingleTurnCollector
from roll_lightning.data.types import Rollout
from roll_lightning.engines.base import Engine, SamplingParams
from roll_lightning.errors import ConfigError, DataError, RewardError
from roll_lightning.metrics.rollouts import experience_metrics, rollout_metrics
from roll_lightning.models.sharding import is_sharded
from roll_lightning.rewards.base import RewardFunction
from roll_lightning.rewards.pool import OnError
from roll_lightning.rewards.scorer import RewardScorer
from roll_lightning.strategies.scale import data_parallel_rank, data_parallel_size
from roll_lightning.strategies.together import together


@dataclass(frozen=True)
class ValidationSampling:
    """What validation asks for each held-out prompt.

    Args:
        greedy: one greedy answer.
        num_samples: sampled answers, for the sampled accuracy and pass@k; 0 for none.
    """

    greedy: bool = True
    num_samples: int = 4

    def __post_init__(self) -> None:
        if self.num_samples < 0 or (not self.greedy and self.num_samples == 0):
            raise ConfigError(
                f"rollout.validation asks for greedy={self.greedy} and num_samples={self.num_samples}: nothing to score"
            )


class RolloutCallback(Callback):
    """Rolls the policy out at the start of every epoch.

    Args:
        prompts_per_iteration: prompts per iteration over all ranks.
        num_generations: answers to each of them, one group.
        engine: what generates.
        rewards: what scores; the first to be named is no more than the others, weights say what counts.
        max_new_tokens: longest response, the stop token included.
        temperature: of sampling; the trainer's log-probabilities use it too.
        top_p: nucleus sampling; 1 keeps all tokens.
        top_k: keeps the k most likely tokens; 0 keeps all.
        stop: strings that end a response.
        validation: what validation asks for.
        reward_deadline: seconds that a reward may take for one answer.
        reward_workers: processes that run rewards, on each rank.
        reward_on_error: what a reward that raises, hangs or returns nonsense does: ``"raise"`` ends the run, ``"none"``
            leaves that answer without a score and counts it.
        record_dir: folder to which each iteration's rollouts are written.
        replay_dir: folder of recorded rollouts to train on instead of generating.
        collector: makes rollouts in place of engine and rewards (from Python).
    """

    def __init__(
        self,
        prompts_per_iteration: int = 32,
        num_generations: int = 8,
        engine: Engine | None = None,
        rewards: list[RewardFunction] | None = None,
        max_new_tokens: int = 1024,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: list[str] | None = None,
        validation: ValidationSampling = ValidationSampling(),
        reward_deadline: float = 10.0,
        reward_workers: int = 2,
        reward_on_error: OnError = "raise",
        record_dir: str | None = None,
        replay_dir: str | None = None,
        collector: Collector | None = None,
    ) -> None:
        if prompts_per_iteration < 1:
            raise ConfigError(f"rollout.prompts_per_iteration is {prompts_per_iteration}; it must be 1 or more")
        if num_generations < 1:
            raise ConfigError(f"rollout.num_generations is {num_generations}; it must be 1 or more")
        if temperature <= 0:
            raise ConfigError(f"rollout.temperature is {temperature}; sampling needs more than 0")
        if collector is None and replay_dir is None and not rewards:
            raise ConfigError("rollout.rewards is empty; name at least one, e.g. rewards: [{class_path: ExactMatch}]")
        self.prompts_per_iteration = prompts_per_iteration
        self.num_generations = num_generations
        self.engine = engine
        self.rewards = rewards or []
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.top_p, self.top_k = top_p, top_k
        self.stop = stop or []
        SamplingParams(max_new_tokens, temperature, top_p, top_k)
        self.validation = validation
        self.reward_deadline = reward_deadline
        self.reward_workers = reward_workers
        self.reward_on_error: OnError = reward_on_error
        self.record_dir, self.replay_dir = record_dir, replay_dir
        self.collector = collector
        # Kept until the epoch's end and in checkpoints: a run that resumes inside an iteration logs them, too.
        self._metrics: dict[str, float] = {}
        self._metrics_iteration = -1
        self._logged = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Refuse rewards that could not work before a model loads.

        Raises:
            ConfigError: they could not, validation has none, or a domain of the prompts has none.
        """
        from roll_lightning.datamodules.rlvr import RLVRDataModule

        data: Any = trainer.datamodule
        if self.collector is None and self.rewards:
            scorer = self._scorer()
            if isinstance(data, RLVRDataModule):
                complete = stage == "fit" and not self.replay_dir
                scorer.check_domains(self._domains_to_score(data, stage), complete=complete)
            scorer.close()
        elif self.collector is None and (stage != "fit" or data.val_prompts):
            raise ConfigError(
                "rollout.rewards is empty; training from rollout.replay_dir needs none, but answering data.val or "
                "data.predict does: name a reward, or leave the file out"
            )
        if self.collector is None and self.engine is None:
            from roll_lightning.engines.hf import HFEngine

            self.engine = HFEngine()

    def _domains_to_score(self, data: Any, stage: str) -> dict[str, set[str]]:
        """The domains of the prompts that will be answered, by the key of their source."""
        sources = {"data.val": data.val_prompts}
        if stage == "fit" and not self.replay_dir:
            sources = {"data.train": data.train_prompts} | sources
        if stage == "predict":
            sources = {"data.predict" if data.predict else "data.val": data.predict_prompts}
        return {key: {prompt.domain for prompt in prompts} for key, prompts in sources.items() if prompts}

    def ensure_experience(self, trainer: Trainer, iteration: int) -> None:
        """Fill the DataModule's buffer with the experience of this iteration, unless it is there already.

        Called at the start of an epoch and before its first batch is fetched, since Lightning leaves out the former
        when it resumes inside an epoch.
        """
        data: Any = trainer.datamodule
        if data.has_experience(iteration):
            return
        clock = _Clock()
        rollouts = self._training_rollouts(trainer, iteration)
        clock.lap("time/step_generate")
        _refuse_unscored(rollouts, iteration)
        module: Any = trainer.lightning_module
        experience = module.make_experience(rollouts, iteration)
        data.set_experience(experience, iteration)
        clock.lap("time/make_experience")
        tokens = sum(rollout.response_length for rollout in rollouts)
        clock.seconds["system/actor_infer/response/tps"] = tokens / max(clock.seconds["time/step_generate"], 1e-9)
        self._metrics = rollout_metrics(rollouts) | experience_metrics(experience) | experience.metrics | clock.seconds
        self._metrics_iteration, self._logged = iteration, False

    def collect(
        self, trainer: Trainer, tasks: Sequence[RolloutTask], iteration: int, purpose: Purpose
    ) -> list[Rollout]:
        """Roll out this rank's tasks with the trainer's current weights; collective.

        Raises:
            RollLightningError: on every rank, when an engine or reward failed on any; else the others would wait.
        """
        return together(lambda: self._collect(trainer, tasks, iteration, purpose))

    def _collect(
        self, trainer: Trainer, tasks: Sequence[RolloutTask], iteration: int, purpose: Purpose
    ) -> list[Rollout]:
        collector = self._ready_collector(trainer)
        if isinstance(collector, SingleTurnCollector):
            self._weight_sync(trainer).ensure_synced(trainer, collector.engine)
        with trainer.precision_plugin.forward_context(), torch.no_grad():
            return collector.collect(tasks, iteration, purpose)

    def _training_rollouts(self, trainer: Trainer, iteration: int) -> list[Rollout]:
        if self.replay_dir:
            return self._recorded_rollouts(self.replay_dir, iteration)
        data: Any = trainer.datamodule
        prompts = data.prompts(iteration, self.prompts_per_iteration)
        tasks = [RolloutTask(prompt, group, self.num_generations) for group, prompt in enumerate(prompts)]
        mine = tasks[data_parallel_rank(trainer) :: data_parallel_size(trainer)]
        rollouts = gather_rollouts(self._with_baselines(trainer, mine, iteration))
        if self.record_dir:
            file = rollout_file(self.record_dir, iteration)
            together(lambda: write_rollouts(file, rollouts) if trainer.is_global_zero else None)
        return rollouts

    def _with_baselines(self, trainer: Trainer, tasks: list[RolloutTask], iteration: int) -> list[Rollout]:
        """The rollouts of tasks; where the module asks for it, each knows the reward of a greedy answer, too."""
        if not getattr(trainer.lightning_module, "needs_greedy_baseline", False):
            return self.collect(trainer, tasks, iteration, "train")
        greedy = [RolloutTask(task.prompt, task.group, 1, greedy=True) for task in tasks]
        rollouts = self.collect(trainer, [*tasks, *greedy], iteration, "train")
        samples = sum(task.samples for task in tasks)
        baselines = {rollout.group: rollout.reward for rollout in rollouts[samples:]}
        for rollout in rollouts[:samples]:
            rollout.baseline = baselines[rollout.group]
        return rollouts[:samples]

    def _recorded_rollouts(self, folder: str, iteration: int) -> list[Rollout]:
        rollouts = read_rollouts(folder, iteration)
        wanted = self.prompts_per_iteration * self.num_generations
        if len(rollouts) != wanted:
            raise DataError(
                f"rollout.replay_dir {folder} has {len(rollouts)} rollouts of iteration {iteration}, but "
                f"rollout.prompts_per_iteration {self.prompts_per_iteration} x rollout.num_generations "
                f"{self.num_generations} is {wanted}; set them to what the recording run had"
            )
        return rollouts

    def _ready_collector(self, trainer: Trainer) -> Collector:
        if self.collector is not None:
            return self.collector
        from roll_lightning.engines.hf import HFEngine

        module: Any = trainer.lightning_module
        data: Any = trainer.datamodule
        assert self.engine is not None, "setup gives an engine"
        self.engine.bind(module.policy, module.tokenizer)
        if is_sharded(trainer.strategy) and isinstance(self.engine, HFEngine):
            self.engine.set_lockstep(partial(any_rank, device=trainer.strategy.root_device))
        sampling = SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=tuple(self.stop),
            stop_token_ids=module.stop_token_ids,
        )
        self.collector = SingleTurnCollector(self.engine, self._scorer(), sampling, data.seed)
        return self.collector

    def _scorer(self) -> RewardScorer:
        return RewardScorer(
            self.rewards, workers=self.reward_workers, deadline=self.reward_deadline, on_error=self.reward_on_error
        )

    def _weight_sync(self, trainer: Trainer) -> WeightSyncCallback:
        for callback in trainer.callbacks:
            if isinstance(callback, WeightSyncCallback):
                return callback
        callback = WeightSyncCallback()
        trainer.callbacks.append(callback)
        return callback

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """One epoch is one iteration."""
        self.ensure_experience(trainer, trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Log the rollouts' metrics at the first batch of their iteration that this process trains."""
        if self._logged or self._metrics_iteration != trainer.current_epoch:
            return
        self._logged = True
        pl_module.log_dict(self._metrics, on_step=False, on_epoch=True, batch_size=1)
        pl_module.log(
            "score",
            self._metrics.get("critic/score/mean", 0.0),
            prog_bar=True,
            logger=False,
            on_step=True,
            on_epoch=False,
            batch_size=1,
        )

    def state_dict(self) -> dict[str, Any]:
        """The metrics of the iteration's rollouts; they are logged at its end."""
        return {"metrics": dict(self._metrics), "iteration": self._metrics_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the metrics of an iteration that goes on."""
        self._metrics = dict(state_dict["metrics"])
        self._metrics_iteration, self._logged = int(state_dict["iteration"]), False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Leave no reward worker behind: Lightning calls no ``teardown`` after a failure."""
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Close engine and reward workers."""
        self._close()

    def _close(self) -> None:
        if self.collector is not None:
            self.collector.close()
        if self.engine is not None:
            self.collector = None


def any_rank(wants: bool, device: torch.device) -> bool:
    """Whether any rank wants to go on; collective."""
    flag = torch.tensor(int(wants), device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag)


def gather_rollouts(rollouts: list[Rollout]) -> list[Rollout]:
    """The rollouts of all ranks on every rank, ordered by group and sample."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return rollouts
    shares: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, rollouts)
    return sorted(chain.from_iterable(shares), key=lambda rollout: (rollout.group, rollout.sample))


def _refuse_unscored(rollouts: Sequence[Rollout], iteration: int) -> None:
    if all(rollout.reward is None for rollout in rollouts):
        raise RewardError(
            f"no rollout of iteration {iteration} could be scored (every reward gave None); check that the rows have "
            f"the answers that rollout.rewards compare with (data.answer_column)"
        )


@dataclass
class _Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self.started
        self.started = now
