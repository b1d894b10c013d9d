"""``roll-lightning``: one command line for training, evaluation and rollouts.

Nothing heavy is imported before a command is known to be well written, so help and simple faults show at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from roll_lightning import __version__
from roll_lightning.errors import ConfigError, RollLightningError

COMMANDS = {
    "fit": "train a model; --ckpt_path last goes on where a run stopped",
    "validate": "evaluate a model on the validation data",
    "test": "evaluate a model on the test data",
    "predict": "sample answers, score them, and write them to predictions.jsonl",
    "explain": "say what fit would train: steps, policies, objective, denominators; loads no model",
}
USAGE = """usage: roll-lightning COMMAND --config FILE [--config OVERLAY ...] [--key value ...]

commands:
{commands}

examples:
  roll-lightning fit --config configs/rlvr.yaml --rollout.num_generations 16 --trainer.max_epochs 3
  roll-lightning fit --config configs/rlvr.yaml --print_config
  roll-lightning explain --config configs/rlvr.yaml --config configs/recipes/gspo.yaml
  roll-lightning fit --help                   every key, with its default
  roll-lightning fit --model.help RLVRModule  the keys of a class
  roll-lightning --version
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what was typed after the program's name; ``None`` takes ``sys.argv``.

    Returns:
        The exit status: 0, 1 for a fault that the user can mend (one line on stderr), 130 after Ctrl-C.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if not typed or typed[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if typed[0] in ("-V", "--version"):
        print(f"roll-lightning {__version__}")
        return 0
    try:
        _run(typed[0], typed[1:])
    except RollLightningError as error:
        return _report(error)
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as stop:
        # Lightning turns Ctrl-C during a run into exit status 1.
        if isinstance(stop.__context__, KeyboardInterrupt):
            return _interrupted()
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def usage() -> str:
    """The help of the top level."""
    width = max(map(len, COMMANDS))
    return USAGE.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())).rstrip()


def _run(command: str, arguments: list[str]) -> None:
    from roll_lightning.commandline.arguments import parse_arguments
    from roll_lightning.commandline.suggest import nearest

    if command not in COMMANDS:
        found = nearest(command, COMMANDS, cutoff=0.5)
        raise ConfigError(
            f"unknown command {command}; "
            + (f"did you mean {found}?" if found else f"use one of {', '.join(COMMANDS)}")
        )
    invocation = parse_arguments(command, arguments)
    if not invocation.help_arguments:
        invocation.tree()
    # The user's own classes lie in the folder that the command is run in. Last, so that no file there hides a package.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    from roll_lightning.commandline.lightning_cli import run

    run(invocation)


def _report(error: RollLightningError) -> int:
    """Print an error as one line; with ROLL_LIGHTNING_TRACEBACK=1 its traceback first."""
    if os.environ.get("ROLL_LIGHTNING_TRACEBACK") == "1":
        traceback.print_exception(error)
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    who = "" if rank == "0" else f"[rank {rank}] "
    print(f"{who}error: {' '.join(str(error).split())}", file=sys.stderr)
    return 1


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


if __name__ == "__main__":
    sys.exit(main())
