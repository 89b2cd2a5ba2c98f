"""Runs in folders: the files of a run, and how `run=` becomes a run."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, final

from shoal.errors import CheckpointError, ConfigError
from shoal.facts import DEFAULT_ROOT
from shoal.forks import gives_up
from shoal.host.locks import HeldLock
from shoal.host.private import alike
from shoal.host.processes import Process
from shoal.host.scratch import Scratch, planned_scratch, scratch_folder
from shoal.host.temporary import (
    NoTemporaryFolder,
    keras_saving,
    temporary_folder,
)
from shoal.runs import outlines
from shoal.runs.base import Run as Run
from shoal.runs.base import Which
from shoal.runs.catalogue import PLAN, find_run
from shoal.runs.claim import claim
from shoal.runs.events import VERSION, Event, encode, read_events
from shoal.runs.folder import Folder, is_place
from shoal.runs.heartbeat import Heartbeat, start_heartbeat
from shoal.runs.null import NullRun as NullRun
from shoal.runs.segments import (
    Complaint,
    SegmentLimits,
    Segments,
    segments_for,
)
from shoal.runs.summary import WriterState
from shoal.runs.tensorboard import ScalarWriter
from shoal.runs.writer import lock_writer, look_at_writer

LOGS = "experiments"
LOG_NAME = re.compile(r"worker-([0-9]{1,9})\.log")
MODELS, ARCHIVE, WEIGHTS = "models", ".keras", ".weights.h5"
SCALARS = "tensorboard"

PROMPT_KINDS = frozenset(
    {
        "run_started",
        "run_resumed",
        "epoch_ended",
        "epoch_scored",
        "warning",
        "worker_lost",
        "run_finished",
    }
)
"""Events that are flushed at once, for remote followers of the run."""


class _NotTaken(OSError):
    """The storage of a run refused a file."""


@final
class StoredRun(Run):
    """A run in a folder on this machine or on any storage that fsspec supports.

    Args:
        folder: The claimed run folder.
        name: Name given by the user, or the model's name.
        complain: Called with one line when records of a kind begin to be lost.
        limits: Limits at which event segments are sealed.

    Example:
        >>> with create("memory://doctest-stored", "higgs") as run:
        ...     run.event("worker_lost", rank=1, reason="killed by SIGKILL", step=7)
        >>> open_run(run.id, "memory://doctest-stored").summary().workers_lost
        1
    """

    def __init__(
        self,
        folder: Folder,
        *,
        name: str,
        complain: Complaint | None = None,
        limits: SegmentLimits | None = None,
    ) -> None:
        super().__init__(
            run_id=folder.name, name=name, url=folder.url, complain=complain
        )
        self.folder = folder
        self._limits = limits or SegmentLimits()
        self._scalars = ScalarWriter(folder.child(SCALARS))
        self._staging: Scratch | None = None
        # Begun with the first event: reading a run must not change it.
        self._segments: Segments | None = None
        self._lock_file: HeldLock | None = None
        self._heartbeat: Heartbeat | None = None
        self.model_error: Exception | None = None
        """Error that kept the last model from being saved; an OSError is a disk's."""
        self.model_place = ""
        """Place that refused it then: the run folder, or the temporary directory."""
        self._is_closed = self._was_taken = False
        self._lost = 0
        self._said: set[str] = set()
        gives_up(self)
        self._replay()

    @property
    def lost_events(self) -> int:
        """Events that could not be kept; final once the run is closed."""
        return self._lost + (self._segments.lost if self._segments else 0)

    @property
    def is_taken(self) -> bool:
        """Whether another process has resumed this run and writes it.

        Known only on storage other than local disks. Nothing is written from then on.
        """
        segments = self._segments
        return self._was_taken if segments is None else segments.is_taken

    def check(self) -> None:
        """Checks that this process still writes the run.

        Raises:
            CheckpointError: Another one does.
        """
        if self.is_taken:
            raise CheckpointError(
                f"another process has resumed the run in {self.url} and writes it now; "
                "this one was suspended, or cut off from the storage, for a while. "
                "Expected one process for each run. "
                "Stop one of the two; resuming the run takes it over again."
            )

    def log_path(self, rank: int) -> Path | None:
        """Returns the file of a worker's output: in the run folder if that is local.

        Elsewhere it is a temporary file, uploaded by `flush` and `close`.
        """
        name = f"{LOGS}/worker-{rank}.log"
        try:
            if self.folder.is_local:
                return self.folder.local_path(name)
            with self._lock:
                if self._staging and not self._staging.path.is_dir():
                    self._staging.close()  # it was removed
                    self._staging = None
                if self._staging is None:
                    self._staging = Scratch(planned_scratch("logs"))
                return self._staging.path / f"worker-{rank}.log"
        except OSError as error:
            self._say("logs of the workers", error)
            return None

    def log_sizes(self) -> dict[int, int]:
        """Returns the bytes of each worker's log on this machine, by rank."""
        staging = self._staging
        found: dict[int, int] = {}
        if staging is None and not self.folder.is_local:
            return found
        with suppress(OSError):  # no worker has written anything
            for entry in os.scandir(
                staging.path if staging else self.folder.where(LOGS)
            ):
                if match := LOG_NAME.fullmatch(entry.name):
                    found[int(match[1])] = entry.stat().st_size
        return found

    def save_model(self, model: Any, which: Which) -> str | None:
        """Saves a Keras model; readers see the complete archive or the previous one.

        Args:
            model: Any Keras model; one that no archive can hold is reported.
            which: "best" or "last".

        Returns:
            Path or URL, None when it could not be saved.
        """
        if self.is_taken:
            return None
        try:
            temporary_folder()  # Keras packs archives there
            if not self.folder.is_local:
                with scratch_folder("model") as staging:
                    return self._save(model, which, staging / which)
            # Beside its final path, because a rename stays within one file system.
            partial = self.folder.local_path(f"{MODELS}/.{which}-{os.getpid()}")
            try:
                return self._save(model, which, partial)
            finally:
                for suffix in (ARCHIVE, WEIGHTS):
                    partial.with_name(partial.name + suffix).unlink(missing_ok=True)
        except Exception as error:  # the model may run the user's code
            self.model_error = error
            self.model_place = self._refusing(error)
            self._say(f"{which} model", error, self.model_place)
            return None

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Writes `plan.json`; values that are not JSON are written as text."""
        try:
            text = json.dumps(plan, indent=2, default=str) + "\n"
            self.folder.write(PLAN, text.encode())
        except Exception as error:
            self._say("plan", error)

    def flush(self) -> None:
        """Passes all records so far to the storage, logs too."""
        with self._lock:
            if self._segments:
                self._segments.flush()
        self._upload_logs()

    def close(self) -> None:
        """Uploads the rest and removes temporary files. Safe to repeat."""
        with self._lock:
            segments, self._segments = self._segments, None
            self._is_closed = True
        # Not under the lock: the uploading thread may complain, and a complaint
        # may be recorded.
        if segments:
            segments.close()
            self._lost += segments.lost
            self._was_taken = segments.is_taken
        self._upload_logs()
        with self._lock:
            staging, self._staging = self._staging, None
            held, self._lock_file = self._lock_file, None
            heartbeat, self._heartbeat = self._heartbeat, None
        if staging:
            staging.close()
        if held:
            held.remove()
        if heartbeat:
            heartbeat.close(remove=self._is_finished)

    def give_up(self) -> None:
        """Makes a fork record nothing, and remove nothing."""
        self._lock = threading.RLock()  # another thread may have held it
        self._segments, self._is_closed, self._lock_file = None, True, None
        self._heartbeat = None  # its thread is not in the fork
        self._staging = None  # its owner is not the fork

    def _keep(self, line: bytes, event: Event) -> None:
        if self._is_closed:
            self._lost += 1
            return
        if self._segments is None:
            self._segments = segments_for(
                self.folder,
                limits=self._limits,
                header=self._header,
                complain=self._complain,
            )
        self._segments.append(line, time.monotonic())
        if event["kind"] in ("epoch_ended", "epoch_scored"):
            self._keep_scalars(event)
        elif event["kind"] == "node_used":
            self._scalars.note_use(event)
        if event["kind"] in PROMPT_KINDS:
            self._segments.flush()
        if event["kind"] in outlines.KINDS:
            content = outlines.outline_of(self._fold, self._segments.last)
            self._segments.beside(outlines.OUTLINE, content)

    def _keep_scalars(self, event: Event) -> None:
        try:
            metrics = event.get("metrics") or {}
            self._scalars.write_epoch(event["time"], int(event["epoch"]), metrics)
        except Exception as error:
            self._say("TensorBoard scalars", error)

    def _replay(self) -> None:
        """Reads the events in the folder, so that times continue from there.

        The run's clock stands still while no process writes, because none trains then.
        """
        last_s = 0.0
        for place, event in enumerate(read_events(self.folder)):
            self._fold.add(event)
            last_s = max(last_s, float(event.get("t", 0.0)))
            if place == 0:
                self.name = str(event.get("name", self.name))
        self._began -= last_s

    def _save(self, model: Any, which: Which, partial: Path) -> str:
        """Saves the archive, or the weights of a model that no archive can hold."""
        suffix, found = ARCHIVE, partial.with_name(partial.name + ARCHIVE)
        try:
            with keras_saving():
                open(found, "wb", opener=alike).close()  # Keras keeps its mode
                model.save(found)
        except Exception as error:  # the model may run the user's code
            if is_of_storage(error):
                raise
            suffix, found = WEIGHTS, partial.with_name(partial.name + WEIGHTS)
            open(found, "wb", opener=alike).close()
            model.save_weights(found)
            self._say_once(
                f"the {which} model cannot be saved as a Keras archive "
                f"({type(error).__name__}: {error}). Its weights are kept in "
                f"{self.folder.child(f'{MODELS}/{which}{suffix}').url}: make the model "
                "by its code and call load_weights."
            )
        name = f"{MODELS}/{which}{suffix}"
        try:
            self.folder.put(found, name)
        except Exception as error:  # a file system of fsspec may raise anything
            raise _NotTaken(f"{type(error).__name__}: {error}") from error
        self.model_error = None
        return self.folder.child(name).url

    def _refusing(self, error: Exception) -> str:
        """Returns what refused a model: the run folder, or the temporary directory."""
        named = Path(str(getattr(error, "filename", None) or self.folder.path))
        is_here = self.folder.is_local and named.is_relative_to(self.folder.path)
        if isinstance(error, _NotTaken):
            return self.url
        folder = tempfile.tempdir or "none"
        is_there = not is_here and named.is_relative_to(folder)
        if isinstance(error, NoTemporaryFolder) or is_there or not self.folder.is_local:
            return f"the temporary directory ({folder}; $TMPDIR names another one)"
        return self.url

    def _header(self, number: int) -> bytes:
        """Returns the first line of each segment: enough to identify a lost run."""
        head = {"v": VERSION, "kind": "segment", "time": time.time()}
        return encode({**head, "number": number, **self._writer()})

    def _writer(self) -> dict[str, Any]:
        """Returns the identity of this process, and what shows that it is alive."""
        with self._lock:
            if self._lock_file is None and not self._is_closed:
                self._lock_file = lock_writer(self.folder)
            if self._heartbeat is None and not self._is_closed:
                self._heartbeat = start_heartbeat(self.folder)
            held, heartbeat = self._lock_file, self._heartbeat
        lock, beat = held.mark if held else "", heartbeat.name if heartbeat else ""
        return Process.here(lock=lock, beat=beat).fields

    def _look(self, writer: Process) -> WriterState:
        return look_at_writer(self.folder, writer)

    def _upload_logs(self) -> None:
        staging = None if self.is_taken else self._staging
        for path in sorted(staging.path.glob("*.log")) if staging else []:
            try:
                self.folder.put(path, f"{LOGS}/{path.name}")
            except Exception as error:
                self._say("logs of the workers", error)

    def _say(self, what: str, error: Exception, where: str = "") -> None:
        """Reports the first failure of each kind."""
        self._say_once(
            f"the {what} cannot be written to {where or self.url} "
            f"({type(error).__name__}: {error}). Training goes on without it.",
            what,
        )

    def _say_once(self, text: str, what: str = "") -> None:
        """Prints a text once for each kind, which is the text itself by default."""
        with self._lock:
            if (what or text) in self._said:
                return
            self._said.add(what or text)
        self._complain(text)


def is_of_storage(error: Exception) -> bool:
    """Whether the storage or the memory failed, not the model's code."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames and frames[-1].f_globals.get("__name__") == "inspect":
        return False  # an interactive function, whose source code does not exist
    is_full = "errno = 28" in str(error)  # HDF5's text, in errors of any kind
    return is_full or isinstance(error, (OSError, MemoryError))


