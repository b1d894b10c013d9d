"""The errors that a user can mend. The CLI prints each as one line and exits with status 1.

A message names the key, row or folder, the value that was found, and the way out.
"""


class RollLightningError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(RollLightningError, ValueError):
    """A setting is wrong, or two settings contradict each other. Raised before a model loads where possible."""


class DataError(RollLightningError, ValueError):
    """A file, row or column of the user's data is wrong."""


class RewardError(RollLightningError, RuntimeError):
    """A reward raised, ran past its deadline, or returned something that is not a list of results."""


class EngineError(RollLightningError, RuntimeError):
    """An engine could not generate, or answered with something impossible (a positive log-probability, say)."""


class CheckpointError(RollLightningError, RuntimeError):
    """A checkpoint is incomplete, or does not belong to this run."""
