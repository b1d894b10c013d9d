"""LightningCLI with our groups, defaults and checks."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from roll_lightning import __version__
from roll_lightning.callbacks.checkpoint import newest_checkpoint
from roll_lightning.callbacks.predictions import PredictionWriter
from roll_lightning.callbacks.progress_lines import ProgressLines
from roll_lightning.callbacks.rollout import RolloutCallback
from roll_lightning.callbacks.weight_sync import WeightSyncCallback
from roll_lightning.commandline.arguments import Invocation
from roll_lightning.commandline.classes import import_known_classes
from roll_lightning.commandline.files import dump_yaml
from roll_lightning.commandline.quiet import no_remarks, silence_known_warnings
from roll_lightning.commandline.saved_config import SavedConfig
from roll_lightning.commandline.schema import CALLBACK_GROUPS, resolve_tree
from roll_lightning.commandline.secrets import without_secrets
from roll_lightning.commandline.suggest import nearest
from roll_lightning.commandline.tree import Tree
from roll_lightning.errors import CheckpointError, ConfigError, RollLightningError
from roll_lightning.explain.command import explain


def run(invocation: Invocation) -> None:
    """Run a command.

    Raises:
        RollLightningError: anything that the user can mend.
    """
    silence_known_warnings()
    if invocation.help_arguments:
        import_known_classes()
        RollCLI(invocation, {name: {} for name in CALLBACK_GROUPS})
    explains = invocation.command == "explain" and not invocation.print_config
    with no_remarks() if explains else nullcontext():
        cli = RollCLI(invocation, resolve_tree(invocation.tree()))
    cli.run()


class RollCLI(LightningCLI):
    """Parses a resolved tree, makes trainer, model and data of it, and runs a command.

    Args:
        invocation: the command, and what it is asked to print.
        tree: resolved by :func:`~roll_lightning.commandline.schema.resolve_tree`.
    """

    def __init__(self, invocation: Invocation, tree: Tree) -> None:
        self.invocation = invocation
        self.tree = tree
        super().__init__(
            run=False,
            args=tree,
            save_config_callback=None,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            trainer_defaults={
                "use_distributed_sampler": False,
                "log_every_n_steps": 1,
                "default_root_dir": default_root_dir(invocation),
            },
            parser_kwargs={
                "exit_on_error": False,
                "prog": f"roll-lightning {invocation.command}",
                "description": "Later --config files lie over earlier ones, arguments over files; +=value appends.",
            },
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the groups that this config has, and where to load a checkpoint from."""
        for name, cls in CALLBACK_GROUPS.items():
            group = self.tree.get(name)
            if group is not None:
                parser.add_lightning_class_args(cls, name, subclass_mode="class_path" in group)
        parser.add_argument(
            "--ckpt_path", type=str | None, default=None, help="a checkpoint, or last: the newest whole one"
        )
        parser.add_argument(
            "--weights_only", type=bool | None, default=None, help="false unpickles what torch would refuse"
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Let jsonargparse fill in defaults and convert types; print help or config where that is asked for."""
        asked = self.invocation.help_arguments
        try:
            if asked:
                parser.parse_args(asked)
        except ArgumentError as error:
            every = f"roll-lightning {self.invocation.command} --help"
            raise ConfigError(f"no help for {' '.join(asked)}: {error}; {every} lists every key") from error
        try:
            self.config = parser.parse_object({key: value for key, value in args.items() if value is not None})
        except ArgumentError as error:
            raise ConfigError(f"the config does not fit: {error}") from error
        dumped = json.loads(parser.dump(self.config, format="json", skip_none=False, skip_validation=True))
        dumped = _with_strings(dumped, self.config.as_dict())
        # A group that a run has by default and this one has not was turned off; it must stay off when read again.
        disabled = {name: None for name in CALLBACK_GROUPS if name != "rollout" and self.tree.get(name) is None}
        self.config_dump = without_secrets(dumped | disabled)
        if self.invocation.print_config:
            print(dump_yaml(self.config_dump), end="")
            sys.exit(0)
        self.checkpoint = self._checkpoint()

    def instantiate_classes(self) -> None:
        """Build model, data, callbacks and trainer.

        Raises:
            Exception: the one that a class raised; jsonargparse buries it under a remark on types.
        """
        try:
            super().instantiate_classes()
        except (ValueError, TypeError) as error:
            origin = _origin(error)
            if origin is error:
                raise
            raise origin from None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with our callbacks beside the user's."""
        config = self.config_init["trainer"]
        users = config["callbacks"] or []
        users = users if isinstance(users, list) else [users]
        self._refuse_twice(users)
        callbacks = [*users, *self._callbacks()]
        if self.config_init["trainer"]["logger"] in (None, True):
            kwargs["logger"] = self._logger(config["default_root_dir"])
        if self._prints_lines():
            kwargs["enable_progress_bar"] = False
        try:
            return super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except (MisconfigurationException, ValueError) as error:
            missing = self.invocation.command == "explain" and "accelerator is not available" in str(error)
            way_out = " To explain the config on this machine, add --trainer.accelerator cpu" if missing else ""
            raise ConfigError(f"trainer: {error}{way_out}") from error

    def _refuse_twice(self, users: list[Callback]) -> None:
        """Lightning's own words on two callbacks of one type do not say where they came from."""
        for name, cls in CALLBACK_GROUPS.items():
            if self.tree.get(name) is not None and any(isinstance(callback, cls) for callback in users):
                raise ConfigError(
                    f"there are a {name} group and a {cls.__name__} in trainer.callbacks; remove the latter (or set "
                    f"{name}: null)"
                )

    def _logger(self, root: str) -> TensorBoardLogger | bool:
        """TensorBoard in one folder, so that a resumed run goes on in it; for training only."""
        if self.invocation.command != "fit":
            return False
        return TensorBoardLogger(save_dir=str(Path(root) / "tensorboard"), name="", version="")

    def _callbacks(self) -> list[Callback]:
        """Those that no group holds; the trainer gets the groups' by itself."""
        header = f"# roll-lightning {__version__}: resolved config of {self.invocation.command}, secrets left out\n"
        callbacks: list[Callback] = [SavedConfig(header + dump_yaml(self.config_dump))]
        if self.tree.get("rollout") is not None:
            callbacks.append(WeightSyncCallback())
        if self._prints_lines():
            callbacks.append(ProgressLines())
        return callbacks

    def _prints_lines(self) -> bool:
        """Whether progress goes to a file or pipe, where a bar would show nothing, and no bar was asked for."""
        config = self.config_init["trainer"]
        users = any(isinstance(callback, ProgressBar) for callback in config["callbacks"] or [])
        return config["enable_progress_bar"] is None and not users and not sys.stdout.isatty()

    def run(self) -> None:
        """Run the command.

        Raises:
            RollLightningError: anything that the user can mend.
        """
        command, trainer = self.invocation.command, self.trainer
        if command == "explain":
            print(explain(trainer, self.model, self.datamodule))
            return
        arguments: dict[str, Any] = {
            "ckpt_path": self.checkpoint,
            "weights_only": self.config["weights_only"],
            "datamodule": self.datamodule,
        }
        if command == "predict":
            self._predict(arguments)
        else:
            getattr(trainer, command)(self.model, **arguments)

    def _predict(self, arguments: dict[str, Any]) -> None:
        trainer = self.trainer
        rolls_out = any(isinstance(callback, RolloutCallback) for callback in trainer.callbacks)
        others = any(isinstance(callback, BasePredictionWriter) for callback in trainer.callbacks)
        if not (rolls_out or others):
            raise ConfigError(
                "predict writes rollouts; add a rollout group, or your own BasePredictionWriter to trainer.callbacks"
            )
        writer = PredictionWriter()
        if rolls_out:
            trainer.callbacks.append(writer)
        trainer.predict(self.model, return_predictions=False, **arguments)
        if rolls_out and trainer.is_global_zero:
            print(f"Wrote {writer.written} rollouts to {writer.file(trainer)}")

    def _checkpoint(self) -> str | None:
        """The checkpoint to load. For ``last``, training starts from the beginning where there is none yet.

        Raises:
            CheckpointError: it is not there.
        """
        asked = self.config["ckpt_path"]
        if asked is None or "://" in asked or asked == "hpc" or asked.startswith("registry"):
            return asked
        if asked == "last":
            return self._newest()
        path = Path(asked)
        if not path.exists():
            names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            found = nearest(path.name, names)
            way_out = f"did you mean {path.parent / found}?" if found else "give a checkpoint, or last"
            raise CheckpointError(f"ckpt_path {asked} does not exist; {way_out}")
        return asked

    def _newest(self) -> str | None:
        group: Tree = self.tree.get("checkpoint") or {}
        dirpath = group.get("init_args", group).get("dirpath")
        folder = Path(dirpath or Path(self.config["trainer"]["default_root_dir"]) / "checkpoints")
        if self.invocation.command in ("fit", "explain") or any(folder.glob("*.ckpt*")):
            newest = newest_checkpoint(folder)
            return str(newest) if newest else None
        raise CheckpointError(f"there is no checkpoint in {folder}; give --ckpt_path FILE, or drop it")


def _origin(error: BaseException) -> BaseException:
    """What the user's or our class raised first."""
    while error.__cause__ is not None and not isinstance(error, RollLightningError):
        error = error.__cause__
    return error


def _with_strings(dumped: Any, config: Any) -> Any:
    """Undo what jsonargparse does to strings inside classes that look like numbers, e.g. a revision ``12e5``."""
    if isinstance(dumped, dict) and isinstance(config, dict):
        return {key: _with_strings(value, config.get(key, value)) for key, value in dumped.items()}
    if isinstance(dumped, list) and isinstance(config, list | tuple):
        return [_with_strings(*pair) for pair in zip(dumped, config, strict=True)]
    return config if isinstance(config, str) else dumped


def default_root_dir(invocation: Invocation) -> str:
    """The folder of a run that names none: ``runs/`` and the name of its first config file."""
    return f"runs/{Path(invocation.files[0]).stem if invocation.files else 'default'}"
