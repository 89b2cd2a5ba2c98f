"""Scripts that run on the head of a cluster, without a connection from here."""

from __future__ import annotations

import io
import shlex
import subprocess
import tarfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, final

from shoal.clusters.cluster_state import ClusterState
from shoal.clusters.remote_call import ask
from shoal.clusters.remote_jobs import (
    RUNNING,
    SENT_RUN,
    SENT_SCRIPT,
    Job,
    Tell,
    new_id,
    pick,
    unheard,
    url_of,
)
from shoal.clusters.ssh import over
from shoal.errors import ClusterError, ConfigError

ASK_LIMIT_S = 60.0
SEND_LIMIT_S = 1800.0
FETCH_LIMIT_S = 1800.0
CHUNK = 1 << 16


@final
class Jobs:
    """The jobs of a cluster.

    Args:
        state: State of the cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    @property
    def name(self) -> str:
        """Returns the name of the cluster."""
        return self._state.name

    @property
    def head(self) -> str:
        """Returns the address of its head."""
        return self._state.head.address

    @property
    def runs(self) -> str | None:
        """Returns the folder or URL of the runs of its jobs."""
        return self._state.runs

    def submit(
        self,
        script: Path,
        arguments: Sequence[str],
        beside: Sequence[Path] = (),
        tell: Tell = unheard,
    ) -> str:
        """Starts a script on the head; returns its id once it runs.

        Args:
            script: A local file.
            arguments: Arguments of the script.
            beside: Files and folders to send along with it.
            tell: Called with the number of bytes sent.

        Raises:
            ConfigError: A file does not exist, or two have one name.
            ClusterError: The head refuses.
        """
        payload = pack([script, *beside])
        job = new_id(script)
        request = {
            "id": job, "size": len(payload), "script": script.name,
            "arguments": list(arguments), "address": self._state.address,
            "mark": self._state.mark_of(self._state.head),
            "runs": self._state.runs,
            "variables": {"KERAS_BACKEND": self._state.backend, "SHOAL_CLUSTER": "ray"},
        }  # fmt: skip
        self._ask("submit", request, limit_s=SEND_LIMIT_S, payload=payload, tell=tell)
        return job

    def list(self) -> list[Job]:
        """Returns all jobs, newest first."""
        found = self._ask("jobs", {})["jobs"]
        return [
            Job(
                id=one["id"], state=one["state"], script=one["script"],
                arguments=tuple(one["arguments"]), began=one["began"], log=one["log"],
                pid=one["pid"],
            )
            for one in found
        ]  # fmt: skip

    def find(self, said: str) -> Job:
        """Finds a job by its id, or the beginning of one.

        Raises:
            ConfigError: There is none, or more than one.
        """
        listed = {job.id: job for job in self.list()}
        return listed[pick([*listed], said, self._state.name)]

    def stop(self, job: Job, *, grace_s: float) -> int:
        """Ends a job; returns the number of its processes, 0 if it had ended.

        Args:
            job: Job to end.
            grace_s: Seconds between SIGTERM and SIGKILL.
        """
        request = {"id": job.id, "grace_s": grace_s}
        limit_s = ASK_LIMIT_S + grace_s
        return self._ask("stop_job", request, limit_s=limit_s)["ended"]

    def remove(self, job: Job) -> None:
        """Removes a job's folder, with its log and its own runs.

        Raises:
            ClusterError: It is running.
        """
        self._ask("remove_job", {"id": job.id})

    def words_for_log(self, job: Job, *, follow: bool) -> list[str]:
        """Returns the command that prints a job's output, or follows it to its end."""
        more = ["-f", f"--pid={job.pid}"] if follow and job.state == RUNNING else []
        words = ["tail", "-c", "+1", *more, job.log]
        return over(self._state.way_to(self._state.head).words, words)

    def read(self, job: Job) -> Generator[bytes]:
        """Yields a job's output from its beginning, and follows it while it runs."""
        words = self.words_for_log(job, follow=True)
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as tail:
            pipe = tail.stdout
            try:
                while pipe is not None and (data := pipe.read1(CHUNK)):  # pyright: ignore[reportAttributeAccessIssue]
                    yield data
            finally:
                tail.kill()  # a reader may leave before the job is over

    def fetch(self, job: Job, folder: str, target: Path) -> None:
        """Fetches a folder beside a job's script, as an archive.

        Raises:
            ClusterError: It cannot be fetched.
        """
        files = str(Path(job.log).parent / "files")
        words = ["tar", "-C", files, "-cz", folder]
        with target.open("wb") as file:
            done = subprocess.run(
                over(self._state.way_to(self._state.head).words, words),
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE,
                check=False, timeout=FETCH_LIMIT_S,
            )  # fmt: skip
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ClusterError(
                f"the run of job {job.id} could not be brought here: {said}. "
                f"Expected the folder {files} on {self.head}. "
                f"Try again: shoal attach {job.id} --cluster {self.name}"
            )

    def run_of(self, said: str) -> tuple[str, str | None]:
        """Returns the run's id for `shoal runs` on the head, and its folder of runs.

        The run of a `fit` that was sent is at a URL, or beside its log until it is
        fetched; runs of scripts are where those of the cluster are.

        Args:
            said: Id of a run or of such a job, or the beginning of one.
        """
        sent = [
            job
            for job in self.list()
            if job.script == SENT_SCRIPT and job.id.startswith(said)
        ]
        if len(sent) == 1 and (url := url_of(sent[0])):
            return url, None
        if len(sent) == 1:
            return str(Path(sent[0].log).parent / "files" / SENT_RUN), None
        return said, self.runs

    def settle(self, job: Job) -> None:
        """Does nothing: the job stays until it is removed, for other users to see."""

    def close(self) -> None:
        """Does nothing: each request has a connection of its own."""

    def _ask(
        self,
        verb: str,
        request: dict[str, Any],
        *,
        limit_s: float = ASK_LIMIT_S,
        payload: bytes = b"",
        tell: Tell = unheard,
    ) -> dict[str, Any]:
        head = self._state.head
        told = {**request, "shared": self._state.shared}
        way = self._state.way_to(head)
        return ask(
            way, [head.python], verb, told, limit_s=limit_s, payload=payload, tell=tell
        )


def pack(paths: Sequence[Path]) -> bytes:
    """Packs files and folders into an archive, side by side.

    Raises:
        ConfigError: A file does not exist, or two have one name.
    """
    names = [path.resolve().name for path in paths]
    twice = {name for name in names if names.count(name) > 1}
    absent = [str(path) for path in paths if not path.exists()]
    if absent or twice or not paths[0].is_file():
        what = f"{absent[0]} is not there" if absent else f"{paths[0]} is no file"
        if twice:
            what = f"two are called {', '.join(sorted(twice))}"
        raise ConfigError(
            f"these cannot be submitted: {shlex.join(map(str, paths))}: {what}. "
            "Expected a script, and files or folders of other names. Correct the paths."
        )
    held = io.BytesIO()
    # Most large content is numbers: better compression takes long, and gains little.
    with tarfile.open(fileobj=held, mode="w:gz", compresslevel=1) as archive:
        for path, name in zip(paths, names, strict=True):
            archive.add(path.resolve(), name, filter=_without_caches)
    return held.getvalue()


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    is_cache = Path(entry.name).name in ("__pycache__", ".git", ".venv")
    return None if is_cache else entry
