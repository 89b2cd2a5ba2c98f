"""Errors of a JVM in a sentence: the reason, without the frames of Java and Python."""

from __future__ import annotations

import re

_PLACE = re.compile(r"\(TID \d+\) \((\S+) executor (\S+)\)")


def cause(text: str) -> str:
    r"""Returns the reason of a failed job, without the frames of Java and Python.

    Example:
        >>> cause('''Job aborted: Lost task 0.0: Traceback (most recent call last):
        ...   File "worker.py", line 1, in main
        ... ValueError: no room
        ...     at org.apache.spark.api.python.Runner.run(Runner.scala:7)''')
        'ValueError: no room'
        >>> cause("[SPARK_JOB_CANCELLED] Job 3 cancelled\n\tat x.y(z)")
        '[SPARK_JOB_CANCELLED] Job 3 cancelled'
    """
    place = _PLACE.search(text)
    where = f" (executor {place[2]} on {place[1]})" if place else ""
    lines = [line for line in text.splitlines() if line.strip()]
    found = lines[0].strip() if lines else ""
    for number, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            found = _last_of_traceback(lines[number + 1 :]) or found
            break
        if line.startswith("Caused by: "):
            found = line.removeprefix("Caused by: ").strip()
    return found + where


def _last_of_traceback(lines: list[str]) -> str:
    """Returns the line of a traceback that names the error."""
    for line in lines:
        if not line.startswith((" ", "\t")):
            return line.strip()
    return ""
