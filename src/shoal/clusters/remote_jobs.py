"""A cluster outside of this machine: jobs are sent there, and followed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, final

from shoal.errors import ConfigError
from shoal.registry import did_you_mean
from shoal.runs.claim import slug
from shoal.runs.folder import SCHEME

RUNNING, DONE = "running", "done"
SENT_SCRIPT, SENT_RUN = "shoal_fit.py", "run"
"""Names in the job of a sent `fit`: its script, and the folder beside it."""

Tell: TypeAlias = Callable[[int, int], None]
"""Called with the number of bytes sent, and the total."""


def unheard(_gone: int, _all: int) -> None:
    """Ignores progress."""


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """A script that was submitted.

    Args:
        id: Date, name and random letters.
        state: "running", "done", "failed (3)", "stopped", or "lost" if the host
            does not know its end.
        script: Name of the script.
        arguments: Arguments of the script.
        began: Seconds since 1970.
        log: Path of its output on the head; empty if only the job's own methods
            can read it.
        pid: Id of the shell that waits for it.
    """

    id: str
    state: str
    script: str
    arguments: tuple[str, ...] = ()
    began: float = 0.0
    log: str = ""
    pid: str = ""


class RemoteJobs(Protocol):
    """Methods for jobs on any such cluster."""

    @property
    def name(self) -> str:
        """Returns the cluster's name for `fit`."""
        ...

    @property
    def head(self) -> str:
        """Returns its address, in words."""
        ...

    @property
    def runs(self) -> str | None:
        """Returns the folder or URL of its runs; None for that of each job."""
        ...

    def submit(
        self,
        script: Path,
        arguments: Sequence[str],
        beside: Sequence[Path] = (),
        tell: Tell = unheard,
    ) -> str:
        """Starts a script there, with files beside it; returns the job's id."""
        ...

    def find(self, said: str) -> Job:
        """Finds a job by its id, or the beginning of one."""
        ...

    def read(self, job: Job) -> Generator[bytes]:
        """Yields a job's output from its beginning, and follows it while it runs."""
        ...

    def fetch(self, job: Job, folder: str, target: Path) -> None:
        """Fetches a folder of a job, as an archive."""
        ...

    def settle(self, job: Job) -> None:
        """Cleans up after a job that has ended and was fetched."""
        ...

    def close(self) -> None:
        """Disconnects; the next request connects again."""
        ...


def url_of(job: Job) -> str | None:
    """Returns the URL of the run of a sent `fit`; None if it is in the job's folder.

    Example:
        >>> place = ("s3://bucket/runs/2026-11-26-higgs-a3f",)
        >>> url_of(Job(id="a", state=DONE, script=SENT_SCRIPT, arguments=place))
        's3://bucket/runs/2026-11-26-higgs-a3f'
        >>> url_of(Job(id="b", state=DONE, script=SENT_SCRIPT))
    """
    is_sent = job.script == SENT_SCRIPT and len(job.arguments) == 1
    return job.arguments[0] if is_sent and SCHEME in job.arguments[0] else None


def new_id(script: Path) -> str:
    """Returns a new job id."""
    day = time.strftime("%Y-%m-%d")
    return f"{day}-{slug(script.stem)}-{secrets.token_hex(3)}"


def pick(listed: Sequence[str], said: str, cluster: str) -> str:
    """Returns the id that is meant.

    Args:
        listed: All ids.
        said: An id, or the beginning of one.
        cluster: Name of the cluster, for messages.

    Raises:
        ConfigError: There is none, or more than one.

    Example:
        >>> pick(["2026-11-23-go-a3", "2026-11-24-go-b7"], "2026-11-24", "lab")
        '2026-11-24-go-b7'
    """
    found = [one for one in listed if one.startswith(said)]
    if said in found:
        return said
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{said!r} is the beginning of several jobs: {', '.join(found)}. Expected "
            "one. Write more of it."
        )
    raise ConfigError(
        f"{did_you_mean('job', said, listed)} Expected one of the cluster {cluster}. "
        f"See `shoal jobs --cluster {cluster}`."
    )
