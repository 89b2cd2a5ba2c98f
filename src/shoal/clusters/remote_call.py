"""Calls to a host: one connection of ssh, one request, one answer, within a limit."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, cast, final

from shoal.clusters.remote_jobs import Tell, unheard
from shoal.clusters.ssh import Way, over
from shoal.errors import ClusterError

AGENT = Path(__file__).with_name("host_agent")
PARTS = ("answering", "processes", "environments", "nodes", "probing", "jobs")
BOOT = (
    "import sys;sys.path=[p for p in sys.path if p];r=sys.stdin.buffer;"
    "exec(compile(r.read(int(r.readline())),'shoal','exec'),{'__name__':'shoal_there'})"
)
"""Standard input begins with the program; files of the home directory are ignored."""
FIRST = """cd
for p; do command -v "$p" >/dev/null && exec "$p" -c "$BOOT"; done
exit 127"""
ABSENT, SSH_FAILED = 127, 255
END_S = 5.0  # limit for ssh to end by itself
PART_BYTES = 1 << 20  # of a payload, between two progress reports


@cache
def program() -> str:
    """Returns the program for a host: the files of `host_agent` as one."""
    lines = ["from __future__ import annotations"]
    for part in PARTS:
        text = (AGENT / f"{part}.py").read_text()
        own = re.sub(r"from shoal\.\S+ import (\([^)]*\)|.*)\n", "", text)
        lines.append(own.replace("from __future__ import annotations\n", ""))
    return "\n".join(lines)


def text_for(verb: str) -> str:
    """Returns the program for a host, and a call of one of its verbs."""
    return f"{program()}\nanswer({{{verb!r}: {verb}}})\n"


def command_of(way: Way, pythons: Sequence[str]) -> list[str]:
    """Returns words that run standard input with the first existing python."""
    words = ["env", f"BOOT={BOOT}", "sh", "-c", FIRST, "sh", *pythons]
    return over(way.words, words)


def message_of(verb: str, request: Mapping[str, Any]) -> bytes:
    """Returns the bytes for standard input there."""
    text = text_for(verb).encode()
    asked = json.dumps({**request, "verb": verb}).encode()
    return b"%d\n%b%b\n" % (len(text), text, asked)


def ask(
    way: Way,
    pythons: Sequence[str],
    verb: str,
    request: Mapping[str, Any],
    *,
    limit_s: float,
    payload: bytes = b"",
    tell: Tell = unheard,
) -> dict[str, Any]:
    """Returns a host's answer.

    Args:
        way: Way to the host.
        pythons: Interpreters there; the first existing one is used.
        verb: A function of `host_agent`.
        request: Its argument.
        limit_s: Limit in seconds.
        payload: Bytes that follow.
        tell: Called with the number of bytes sent.

    Raises:
        ClusterError: The host cannot be reached, is too slow, or refuses; in a few
            words.
    """
    until = time.monotonic() + limit_s
    try:
        ssh = subprocess.Popen(
            command_of(way, pythons),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise ClusterError(f"ssh cannot be run: {error}") from None
    limit = threading.Timer(limit_s, ssh.kill)
    with ssh, _ended(ssh, limit):
        _write_parts(ssh, message_of(verb, request), payload, tell)
        out, err = ssh.communicate()
    if ssh.returncode < 0 and time.monotonic() >= until:
        raise ClusterError(f"{verb}: no answer within {limit_s:g} s")
    return answer_in(out, ssh.returncode, err, pythons)


@contextmanager
def _ended(ssh: subprocess.Popen[bytes], limit: threading.Timer) -> Generator[None]:
    """Ends ssh at the limit, and when the waiting caller is interrupted."""
    limit.daemon = True
    limit.start()
    try:
        yield
    except BaseException:
        ssh.kill()
        raise
    finally:
        limit.cancel()


def _write_parts(
    ssh: subprocess.Popen[bytes], message: bytes, payload: bytes, tell: Tell
) -> None:
    """Writes a request and its payload; a closed connection reports its own reason."""
    if ssh.stdin is None:
        raise RuntimeError("a request without a pipe")
    with suppress(BrokenPipeError):
        ssh.stdin.write(message)
        for start in range(0, len(payload), PART_BYTES):
            part = memoryview(payload)[start : start + PART_BYTES]
            ssh.stdin.write(part)
            tell(start + len(part), len(payload))


def answer_in(
    said: bytes, code: int, complaint: bytes, pythons: Sequence[str]
) -> dict[str, Any]:
    r"""Finds the answer in a host's output.

    Raises:
        ClusterError: There is none, or it is a refusal.

    Example:
        >>> answer_in(b'welcome!\nSHOAL: {"port": 1}\n', 0, b"", [])
        {'port': 1}
    """
    found = re.findall(rb"^SHOAL: (.*)$", said, re.MULTILINE)
    if found:
        try:
            answer: Any = json.loads(found[-1])
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ClusterError("its answer does not come from Shoal")
        answer = cast("dict[str, Any]", answer)
        if "refused" in answer:
            raise ClusterError(str(answer["refused"]))
        return answer
    raise failure(code, complaint, pythons)


def failure(code: int | None, complaint: bytes, pythons: Sequence[str]) -> ClusterError:
    """Returns why a host gave no answer, in a few words."""
    lines = complaint.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"status {code}"
    if code == ABSENT:
        return ClusterError(f"it has no {' or '.join(pythons)}")
    if code == SSH_FAILED:
        return ClusterError(f"not reached: {last}")
    return ClusterError(f"it did not answer: {last}")


@final
class RemoteCall:
    """A request with several answers; closed at the end of its `with`.

    Args: Those of `ask`; the limit is for the whole exchange.
    """

    def __init__(
        self,
        way: Way,
        pythons: Sequence[str],
        verb: str,
        request: Mapping[str, Any],
        *,
        limit_s: float,
    ) -> None:
        self._pythons = pythons
        self._ssh = subprocess.Popen(
            command_of(way, pythons),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._limit = threading.Timer(limit_s, self._ssh.kill)
        self._limit.daemon = True
        self._limit.start()
        self._write(message_of(verb, request))

    def say(self, told: Mapping[str, Any]) -> None:
        """Sends a line."""
        self._write(json.dumps(told).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """Waits for the next answer.

        Raises:
            ClusterError: There is none, or it is a refusal; in a few words.
        """
        out, err = self._ssh.stdout, self._ssh.stderr
        if out is None or err is None:
            raise RuntimeError("a call without pipes")
        for line in out:
            if line.startswith(b"SHOAL: "):
                return answer_in(line, 0, b"", self._pythons)
        self._ssh.wait()
        raise failure(self._ssh.returncode, err.read(), self._pythons)

    def close(self) -> None:
        """Ends the call; the host sees the end of its input."""
        for pipe in (self._ssh.stdin, self._ssh.stdout, self._ssh.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._ssh.wait(END_S)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        self._limit.cancel()
        self._limit.join()

    def _write(self, text: bytes) -> None:
        if self._ssh.stdin is not None:
            with suppress(OSError):  # the pipe may be closed; the answer tells why
                self._ssh.stdin.write(text)
                self._ssh.stdin.flush()
