"""One request from standard input, one line as the answer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]
Verb = Callable[[Fields], Fields]
SIGN = "SHOAL: "  # prefix of the answer: a shell's startup files may print, too
TAIL = 12  # lines that an error shows


class UserError(Exception):
    """An error that the user can correct, in words."""


def answer(verbs: dict[str, Verb]) -> None:
    """Answers one request with one of these verbs."""
    request = json.loads(sys.stdin.buffer.readline())
    try:
        told = verbs[request.pop("verb")](request)
    except UserError as refused:
        told = {"refused": str(refused)}
    except Exception:
        told = {"refused": "; ".join(traceback.format_exc().splitlines()[-3:])}
    tell(told)


def tell(told: Fields) -> None:
    """Writes a line to the caller."""
    sys.stdout.write("\n" + SIGN + json.dumps(told) + "\n")
    sys.stdout.flush()


def run(words: list[str], until: float, **more: Any) -> None:
    """Runs a command; on failure reports the end of its output."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
            timeout=max(1.0, until - time.monotonic()), **more,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        why, said = "was not done in its time", tail(error.stdout)
    else:
        why, said = f"ended with status {done.returncode}", tail(done.stdout)
        if not done.returncode:
            return
    last = said.splitlines()[-1:] or ["it wrote nothing"]
    raise UserError(f"`{' '.join(words[:4])} ...` {why}: {last[0]}\n{said}")


def tail(said: Any) -> str:
    """Returns the last lines of a command's output."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-TAIL:])
