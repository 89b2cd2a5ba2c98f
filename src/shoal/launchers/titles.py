"""What processes of a run are called by `ps`, `top` and `nvidia-smi`."""

from __future__ import annotations

import os
import threading
from importlib import import_module

_KEEPS_ENVIRONMENT = "SPT_NOENV"


def title(part: str, run: str = "") -> None:
    """Gives this process a title, such as "shoal: 2026-11-25-higgs-a3f worker 1".

    Args:
        part: What it does, such as "worker-1".
        run: Id of the run it does that for, empty where it is not known yet.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # a test or a simulation has workers in threads: the process is theirs
    name, dash, number = part.rpartition("-")
    words = f"{name} {number}" if dash and number.isdigit() else part
    text = f"shoal: {run} {words}" if run else f"shoal: {words}"
    # A title needs room: that of the arguments is enough, and others may want to read
    # the environment of a process.
    before = os.environ.get(_KEEPS_ENVIRONMENT)
    os.environ[_KEEPS_ENVIRONMENT] = "1"
    try:
        import_module("setproctitle").setproctitle(text)
    except ImportError:  # a title is not worth a run
        pass
    finally:
        if before is None:
            del os.environ[_KEEPS_ENVIRONMENT]
