"""Trains on a cluster from outside of it: a job is sent to its head, and followed.

The run is made here with all its inputs and is trained there like a resumed run, by
a job. At a URL both sides use the same run. Otherwise its folder goes to the head
with the job, and is copied back when that has ended. The user may disconnect and attach
again.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, final

from shoal.clusters.base import Cluster
from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.finding import find_cluster, is_known_elsewhere
from shoal.clusters.jobs import Jobs
from shoal.clusters.refreshing import refreshed
from shoal.clusters.remote_jobs import (
    DONE,
    RUNNING,
    SENT_RUN,
    SENT_SCRIPT,
    Job,
    RemoteJobs,
    url_of,
)
from shoal.clusters.yarn import Yarn
from shoal.data import ArraySource
from shoal.errors import ClusterError, ConfigError, PlanError
from shoal.host.private import make_private, share
from shoal.host.scratch import scratch_folder
from shoal.paths import one_inside, unpack
from shoal.plan import environment
from shoal.runs.base import Run
from shoal.runs.catalogue import EXPLAINED
from shoal.runs.folder import SCHEME, Folder, is_place
from shoal.runs.store import StoredRun, create, model_file, open_run
from shoal.terminal import Lines, say, say_output, write
from shoal.training.fit_call import FitCall
from shoal.training.inputs import MOST_DATA_BYTES, write_inputs
from shoal.training.read_fit import PreparedFit, read
from shoal.training.run_fit import inputs_of
from shoal.training.start_run import announce

TEXT = """import os
import sys
import shoal

