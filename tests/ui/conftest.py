"""A real server of the page, on a port of its own, over runs that stand."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from shoal.runs.store import StoredRun, create
from shoal.ui.app import make_app
from shoal.ui.guard import LOOPBACK, Access
from shoal.ui.server import Server, config_of
from shoal.ui.serving import Settings, listen
from shoal.ui.site import Site, roots_of
from shoal.ui.starting import Starter

NOTE = """
import sys, pathlib
with open("started.txt", "a") as file: file.write(repr(sys.argv[1:]) + "\\n")
hold = pathlib.Path("hold")
if hold.exists(): hold.read_text()
print("it \x1b[31mfailed")
sys.exit(0 if pathlib.Path("works").exists() and "--plan" in sys.argv else 3)
"""
"""In place of `shoal`: notes its words, and fails once the pipe `hold` is written."""

FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the training in a browser first: the others fit beside it."""
    items.sort(
        key=lambda item: not all(map(item.get_closest_marker, ("ui", "process")))
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Notes of a test whether it failed, so that a picture of its page is kept."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Chromium:
    """The one browser of a process of tests: it takes seconds to start."""

    def __init__(self) -> None:
        self._api: Any = None
        self._browser: Any = None

    def opened(self) -> Any:
        if self._browser is None:
            api = pytest.importorskip("playwright.sync_api")
            self._api = api.sync_playwright().start()
            self._browser = self._api.chromium.launch(
                executable_path=CHROMIUM, args=OPTIONS
            )
        return self._browser

    def close(self) -> None:
        if self._browser is not None:
            self._browser.close()
            self._browser = None
        if self._api is not None:
            self._api.stop()
            self._api = None


CHROMIUMS = pytest.StashKey[Chromium]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Closes the browser before a test without one: that may run a loop of its own."""
    found = item.config.stash.get(CHROMIUMS, None)
    if found is not None and item.get_closest_marker("ui") is None:
        found.close()


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config) -> Iterator[Chromium]:
    found = pytestconfig.stash[CHROMIUMS] = Chromium()
    yield found
    found.close()


@pytest.fixture(scope="module")
def browser(chromium: Chromium) -> Any:
    if CHROMIUM is None:
        if os.environ.get("SHOAL_REQUIRE_BROWSER"):
            pytest.fail("there is no chromium, and this machine should have one")
        pytest.skip("needs chromium")
    return chromium.opened()


TOKEN = "right-token-of-the-tests"


@pytest.fixture
def held_port() -> Iterator[int]:
    """A port for servers one after the other, which nobody else gets between them."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Served:
    """The page as a client sees it: requests are as raw as they are given."""

    site: Site
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.site.access.base}"

    @property
    def cookie(self) -> str:
        return f"{self.site.access.cookie}={self.site.access.session}"

    def ask(
        self,
        target: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        has_cookie: bool = True,
    ) -> Answer:
        given = {"Host": f"127.0.0.1:{self.port}"}
        if has_cookie:
            given["Cookie"] = self.cookie
        given |= headers or {}
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            link.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                link.putheader(name, value)
            if body is not None:
                link.putheader("Content-Length", str(len(body)))
            link.endheaders(body)
            answer = link.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            link.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(status=answer.status, headers=found, text=text)

    def post(
        self,
        target: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Posts a form as the page itself does; headers and fields replace its own."""
        access = self.site.access
        fields = {"form_token": access.form_token, **(form or {})}
        given = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"http://127.0.0.1:{self.port}",
            **(headers or {}),
        }
        given = {name: value for name, value in given.items() if value}
        content = urlencode(fields).encode()
        return self.ask(target, method="POST", headers=given, body=content)


def remove_at_once(folder: Path) -> None:
    """Removes a run in one step: a look may fall between the files of `rmtree`."""
    folder.rename(folder.parents[1] / f"{folder.name}-gone")


class Stream:
    """A raw stream of events."""

    def __init__(self, served: Served, path: str, last: str = "") -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        headers = {"Cookie": served.cookie} | ({"Last-Event-ID": last} if last else {})
        self._link.request("GET", path, headers=headers)
        self.answer = self._link.getresponse()

    def next(self) -> dict[str, str]:
        """The next event with data."""
        found: dict[str, str] = {}
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            if not line and "data" in found:
                return found
            if ": " in line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                found[name] = value

    def close(self) -> None:
        self._link.close()


class Serving:
    """Starts servers, and ends them with the test."""

    def __init__(self, state: Path) -> None:
        self.starter = Starter(state / "state", state, (sys.executable, "-c", NOTE))
        self.noted = state / "started.txt"
        self._running: list[tuple[Server, threading.Thread, Site]] = []

    def start(
        self,
        root: Path | str,
        *,
        base: str = "",
        is_read_only: bool = False,
        has_charts: bool = False,
        port: int = 0,
        hosts: frozenset[str] = frozenset(),
        encrypted: frozenset[str] = frozenset(),
        further: Sequence[Path | str] = (),
    ) -> Served:
        """Starts a server over a root, and further ones."""
        roots = tuple(map(str, (root, *further)))
        settings = Settings(roots=roots, cache=None, state=Path("."), port=port)
        listener = listen(settings)
        port = listener.getsockname()[1]
        servers: list[Server] = []
        site = Site(
            roots=roots_of(settings.roots),
            access=Access(
                token=TOKEN,
                port=port,
                hosts=LOOPBACK | hosts,
                base=base,
                encrypted=encrypted,
            ),
            starter=self.starter,
            is_read_only=is_read_only,
            has_charts=has_charts,
            is_ending=lambda: servers[0].should_exit,
        )
        config = config_of(make_app(site))
        server = Server(config, site.watcher.end_waits)
        servers.append(server)
        # It would take the signals of the test otherwise.
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        self._running.append((server, thread, site))
        return Served(site=site, port=port)

    def close(self) -> None:
        for server, thread, site in self._running:
            server.end()
            thread.join()
            site.watcher.close()
        # A page shows the end of a run before its process has ended.
        for program in self.starter._programs.values():
            assert program.child is not None
            program.child.wait(timeout=60)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    found = Serving(tmp_path)
    yield found
    found.close()


def make_run(
    root: Path | str, name: str, *, status: str = "finished", day: int = 1
) -> StoredRun:
    """A small run that stands, with everything a page shows."""
    with create(str(root), name, today=date(2026, 1, day)) as run:
        run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
        for rank in range(2):
            run.event("worker_started", rank=rank, pid=100 + rank, node="localhost")
        for epoch in range(2):
            for at in range(10):
                record = {"rank": at % 2, "epoch": epoch, "samples": 64, "steps": 1}
                loss = 2.0 / (1 + at + 10 * epoch)
                run.exchanges([{**record, "loss": loss, "t": run.seconds}])
            metrics = {"loss": 1.0 / (1 + epoch), "val_loss": 1.5 / (1 + epoch)}
            run.event("epoch_ended", epoch=epoch, samples=640, metrics=metrics)
        held = {"0": [320, 384], "1": [384, 448]}
        open_epoch = {"epoch": 2, "rows": 640, "committed": [0, 320], "leased": held}
        run.event("leases", epochs=[open_epoch])
        run.event("worker_lost", rank=1, reason="killed by SIGKILL")
        run.folder.write("experiments/worker-0.log", b"hello\n\x1b[31mred\x1b[0m\n")
        if status != "running":
            run.finish(status)  # type: ignore[arg-type]
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"