def model_file(folder: Folder, which: Which = "last") -> str:
    """Returns the name of a saved model: an archive, or else weights alone."""
    weights = f"{MODELS}/{which}{WEIGHTS}"
    archive = f"{MODELS}/{which}{ARCHIVE}"
    is_weights = not folder.exists(archive) and folder.exists(weights)
    return weights if is_weights else archive


def check_name(name: str | None) -> None:
    """Refuses the name of a run that would be taken for a place.

    Raises:
        ConfigError: It is a path or URL, or empty.
    """
    if name is not None and (not name.strip() or is_place(name)):
        raise ConfigError(
            f"name={name!r} is no name of a run. Expected a word such as higgs, "
            "without / in it. Give the folder of runs as --root."
        )


def start(
    run: str | os.PathLike[str] | Run | bool | None,
    *,
    name: str,
    root: str | os.PathLike[str] = DEFAULT_ROOT,
    complain: Complaint | None = None,
) -> Run:
    """Turns the `run=` argument of `fit` into a run.

    Args:
        run: None or True: a folder under `root`. False: keep nothing. A word: a folder
            with that name. A path or URL: used as the root. A run: used unchanged.
        name: Name if `run` has none, such as the model's.
        root: Path or URL, from $SHOAL_RUNS; default ./shoal-runs.
        complain: Called with one line when records of a kind begin to be lost.

    Raises:
        ConfigError: `run` is something else, or the folder cannot be written.

    Example:
        >>> start(False, name="higgs").url
        ''
        >>> start("memory://doctest-start", name="higgs").name
        'higgs'
    """
    if isinstance(run, Run):
        return run
    if run is False:
        return NullRun(name=name)
    if run is None or run is True:
        return create(root, name, complain=complain)
    if not isinstance(run, (str, os.PathLike)) or not os.fspath(run):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"run={run!r} names no run. "
            "Expected a name, a path or URL, a Run, or False to keep nothing. "
            "Leave it out to use ./shoal-runs."
        )
    if isinstance(run, str) and not is_place(run):
        return create(root, run, complain=complain)
    return create(run, name, complain=complain)


