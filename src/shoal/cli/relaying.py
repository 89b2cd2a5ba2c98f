"""Programs whose output becomes that of a command; it may come from another host."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence

from shoal.terminal import relay


def run_and_relay(words: Sequence[str]) -> int:
    """Runs a program without input, and prints its output; returns its status.

    Args:
        words: Words of the command.
    """
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as program:
        out, err = program.stdout, program.stderr
        if out is None or err is None:
            raise RuntimeError("a program without pipes")
        other = threading.Thread(target=relay, args=(err,), kwargs={"err": True})
        other.start()
        try:
            relay(out)
            return program.wait()
        except BaseException:
            program.kill()
            raise
        finally:
            other.join()
