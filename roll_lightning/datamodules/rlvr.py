"""Prompts for reinforcement learning, and the buffer of rollouts that is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from roll_lightning.callbacks.exact_resume import resume_position
from roll_lightning.data.batch import ExperienceBatch, PromptBatch, WindowTotals
from roll_lightning.data.domains import DomainConfig, check_domains, domain_shares
from roll_lightning.data.experience import Experience
from roll_lightning.data.loader import FixedLoader
from roll_lightning.data.planner import Rows, Window, permutation
from roll_lightning.data.prompt_schedule import PromptSchedule
from roll_lightning.data.prompts import PromptSettings, apart, load_prompts
from roll_lightning.data.sources import RowSource, source_name
from roll_lightning.data.types import Prompt
from roll_lightning.datamodules.base import PlannedDataModule
from roll_lightning.errors import ConfigError
from roll_lightning.strategies.scale import data_parallel_rank, data_parallel_size

if TYPE_CHECKING:
    from roll_lightning.callbacks.rollout import RolloutCallback


class RLVRDataModule(PlannedDataModule):
    """Tasks with verifiable answers. One epoch of the trainer is one rollout iteration.

    Args:
        train: rows with a prompt (text or messages) and an answer: a file, a folder, a hub name, or a
            :class:`~roll_lightning.data.sources.RowSource`.
        val: the same for validation and testing.
        predict: the same for ``predict``; ``None`` takes ``val``.
        batch_size: samples per optimizer step over all ranks.
        ppo_epochs: passes over the rollouts of an iteration.
        prompt_column: the column of the prompt; ``None`` takes ``prompt`` or ``messages``, whichever is there.
        answer_column: the column that a verifier compares with; ``None`` for rewards that need no answer.
        answer_pattern: a regular expression with one group, around the answer in that column, e.g. ``#### (.+)``.
        chat: a prompt that is a string becomes a user turn of the chat template, instead of being taken as it is.
        domains: system prompt, worked examples and share of each iteration, by domain.
        max_prompt_length: longest prompt in tokens.
        overlong: what becomes of a longer one: ``"error"`` refuses it, ``"drop"`` leaves it out and counts it.
        overlap: what becomes of training prompts that are validation prompts, too: ``"warn"`` counts them in a
            warning, ``"drop"`` leaves them out of training and says how many.
        val_batch_size: prompts that are validated together, over all ranks.
        max_tokens_per_micro_batch: longest micro-batch in padded tokens; ``None`` sets no limit.
        seed: of the order of prompts and samples; ``None`` takes the run's.
    """

    def __init__(
        self,
        train: RowSource | str | None = None,
        val: RowSource | str | None = None,
        predict: RowSource | str | None = None,
        batch_size: int = 256,
        ppo_epochs: int = 1,
        prompt_column: str | None = None,
        answer_column: str | None = "answer",
        answer_pattern: str | None = None,
        chat: bool = False,
        domains: dict[str, DomainConfig] | None = None,
        max_prompt_length: int = 1024,
        overlong: Literal["error", "drop"] = "error",
        overlap: Literal["warn", "drop"] = "warn",
        val_batch_size: int = 256,
        max_tokens_per_micro_batch: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(batch_size, max_tokens_per_micro_batch, seed)
        if ppo_epochs < 1:
            raise ConfigError(f"data.ppo_epochs is {ppo_epochs}; it must be 1 or more")
        self.train, self.val, self.predict = train, val, predict
        self.ppo_epochs = ppo_epochs
        self.domains = domains or {}
        self.prompt_settings = PromptSettings(
            prompt_column, answer_column, answer_pattern, chat, self.domains, max_prompt_length, overlong
        )
        if overlap not in ("warn", "drop"):
            raise ConfigError(f"data.overlap is {overlap!r}; it must be 'warn' or 'drop'")
        self.overlap = overlap
        self.val_batch_size = val_batch_size
        self.train_prompts: list[Prompt] = []
        self.val_prompts: list[Prompt] = []
        self.predict_prompts: list[Prompt] = []
        self._experience: Experience | None = None
        self._experience_iteration: int | None = None
        self._schedule: PromptSchedule | None = None
        self._fingerprint: str | None = None

    def load_prompts(self, source: str | RowSource, split: str = "train") -> list[Prompt]:
        """Read the prompts of a source and tokenise them with the module's tokenizer."""
        dataset = load_prompts(source, self.attached_trainer.lightning_module.tokenizer, self.prompt_settings, split)
        rank_zero_info(f"{source_name(source)}: {dataset.summary()}")
        return dataset.prompts

    @property
    def rollout(self) -> RolloutCallback:
        """The callback that makes rollouts.

        Raises:
            ConfigError: the trainer has none.
        """
        from roll_lightning.callbacks.rollout import RolloutCallback

        for callback in self.attached_trainer.callbacks:
            if isinstance(callback, RolloutCallback):
                return callback
        raise ConfigError(
            "no RolloutCallback: add a `rollout:` group to the config, or Trainer(callbacks=[RolloutCallback(...)])"
        )

    def setup(self, stage: str) -> None:
        """Read the prompts and check that the numbers of an iteration go into each other."""
        super().setup(stage)
        if stage == "fit" and self.train:
            self.train_prompts = self.train_prompts or self.load_prompts(self.train)
        if stage in ("fit", "validate", "test") and self.val:
            self.val_prompts = self.val_prompts or self.load_prompts(self.val, "validation")
        if stage == "fit" and self.train:
            self.train_prompts = apart(self.train_prompts, self.val_prompts, self.overlap)
            self._plan_iterations(source_name(self.train))
            self._check_budget()
        if stage in ("validate", "test") and not self.val:
            raise ConfigError(f"data.val is not set, so there is nothing to {TrainerFn(stage).value}")
        if stage == "predict":
            source = self.predict or self.val
            if not source:
                raise ConfigError("neither data.predict nor data.val is set, so there is nothing to predict")
            split = "test" if self.predict else "validation"
            self.predict_prompts = self.predict_prompts or self.load_prompts(source, split)

    def check_settings(self) -> None:
        """Find numbers of an iteration that do not go into each other; see the base."""
        super().check_settings()
        self._check_division()
        if not self.train:
            raise ConfigError("data.train is not set; give a file, folder or hub name of training prompts")

    def _check_division(self) -> None:
        rollout = self.rollout
        samples = rollout.prompts_per_iteration * rollout.num_generations
        if samples % self.batch_size:
            below = max(d for d in range(1, min(samples, self.batch_size) + 1) if samples % d == 0)
            above = min(d for d in range(min(samples, self.batch_size), samples + 1) if samples % d == 0)
            raise ConfigError(
                f"rollout.prompts_per_iteration {rollout.prompts_per_iteration} x rollout.num_generations "
                f"{rollout.num_generations} = {samples} samples cannot be cut into optimizer steps of data.batch_size "
                f"{self.batch_size}; set data.batch_size to {' or '.join(map(str, sorted({below, above})))}"
            )

    def _plan_iterations(self, source: str) -> None:
        present = {prompt.domain for prompt in self.train_prompts}
        check_domains(self.domains, present, source)
        shares = domain_shares(self.domains, present, source)
        self._schedule = PromptSchedule(self.train_prompts, self.seed, shares)
        self._schedule.check(self.rollout.prompts_per_iteration)

    def _check_budget(self) -> None:
        longest = sorted((len(prompt.token_ids) for prompt in self.train_prompts), reverse=True)
        limit = self.rollout.max_new_tokens
        generations = self.rollout.num_generations
        self.planner.check_fits([length + limit for length in longest for _ in range(generations)][: self.batch_size])

    def prompts(self, iteration: int, count: int) -> list[Prompt]:
        """The prompts of an iteration; see :class:`~roll_lightning.data.prompt_schedule.PromptSchedule`."""
        if self._schedule is None:
            self._schedule = PromptSchedule(self.train_prompts, self.seed)
        return self._schedule.draw(iteration, count)

    def set_experience(self, experience: Experience, iteration: int) -> None:
        """Fill the buffer."""
        self._experience, self._experience_iteration = experience, iteration

    def has_experience(self, iteration: int) -> bool:
        """Whether the buffer belongs to this iteration."""
        return self._experience is not None and self._experience_iteration == iteration

    @property
    def experience(self) -> Experience:
        """The buffer.

        Raises:
            RuntimeError: it is empty.
        """
        if self._experience is None:
            raise RuntimeError("the rollout buffer is empty: RolloutCallback.ensure_experience has not run")
        return self._experience

    def windows_per_epoch(self) -> int:
        """Optimizer steps per iteration."""
        samples = self.rollout.prompts_per_iteration * self.rollout.num_generations
        return samples // self.batch_size * self.ppo_epochs

    def plan(self, epoch: int) -> Sequence[Window]:
        """Make sure that there are rollouts, then cut each pass over them, each in a new order, into windows."""
        self.rollout.ensure_experience(self.attached_trainer, epoch)
        return self.plan_experience(self.experience, epoch)

    def plan_experience(self, experience: Experience, iteration: int) -> list[Window]:
        """The windows of every pass over an experience."""
        lengths = experience.lengths.tolist()
        loss_tokens = experience.response_mask.sum(1).tolist()
        passes = (
            self.planner.plan(lengths, loss_tokens, permutation(len(experience), self.seed, "rows", iteration, number))
            for number in range(self.ppo_epochs)
        )
        return list(chain.from_iterable(passes))

    def collate(self, rows: Rows, window: WindowTotals) -> ExperienceBatch:
        """Rows of the buffer as a micro-batch."""
        return self.experience.batch(rows, window)

    def val_dataloader(self) -> FixedLoader | list[Any]:
        """This rank's validation prompts; each prompt goes to exactly one rank."""
        return self._prompt_loader(self.val_prompts) if self.val_prompts else []

    def test_dataloader(self) -> FixedLoader:
        """The validation prompts again."""
        return self._prompt_loader(self.val_prompts)

    def predict_dataloader(self) -> FixedLoader:
        """This rank's prompts to answer."""
        return self._prompt_loader(self.predict_prompts)

    def _prompt_loader(self, prompts: list[Prompt]) -> FixedLoader:
        trainer = self.attached_trainer
        rank, ranks = data_parallel_rank(trainer), data_parallel_size(trainer)
        starts = range(0, len(prompts), self.val_batch_size)
        batches = [PromptBatch(prompts[start : start + self.val_batch_size][rank::ranks]) for start in starts]
        return FixedLoader(batches)

    def fingerprint(self) -> str:
        """Of the training prompts."""
        from roll_lightning.data.fingerprint import fingerprint_prompts

        if self._fingerprint is None:
            self._fingerprint = fingerprint_prompts(self.train_prompts)
        return self._fingerprint

    def _fixed_settings(self) -> dict[str, Any]:
        rollout = self.rollout
        return {
            **super()._fixed_settings(),
            "data.ppo_epochs": self.ppo_epochs,
            "rollout.prompts_per_iteration": rollout.prompts_per_iteration,
            "rollout.num_generations": rollout.num_generations,
            "the shares of data.domains": {name: domain.share for name, domain in self.domains.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Fixed settings, and the buffer when the run goes on with its iteration."""
        state = super().state_dict()
        position = resume_position(self.attached_trainer)
        if self._experience is not None and (position is None or position[0] == self._experience_iteration):
            state["experience"] = self._experience.state_dict()
            state["experience_iteration"] = self._experience_iteration
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that data and settings are those of the checkpoint, and take its buffer."""
        super().load_state_dict(state_dict)
        if "experience" in state_dict:
            self.set_experience(
                Experience.from_state_dict(state_dict["experience"]), int(state_dict["experience_iteration"])
            )