def create(
    root: str | os.PathLike[str],
    name: str,
    *,
    complain: Complaint | None = None,
    today: date | None = None,
) -> StoredRun:
    """Claims a new run folder under a root.

    Args:
        root: Path or URL.
        name: Middle part of the id, in small letters and dashes.
        complain: Called with one line when records of a kind begin to be lost.
        today: Date at the beginning of the id; default None: today.

    Raises:
        ConfigError: The folder cannot be written.

    Example:
        >>> create("memory://doctest-create", "Higgs", today=date(2026, 11, 21)).id
        '2026-11-21-higgs-...'
    """
    first: Event = {
        "v": VERSION, "kind": "run_created", "time": time.time(), "t": 0.0,
        "name": name, **Process.here().fields,
    }  # fmt: skip
    place = Folder.at(root)
    folder = claim(place, name, first=first, today=today or date.today())
    return StoredRun(folder, name=name, complain=complain)


def open_run(
    reference: str,
    root: str | os.PathLike[str] = DEFAULT_ROOT,
    *,
    complain: Complaint | None = None,
) -> StoredRun:
    """Opens an existing run, to read or to resume it.

    Args:
        reference: Id, the unique beginning of one, or path or URL of the folder.
        root: Folder in which ids are looked up, default ./shoal-runs.
        complain: Called with one line when records of a kind begin to be lost.

    Raises:
        ConfigError: There is no such run, or there are several.
    """
    folder = find_run(reference, root)
    return StoredRun(folder, name=folder.name, complain=complain)
