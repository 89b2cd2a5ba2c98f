"""A cluster that this machine is no part of: jobs are sent there, and followed."""

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

RUNNING, DONE = "running", "done"
SENT_SCRIPT, SENT_RUN = "go_on.py", "run"
"""Of a call of `fit` that was sent: what runs there, and the folder beside it."""

Tell: TypeAlias = Callable[[int, int], None]
"""Is told how many bytes of how many have gone."""


def unheard(_gone: int, _all: int) -> None:
    """Nobody wants to know."""


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """A script that was submitted.

    Args:
        id: Date, name and random letters.
        state: "running", "done", "failed (3)", "stopped", or "lost" when the host
            does not know how it ended.
        script: Its name.
        arguments: That it was given.
        began: Seconds since 1970.
        log: Path on the head, of what it wrote; empty where only the job's own means
            reach it.
        pid: Of the shell that waits for it.
    """

    id: str
    state: str
    script: str
    arguments: tuple[str, ...] = ()
    began: float = 0.0
    log: str = ""
    pid: str = ""


class RemoteJobs(Protocol):
    """What is done with jobs on any such cluster."""

    @property
    def name(self) -> str:
        """Of the cluster, as `fit` takes it."""
        ...

    @property
    def head(self) -> str:
        """Where it is, in words."""
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
        """A job by its id, or the beginning of one."""
        ...

    def read(self, job: Job) -> Generator[bytes]:
        """What a job wrote, from its beginning; as long as it runs also what is new."""
        ...

    def fetch(self, job: Job, folder: str, target: Path) -> None:
        """Brings a folder of a job here, as an archive."""
        ...

    def settle(self, job: Job) -> None:
        """A job that is over was brought here: what nobody else needs may go."""
        ...

    def close(self) -> None:
        """Hangs up; whatever is asked next connects again."""
        ...


def new_id(script: Path) -> str:
    """Of a job."""
    day = time.strftime("%Y-%m-%d")
    return f"{day}-{slug(script.stem)}-{secrets.token_hex(3)}"


def pick(listed: Sequence[str], said: str, cluster: str) -> str:
    """The id that is meant.

    Args:
        listed: All there are.
        said: One, or the beginning of one.
        cluster: Its name, for messages.

    Raises:
        ConfigError: None is meant, or more than one.

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