folder = os.path.dirname(os.path.abspath(__file__))
run = sys.argv[1] if sys.argv[1:] else os.path.join(folder, {run!r})
shoal.resume(run, workers={workers!r}, force=True)
"""
PAUSE_S = 2.0  # seconds between two attempts to reach the head again
PATIENCE_S = 300.0  # limit for consecutive failing attempts
LIVE_S, TOLD_S = 0.2, 5.0  # seconds between two progress reports


@final
@dataclass(frozen=True, kw_only=True)
class Sent:
    """A job that trains.

    Args:
        jobs: Jobs of its cluster.
        id: Id of the job.
    """

    jobs: RemoteJobs
    id: str

    @property
    def hint(self) -> str:
        """Returns the command that attaches to it."""
        return f"shoal attach {self.id} --cluster {self.jobs.name}"

    def follow(self, write: Callable[[bytes], object]) -> Job:
        """Passes on its output until it has ended; returns its final state.

        A lost connection is made again.

        Raises:
            ClusterError: The head cannot be reached any more.
        """
        seen, since = 0, time.monotonic()
        while True:
            try:
                job = self.jobs.find(self.id)
                with closing(self._new(job, seen)) as new:
                    for data in new:
                        seen += len(data)
                        write(data)
                since = time.monotonic()
                if job.state != RUNNING:
                    return job
            except ClusterError:
                if time.monotonic() - since > PATIENCE_S:
                    raise
                time.sleep(PAUSE_S)

    def _new(self, job: Job, seen: int) -> Generator[bytes]:
        """Yields its output after the first bytes that were seen already."""
        count = 0
        with closing(self.jobs.read(job)) as written:
            for data in written:
                count += len(data)
                new = data[max(0, len(data) - max(0, count - seen)) :]
                if new:
                    yield new

    def run_of(self, job: Job, root: Path) -> StoredRun:
        """Opens its run: at its URL, or in a folder that is fetched.

        Args:
            job: A job that has ended.
            root: Local folder of runs.

        Raises:
            ConfigError: The URL cannot be read from here, or has no run.
            ClusterError: The folder cannot be fetched.
            DataError: The archive could write outside of `root`, or is invalid.
        """
        url = url_of(job)
        return self._fetch(job, root) if url is None else open_run(url)

    def _fetch(self, job: Job, root: Path) -> StoredRun:
        make_private(root)
        with tempfile.TemporaryDirectory(dir=root, prefix=".") as folder:
            packed = Path(folder, "run.tar.gz")
            self.jobs.fetch(job, SENT_RUN, packed)
            left_out = unpack(packed, Path(folder))
            place, made = one_inside(root, self.id), Path(folder, SENT_RUN)
            if left_out:
                _say(f"links stay where they are: {', '.join(left_out)}")
            if not place.exists() and not made.is_dir():
                raise ClusterError(
                    f"the content of job {self.id} is not its run. Expected a folder "
                    f"{SENT_RUN!r} from {self.jobs.head}. Try again: {self.hint}"
                )
            if not place.exists():
                made.chmod(0o700)  # in spite of the archive's modes
                made.rename(place)
                share(place)
        return open_run(str(place.resolve()))


def is_away(given: Any) -> bool:
    """Whether this is a cluster to which a call of `fit` is sent."""
    if is_known_elsewhere(given, environment().clusters):
        return True
    cluster = find_cluster(given)
    return isinstance(cluster, Cluster) and cluster.is_remote


def jobs_of(given: Any) -> RemoteJobs:
    """Returns the jobs of a cluster.

    Raises:
        ConfigError: No cluster of this name was brought up from here.
    """
    cluster = find_cluster(given)
    if isinstance(cluster, Cluster):
        return cluster.jobs()
    return Jobs(refreshed(ClusterStore(environment().clusters), given))


def sent_to(given: Any, job: str) -> Sent:
    """Returns a job that was sent to a cluster, by its id or the beginning of one."""
    jobs = jobs_of(given)
    try:
        return Sent(jobs=jobs, id=jobs.find(job).id)
    except BaseException:
        jobs.close()
        raise


def send(call: FitCall) -> Sent:
    """Sends a call of `fit` to the head of its cluster.

    Raises:
        PlanError: A part of it cannot be sent.
        ClusterError: The head refuses.
    """
    if call.workers == "yarn" or isinstance(call.workers, Yarn):
        raise PlanError(
            f"workers={call.workers!r} with cluster={call.cluster!r}, where the call "
            "is sent. Expected a number of its workers: YARN counts other nodes. Pass "
            "a number, or leave workers out for one a GPU or a node."
        )
    jobs = jobs_of(call.cluster)
    try:
        return Sent(jobs=jobs, id=_submitted(call, jobs))
    except BaseException:
        jobs.close()
        raise


def _submitted(call: FitCall, jobs: RemoteJobs) -> str:
    """Makes the run of a call, and submits its job; returns the job's id."""
    place = place_of(call.run, jobs)
    ready = read(replace(call, cluster="local"))
    with scratch_folder("send") as root:
        script, beside, arguments = root / SENT_SCRIPT, list[Path](), list[str]()
        script.write_text(TEXT.format(run=SENT_RUN, workers=call.workers))
        record = create(place.url or root / "made", place.name or ready.work.model.name)
        try:
            with record:
                if place.url:
                    _say(f"writing the run to {record.url} ...")
                _fill(record, ready, there(call.cluster))
            if place.url:
                arguments = [record.url]
            else:
                beside = [root / SENT_RUN]
                Path(record.folder.path).rename(beside[0])
                files = (f for f in beside[0].rglob("*") if f.is_file())
                size = sum(file.stat().st_size for file in files)
                _say(f"sending {size / 1e6:,.1f} MB to {jobs.head} ...")
            return jobs.submit(script, arguments, beside, _Upload().tell)
        except BaseException:
            if place.url:
                with suppress(Exception):  # the storage may be what failed
                    record.folder.remove()
            raise


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the run of a sent call is kept, from its `run=`.

    Args:
        url: Folder of runs at a URL; "" if the run's folder is sent and fetched.
        name: Name of the run; "" for that of the model.
        folder: Local folder of runs for what is fetched; "" for that of SHOAL_RUNS.
    """

    url: str = ""
    name: str = ""
    folder: str = ""


def place_of(run: Any, jobs: RemoteJobs) -> Place:
    """Returns where the run of a call is kept.

    Args:
        run: The argument of `fit`.
        jobs: Jobs of the cluster.

    Raises:
        ConfigError: It cannot be used for a run that is trained elsewhere.
    """
    ours = jobs.runs or ""
    url = ours if SCHEME in ours else ""
    if run is None or run is True:
        return Place(url=url)
    if run is False or isinstance(run, Run):
        raise ConfigError(
            f"run={run!r} with cluster={jobs.name!r}. Expected a run that is kept "
            "where it is trained: a name, a path or a URL. Leave run out."
        )
    if not isinstance(run, (str, os.PathLike)) or not os.fspath(run):
        raise ConfigError(
            f"run={run!r} names no run. Expected a name, a path or a URL. Leave run "
            "out for the place of the cluster's runs."
        )
    said = str(os.fspath(run)).removeprefix("file://")
    if isinstance(run, str) and not is_place(run):
        return Place(url=url, name=run)
    return Place(url=said) if SCHEME in said else Place(folder=said)


def there(given: Any) -> Any:
    """Returns the cluster for the process that trains there."""
    cluster = find_cluster(given)
    return cluster.inside() if isinstance(cluster, Cluster) else "ray"


def _fill(record: StoredRun, ready: PreparedFit, cluster: Any) -> None:
    """Writes the run's inputs, for the process that trains it on a cluster."""
    source = ready.work.source
    if isinstance(source, ArraySource) and source.size_bytes > MOST_DATA_BYTES:
        raise PlanError(
            f"the data takes {source.size_bytes / 1e9:,.1f} GB. Expected at most "
            f"{MOST_DATA_BYTES / 1e9:,.1f} GB to be sent to a cluster. Put it where "
            "its hosts see it, pass the path or URL, or submit a script."
        )
    inputs = inputs_of(ready)
    inputs.settings["cluster"] = cluster
    record.write_plan({**ready.plan.to_json(), EXPLAINED: ready.plan.explain()})
    announce(ready.plan, record)
    write_inputs(record.folder, inputs)


