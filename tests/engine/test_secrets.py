"""The secret of a run is where it is needed and nowhere else; nothing is unpickled.

A real run of processes is searched while it trains: command lines, environments, open
files' names, the run folder and temporary files.
"""

from __future__ import annotations

import ast
import base64
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.engine.controller.controller import Controller
from shoal.engine.server.spec import ServerSpec
from shoal.errors import WorkerFailed
from shoal.runs.store import open_run
from shoal.testing import faults
from shoal.training import start_run
from shoal.wire import tls
from shoal.wire.handshake import worker_secret

ROWS, EPOCHS = 400, 2


def spellings(secret: bytes) -> list[bytes]:
    """The ways in which it could be written down."""
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        base64.b64encode(secret),
        base64.urlsafe_b64encode(secret),
        repr(secret)[2:-1].encode(),
        ", ".join(map(str, secret)).encode(),
    ]


class Spy:
    """Keeps the secrets that runs are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.private: list[bytes] = []
        give = Controller.give

        def keep(controller: Controller, server: ServerSpec, make: Any) -> None:
            self.private += spellings(server.secret)
            self.private += spellings(worker_secret(server.secret))
            if server.identity is not None:
                body = server.identity.key.splitlines()[1]
                self.private += [server.identity.key, body, server.identity.password]
            give(controller, server, make)

        monkeypatch.setattr(Controller, "give", keep)

    def seen_in(self, data: bytes) -> bool:
        return any(text in data for text in self.private)


class Search(keras.callbacks.Callback):
    """Searches the processes of the run while they train."""

    def __init__(self, spy: Spy) -> None:
        super().__init__()
        self.spy, self.found, self.looked_at = spy, list[str](), 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            for name, data in shown(process):
                self.looked_at += 1
                if self.spy.seen_in(data):
                    self.found.append(f"{name} of process {process.pid}")


def shown(process: psutil.Process) -> Iterator[tuple[str, bytes]]:
    """What other users of the machine, or readers of its logs, can see of a process."""
    try:
        yield "command line", "\0".join(process.cmdline()).encode()
        yield "environment", repr(process.environ()).encode()
        yield "files", repr(process.open_files()).encode()
    except psutil.Error:
        return


def written(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield path, path.read_bytes()


def model() -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    return net


def fit(folder: Path, **fields: Any) -> Any:
    x = np.random.default_rng(0).standard_normal((ROWS, 4)).astype("float32")
    given: dict[str, Any] = {
        "workers": 2, "epochs": EPOCHS, "batch_size": 16, "verbose": 0,
        "strategy": "aeasgd", "run": folder, **fields,
    }  # fmt: skip
    return shoal.fit(model(), x, x[:, :1], **given)


@pytest.mark.process
@pytest.mark.parametrize("has_tls", [False, True])
def test_no_output_of_a_run_contains_its_secret(
    has_tls: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if has_tls:
        monkeypatch.setattr(start_run, "identity_for", lambda _: tls.make_identity())
    spy = Spy(monkeypatch)
    search = Search(spy)
    history = fit(tmp_path / "run", callbacks=[search])
    url = Path(history.run.url)
    found = open_run(history.run.id, url.parent).summary()
    assert found.samples_committed == found.samples_expected == ROWS * EPOCHS
    assert len(spy.private) == (17 if has_tls else 14)
    assert search.looked_at >= 3 * (1 + 1 + 2) * EPOCHS
    assert search.found == []
    files = list(written(url, Path(tempfile.gettempdir())))
    assert {"plan.json"} <= {path.name for path, _ in files}
    assert any(path.suffix == ".log" for path, _ in files)
    assert [path for path, data in files if spy.seen_in(data)] == []


@pytest.mark.process
def test_no_error_contains_the_secret(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spy = Spy(monkeypatch)
    with faults.fail(rank=0, step=3), pytest.raises(WorkerFailed) as raised:
        fit(tmp_path / "run", strategy="all_reduce")  # each has a part of each step
    texts = [str(raised.value), repr(raised.value), *map(repr, raised.value.args)]
    out = capfd.readouterr()
    for text in (*texts, out.out, out.err):
        assert not spy.seen_in(text.encode())
    assert [path for path, data in written(tmp_path) if spy.seen_in(data)] == []


def test_the_search_finds_a_secret_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spy = Spy(monkeypatch)
    spy.private = spellings(bytes(range(32)))
    for text in spellings(bytes(range(32))):
        assert spy.seen_in(b"log: " + text + b".")
    assert not spy.seen_in(b"log: nothing")
    (tmp_path / "x.log").write_bytes(bytes(range(32)).hex().encode())
    assert [p.name for p, d in written(tmp_path) if spy.seen_in(d)] == ["x.log"]


READERS = (
    "shoal.engine.controller.controller",
    "shoal.engine.controller.servers",
    "shoal.engine.controller.shared_servers",
    "shoal.engine.server.base",
    "shoal.engine.server.checkpoint",
    "shoal.engine.server.event_log",
    "shoal.engine.server.primary",
    "shoal.engine.server.replica",
    "shoal.engine.server.replication",
    "shoal.engine.server.reports",
    "shoal.engine.server.shard",
    "shoal.engine.server.standby",
    "shoal.engine.transport.buffers",
    "shoal.engine.transport.client_connection",
    "shoal.engine.transport.fields",
    "shoal.engine.transport.listener",
    "shoal.engine.transport.messages.base",
    "shoal.engine.transport.messages.controller_to_server",
    "shoal.engine.transport.messages.events",
    "shoal.engine.transport.messages.server_to_controller",
    "shoal.engine.transport.messages.server_to_worker",
    "shoal.engine.transport.messages.shard",
    "shoal.engine.transport.messages.standby",
    "shoal.engine.transport.messages.worker_reports",
    "shoal.engine.transport.messages.worker_to_server",
    "shoal.engine.transport.partition",
    "shoal.engine.transport.server_connection",
    "shoal.engine.transport.shared_memory",
    "shoal.engine.worker.client",
    "shoal.engine.worker.request_channel",
    "shoal.engine.worker.shard_client",
    "shoal.wire.frames",
    "shoal.wire.handshake",
    "shoal.wire.tls",
)
UNPICKLERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}


def test_only_a_standby_unpickles_and_only_its_leaders_state() -> None:
    engine = Path(importlib.import_module("shoal.engine").__file__ or "").parent
    found = [
        p
        for p in engine.rglob("*.py")
        if "state_transfer import unpack" in p.read_text()
    ]
    assert [path.name for path in found] == ["standby.py"]
    assert found[0].read_text().count("unpack(") == 1


@pytest.mark.parametrize("name", READERS)
def test_no_module_that_reads_the_wire_can_unpickle(name: str) -> None:
    """Not by an import, nor by `numpy.load`, nor by `eval`."""
    path = importlib.import_module(name).__file__
    assert path is not None
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.Import):
            roots = {alias.name.partition(".")[0] for alias in node.names}
            assert not roots & UNPICKLERS
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in UNPICKLERS
        elif isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in EVALUATORS)
            is_load = isinstance(called, ast.Attribute) and called.attr in (
                "load", "loads", "unsafe_load",
            )  # fmt: skip
            if is_load and isinstance(called, ast.Attribute):
                assert isinstance(called.value, ast.Name)
                assert called.value.id == "json"
