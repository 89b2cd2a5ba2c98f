"""Titles of a run's processes in `ps`, `top` and `nvidia-smi`."""

from __future__ import annotations

import os
import threading
from importlib import import_module

_KEEPS_ENVIRONMENT = "SPT_NOENV"


def title(part: str, run: str = "") -> None:
    """Gives this process a title, such as "shoal: 2026-11-25-higgs-a3f worker 1".

    Args:
        part: Role of the process, such as "worker-1".
        run: Id of the run, empty if it is not known yet.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # a test or a simulation runs workers in threads of its own process
    name, dash, number = part.rpartition("-")
    words = f"{name} {number}" if dash and number.isdigit() else part
    text = f"shoal: {run} {words}" if run else f"shoal: {words}"
    # A title overwrites the arguments, whose space is enough: other programs may
    # want to read the environment.
    before = os.environ.get(_KEEPS_ENVIRONMENT)
    os.environ[_KEEPS_ENVIRONMENT] = "1"
    try:
        import_module("setproctitle").setproctitle(text)
    except ImportError:  # without the package there are no titles
        pass
    finally:
        if before is None:
            del os.environ[_KEEPS_ENVIRONMENT]