def finish(sent: Sent, job: Job, model: Any = None, folder: str = "") -> Any:
    """Opens a job's run, puts the weights into the model; returns the history.

    Args:
        sent: The job.
        job: Its final state.
        model: Model that gets the weights; None for none.
        folder: Local folder of runs, if the run is fetched; "" for that of SHOAL_RUNS.

    Raises:
        ClusterError: The job did not end well.
    """
    root = Path(folder or environment().runs).expanduser()
    record = sent.run_of(job, root)
    sent.jobs.settle(job)
    if job.state != DONE:
        raise ClusterError(
            f"job {sent.id} on {sent.jobs.name} {job.state}. Expected it to train to "
            f"the end; its output is above. Its files are in {record.url}."
        )
    if model is not None:
        _take_weights(model, record, f"job {sent.id} on {sent.jobs.name}")
    keras: Any = import_module("keras")
    history = keras.callbacks.History()
    metrics = record.summary().metrics
    history.epoch = list(range(len(metrics)))
    history.history = {
        name: [epoch.get(name) for epoch in metrics]
        for name in dict.fromkeys(name for epoch in metrics for name in epoch)
    }
    history.set_model(model)
    history.run = record
    return history


def _take_weights(model: Any, record: StoredRun, job: str) -> None:
    """Puts the trained weights of the run into a model.

    Raises:
        ClusterError: The file is invalid, or of another model.
    """
    name = model_file(record.folder)
    # The state of the optimizer is in the archive as well.
    model.optimizer.build(model.trainable_variables)
    try:
        with _file_here(record.folder, name) as path:
            model.load_weights(path)
    except Exception as error:  # a reader of archives may raise anything
        again = f"Remove {record.url} here, and attach" * record.folder.is_local
        raise ClusterError(
            f"{job} has trained its model, and {record.url}/{name} cannot be read "
            f"({type(error).__name__}: {error!s:.300}). Expected the file as it was "
            f"written there. {again or 'Attach'} to the job again."
        ) from error


@contextmanager
def _file_here(folder: Folder, name: str) -> Generator[Path]:
    """Yields the path of a run's file on this machine, a copy if it is elsewhere."""
    if folder.is_local:
        yield folder.local_path(name)
        return
    with scratch_folder("model") as copy:
        path = one_inside(copy, Path(name).name)  # Keras reads by the suffix
        path.write_bytes(folder.read(name))
        yield path


def _say(text: str) -> None:
    say(text, err=True)


@final
class _Upload:
    """Reports the progress of an upload: on a terminal often, in one line."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._pause_s = LIVE_S if self._is_live else TOLD_S
        self._next = time.monotonic() + self._pause_s

    def tell(self, gone: int, whole: int) -> None:
        """Notes progress; reports it regularly, and at the end of a slow upload."""
        now, is_over = time.monotonic(), gone == whole
        if now < self._next and not (is_over and self._is_live):
            return
        self._next = now + self._pause_s
        text = f"sent {gone / 1e6:,.1f} of {whole / 1e6:,.1f} MB, packed"
        end = "\n" if is_over or not self._is_live else ""
        write(sys.stderr, f"\r{text}{end}" if self._is_live else f"{text}\n")


def fit_there(call: FitCall) -> Any:
    """Runs `fit` on a cluster from outside; see `send`, `follow` and `finish`."""
    sent = send(call)
    _say(
        f"job {sent.id}; it runs on without this process; attach to it by: {sent.hint}"
    )
    return attach(sent, call.model, place_of(call.run, sent.jobs).folder)


def attach(sent: Sent, model: Any = None, folder: str = "") -> Any:
    """Follows a job to its end; returns the history of its run.

    Args: As for `finish`.
    """
    lines = Lines()

    def show(data: bytes) -> None:
        for piece in lines.feed(data):
            say_output(piece.text, end="\n" if piece.is_end else "")

    with closing(sent.jobs):
        try:
            job = sent.follow(show)
        except KeyboardInterrupt:
            _say(f"\nthe job runs on; attach to it by: {sent.hint}")
            raise
        finally:
            for piece in lines.end():
                say_output(piece.text)
        return finish(sent, job, model, folder)
