"""Jobs on a Ray cluster outside of this machine, by Ray Client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, final

from shoal.clusters.jobs import pack
from shoal.clusters.ray import CLIENT
from shoal.clusters.ray_joining import (
    first_line,
    import_ray,
    own_sigterm,
    ray_environment,
    reach,
)
from shoal.clusters.remote_jobs import RUNNING, Job, Tell, new_id, pick, unheard
from shoal.errors import ClusterError, ConfigError
from shoal.launchers.versions import difference, versions
from shoal.terminal import say

SPACE = "shoal"  # Ray's namespace of job actors
CHUNK = 1 << 22
LOOK_S = 0.3
CONNECT_S = 300.0  # limit for a connection; a call that fails may take 45 s
START_S = 60.0  # limit for the start of a job actor
INSTALL_S = 600.0  # the same, with requirements to install first
CALL_S = 60.0
PACK_S = 1800.0
HEAD = {"node:__internal_head__": 0.001}
"""A resource that only the head has: Ray never releases it as an idle node."""


@final
class RayJobs:
    """The jobs that were sent to a cluster; each has a job actor there.

    Args:
        cluster: A `shoal.clusters.Ray` with an address of Ray Client.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._address: str = cluster.address
        self._context: Any = None

    @property
    def name(self) -> str:
        """Returns the cluster's address."""
        return self._address

    @property
    def head(self) -> str:
        """Returns the address without its protocol."""
        return self._address.removeprefix(CLIENT)

    @property
    def runs(self) -> None:
        """Returns None: only the jobs themselves know a place."""

    # -------------------------------------------------------------- the jobs

    def submit(
        self,
        script: Path,
        arguments: Sequence[str],
        beside: Sequence[Path] = (),
        tell: Tell = unheard,
    ) -> str:
        """Starts a script on the head, with files beside it; returns the job's id.

        Raises:
            ClusterError: The cluster refuses.
        """
        payload, job = pack([script, *beside]), new_id(script)
        with self._connected(self._cluster.needs) as ray:
            kind = ray.remote(import_module("shoal.launchers.ray_job_actor").JobActor)
            job_actor = kind.options(
                name=job, namespace=SPACE, lifetime="detached", num_cpus=0,
                resources=HEAD, max_restarts=0,
            ).remote()  # fmt: skip
            try:
                self._send(ray, job_actor, payload, tell)
                self._begin(ray, job_actor, script.name, arguments)
            except BaseException:
                with suppress(Exception):
                    ray.get(job_actor.close.remote(), timeout=CALL_S)
                ray.kill(job_actor)
                raise
        return job

    def _send(self, ray: Any, job_actor: Any, payload: bytes, tell: Tell) -> None:
        backend = import_module("keras").backend.backend()
        limit_s = INSTALL_S if self._cluster.needs else START_S
        there = self._get(ray, job_actor.versions.remote(backend), limit_s)
        odd = difference(there, versions(backend, "ray"))
        if odd:
            raise ClusterError(
                f"the Ray cluster at {self.head} has {odd}. Expected the same versions "
                "there. Put them into its image, or install them here."
            )
        for offset in range(0, len(payload), CHUNK):
            part = payload[offset : offset + CHUNK]
            self._get(ray, job_actor.write.remote(offset, part), CALL_S)
            tell(offset + len(part), len(payload))

    def _begin(
        self, ray: Any, job_actor: Any, script: str, arguments: Sequence[str]
    ) -> None:
        variables = {
            "KERAS_BACKEND": import_module("keras").backend.backend(),
            "RAY_ADDRESS": self._inner(ray),
        }
        started = job_actor.start.remote(script, list(arguments), variables)
        self._get(ray, started, CALL_S)

    def _inner(self, ray: Any) -> str:
        """Returns the head's address for processes within the cluster."""
        return ray.get_runtime_context().gcs_address

    def find(self, said: str) -> Job:
        """Finds a job by its id, or the beginning of one.

        Raises:
            ConfigError: There is none, or more than one.
            ClusterError: The cluster cannot be asked.
        """
        with self._connected() as ray:
            listed = [
                actor["name"]
                for actor in ray.util.list_named_actors(all_namespaces=True)
                if actor["namespace"] == SPACE
            ]
            job = pick(listed, said, self.name)
            return self._look(ray, self._job_actor(ray, job), job)

    def read(self, job: Job) -> Generator[bytes]:
        """Yields the output of a job from its beginning, and follows it while it runs.

        Raises:
            ClusterError: The connection or the job actor is lost.
        """
        offset, is_over = 0, False
        with self._connected() as ray:
            job_actor = self._job_actor(ray, job.id)
            while True:
                data = self._get(ray, job_actor.read.remote(offset, CHUNK), CALL_S)
                offset += len(data)
                if data:
                    yield data
                elif is_over:
                    return
                else:
                    is_over = self._look(ray, job_actor, job.id).state != RUNNING
                    time.sleep(0.0 if is_over else LOOK_S)

    def fetch(self, job: Job, folder: str, target: Path) -> None:
        """Fetches a folder beside a job's script, as an archive.

        Raises:
            ClusterError: It cannot be fetched.
        """
        with self._connected() as ray, target.open("wb") as file:
            job_actor = self._job_actor(ray, job.id)
            size = self._get(ray, job_actor.pack.remote(folder), PACK_S)
            for offset in range(0, size, CHUNK):
                file.write(
                    self._get(ray, job_actor.packed.remote(offset, CHUNK), CALL_S)
                )

    def settle(self, job: Job) -> None:
        """Ends the job actor and removes its files, which were fetched before."""
        with suppress(ClusterError), self._connected() as ray:
            job_actor = self._job_actor(ray, job.id)
            self._get(ray, job_actor.close.remote(), CALL_S)
            ray.kill(job_actor)

    # ---------------------------------------------------------- job actors

    def _look(self, ray: Any, job_actor: Any, job: str) -> Job:
        state, script, arguments, began = self._get(
            ray, job_actor.state.remote(), CALL_S
        )
        return Job(
            id=job, state=state, script=script, arguments=tuple(arguments), began=began
        )

    def _job_actor(self, ray: Any, job: str) -> Any:
        try:
            return ray.get_actor(job, namespace=SPACE)
        except ValueError:
            raise ConfigError(
                f"there is no job {job} on the Ray cluster at {self.head} any more: it "
                "was fetched already, or its machine is lost. Expected one "
                "that runs, or that has not been fetched yet."
            ) from None

    def _get(self, ray: Any, call: Any, limit_s: float) -> Any:
        """Returns a job actor's answer.

        Raises:
            ClusterError: There was none, or an error.
        """
        try:
            return ray.get(call, timeout=limit_s)
        except (ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
            cause = getattr(error, "cause", None) or error
            raise ClusterError(
                f"the Ray cluster at {self.head} cannot run the job: "
                f"{first_line(cause)}. Expected a head that has Shoal and the same "
                "versions as this machine, and that stays up. See `ray status` there, "
                "and put Shoal into its image."
            ) from error

    @contextmanager
    def _connected(self, needs: Mapping[str, Any] | None = None) -> Generator[Any]:
        """Yields Ray with a connection of its own; the script's own one stays."""
        with ray_environment({}):
            ray = import_ray()
            if self._context is None:
                self._context = self._connect(ray, needs)
            try:
                with self._context:
                    yield ray
            except ConnectionError as error:
                self.close()
                raise ClusterError(
                    f"the connection to the Ray cluster at {self._address} is lost: "
                    f"{first_line(error)}. Expected it to last until "
                    "the job ends. The job goes on; fetch it later with shoal attach."
                ) from error

    def _connect(self, ray: Any, needs: Mapping[str, Any] | None) -> Any:
        """Connects: Ray starts a process for each on the head, so one is enough.

        That process may die at its start, because Ray forks it beside threads of gRPC
        (Ray's issue 63202). Ray tells that half a minute later. On a busy head this
        happened to three of five calls.
        """
        reach(self.head)
        until, has_told = time.monotonic() + CONNECT_S, False
        while True:
            try:
                return self._call(ray, needs)
            except ConnectionAbortedError as error:
                # A requirement that cannot be installed fails each time.
                is_lasting = "Failed to create runtime_env" in str(error)
                if is_lasting or time.monotonic() > until:
                    # The error ends with a traceback of the head's.
                    said = str(error).strip().rpartition("\n")[2]
                    raise self._refused(said.rstrip(".")) from error
            except (ConnectionError, RuntimeError, ValueError, TypeError) as error:
                raise self._refused(first_line(error)) from error
            if not has_told:
                has_told = True
                say(
                    f"the head at {self.head} did not start its process for this call; "
                    f"calling again, for up to {CONNECT_S:.0f} s ...",
                    err=True,
                )
            time.sleep(LOOK_S)

    def _call(self, ray: Any, needs: Mapping[str, Any] | None) -> Any:
        with own_sigterm(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ray.init(
                self._address, namespace=SPACE, allow_multiple=True,
                runtime_env=needs or None, log_to_driver=False, logging_level="ERROR",
            )  # fmt: skip

    def _refused(self, said: str) -> ClusterError:
        return ClusterError(
            f"this machine cannot join the Ray cluster at {self._address}: {said}. "
            "Expected Ray Client's port of its head, 10001 by itself, and the same "
            "versions of Ray and Python. Check with `ray status` there, correct the "
            "address, or start the head with GRPC_ENABLE_FORK_SUPPORT=0 in its "
            "environment, if it is busy and its process for a caller dies."
        )

    def close(self) -> None:
        """Disconnects; the next call connects again."""
        context, self._context = self._context, None
        if context is not None:
            with suppress(Exception):
                context.disconnect()
