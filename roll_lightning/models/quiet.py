"""Keeps bars and reports of ``transformers`` out of the output; ours says what is loaded and written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Inside, ``transformers`` shows no progress bars; after, it does what it did before."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def no_load_report() -> Iterator[None]:
    """Inside, ``transformers`` does not list the weights that a model's files lack or have beside."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
