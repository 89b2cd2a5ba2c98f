"""`shoal tensorboard`: the scalars of a run, on this machine or another."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer

from shoal.cli.head import on_head
from shoal.clusters.ssh import SSH, Way
from shoal.clusters.tunnel import Tunnel
from shoal.errors import ConfigError
from shoal.foreign.hosts import free_ports
from shoal.foreign.words import BEAT_S, QUIET_S, guarded
from shoal.host.scratch import scratch_folder
from shoal.plan import environment
from shoal.runs.catalogue import find_run
from shoal.runs.folder import Folder
from shoal.runs.local_copy import LocalCopy
from shoal.runs.store import SCALARS
from shoal.terminal import say

HERE = "127.0.0.1"
RELOAD_S = 5
START_LIMIT_S = 120.0  # TensorBoard imports TensorFlow if that is installed
GRACE_S = 5.0
ENDING = (signal.SIGTERM, signal.SIGHUP)


def show_tensorboard(
    run: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Run id, the beginning of one, or a path or URL."
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port here; default 6006 or one after it, "
            "0 for any."
        ),
    ] = None,
    ssh: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Host with the run and Shoal: TensorBoard runs there. Options of ssh "
            "may stand before the host.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="The same, on the head of a cluster that is up."),
    ] = None,
    python: Annotated[
        str, typer.Option(help="With --ssh: the Python of the host that has Shoal.")
    ] = "python3",
    root: Annotated[
        str | None,
        typer.Option(
            help="Folder or URL of the runs; default $SHOAL_RUNS, ./shoal-runs, there."
        ),
    ] = None,
) -> None:  # fmt: skip
    """Shows the scalars of a run in TensorBoard, until Ctrl-C.

    A run on S3 and the like is copied to a temporary folder, and the copy follows it.
    A run on another machine is shown by a tunnel of OpenSSH.
    """
    words = ["tensorboard", "--port", "0"]
    if ssh is not None and cluster is not None:
        raise ConfigError(
            f"--ssh {ssh} and --cluster {cluster} are both given. Expected one of "
            "them. Leave the other out."
        )
    with suppress(KeyboardInterrupt), _ended_by_signals():
        if cluster is not None:
            _show_there(*on_head(cluster, words, run, root), port)
        elif (way := _way(ssh or "")) is not None:
            more = ["--root", root] if root else []
            _show_there(way, [python, "-m", "shoal", *words, run, *more], port)
        else:
            _show_here(find_run(run, root or environment().runs), port)


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """Makes signals that end this program end its processes and files, too."""

    def leave(number: int, _frame: object) -> NoReturn:
        sys.exit(128 + number)

    before = [(one, signal.signal(one, leave)) for one in ENDING]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


def _way(ssh: str) -> Way | None:
    """Returns the way to a host; None for this machine."""
    words = shlex.split(ssh)
    return Way(address=words[-1], ssh=(*SSH, *words[:-1])) if words else None


# ---------------------------------------------------------------------- here


def _show_here(folder: Folder, port: int | None) -> None:
    scalars = folder.child(SCALARS)
    if scalars.is_local:
        _say(_launch(scalars.path, port))
        threading.Event().wait()
    with scratch_folder("tensorboard") as target:
        copy = LocalCopy(scalars, target, partial(say, err=True))
        copy.update()
        with _following(copy, scalars.url) as is_over:
            _say(_launch(str(target), port))
            is_over.wait()


@contextmanager
def _following(copy: LocalCopy, url: str) -> Generator[threading.Event]:
    """Keeps a copy up to date meanwhile, in a thread."""
    is_over = threading.Event()

    def follow() -> None:
        is_told = False
        while not is_over.wait(RELOAD_S):
            try:
                copy.update()
                is_told = False
            except Exception as error:  # a file system of fsspec may raise anything
                if not is_told:
                    text = f"{url} cannot be read now ({type(error).__name__}: {error})"
                    say(f"{text}; trying again", err=True)
                is_told = True

    thread = threading.Thread(target=follow, name="shoal-copy", daemon=True)
    thread.start()
    try:
        yield is_over
    finally:
        is_over.set()
        thread.join(GRACE_S)


def _launch(folder: str, port: int | None) -> str:
    """Starts TensorBoard in threads of this process; returns its address.

    Raises:
        ConfigError: TensorBoard is not installed, or has no port.
    """
    if find_spec("tensorboard") is None:
        raise ConfigError(
            "TensorBoard is not installed here. Expected its package where the run is "
            "shown. Install it: pip install 'shoal[tensorboard]'."
        )
    program: Any = import_module("tensorboard.program")
    board = program.TensorBoard()
    words = ["--logdir", folder, "--host", HERE, "--reload_interval", str(RELOAD_S)]
    more = [] if port is None else ["--port", str(port)]
    # Loaded into this process: nothing of it is left when the process ends.
    board.configure(argv=("tensorboard", *words, "--load_fast", "false", *more))
    try:
        return str(board.launch())
    except program.TensorBoardServerException as error:
        raise ConfigError(
            f"TensorBoard cannot serve at port {port or 6006}: {str(error).strip()} "
            "Expected a port that is free. Pass another --port, or 0 for any."
        ) from None


def _say(url: str) -> None:
    """Prints the first line on standard output at once, also into a pipe."""
    say(f"{url}  (Ctrl-C ends it)")
    sys.stdout.flush()


# --------------------------------------------------------------------- there


def _show_there(way: Way, command: list[str], port: int | None) -> None:
    guard = guarded(command, {}, ".", GRACE_S, QUIET_S)
    with Tunnel(way, guard, beat_s=BEAT_S) as tunnel:
        there = int(tunnel.find(r"http://[^:/]+:(\d+)/", START_LIMIT_S))
        here = port or free_ports(1)[0]
        tunnel.forward(here, there)
        _say(f"http://{HERE}:{here}/")
        code = tunnel.wait()
    raise typer.Exit(code)
