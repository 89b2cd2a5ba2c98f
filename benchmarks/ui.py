"""The page's numbers: how long until rows, curves, events and hits are seen.

Run: `python -m benchmarks.ui`, or `make bench-ui`; `--quick` with smaller runs. Makes
1,000 runs, one of 100,000 exchanges by 64 workers, one of a million, and a log of 1 GB
in a temporary folder; starts `shoal ui` on them, and looks at it in Debian's chromium.
Then trains with and without somebody who watches. Prints a table, and the load of the
machine before it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics as st
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Page, expect, sync_playwright

from shoal.runs.catalogue import run_ids
from shoal.runs.events import exchange_records, read_events
from shoal.runs.folder import Folder
from shoal.runs.store import StoredRun, create

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
LIMIT_MS = 60_000
RECORD = {"steps": 10, "compute_s": 0.2, "data_s": 0.01, "wait_s": 0.02,
          "exchange_s": 0.02, "staleness": 1}  # fmt: skip


def make_runs(root: Path, count: int) -> None:
    """Makes many runs: one, copied."""
    first = create(str(root), "higgs", today=date(2026, 1, 1))
    with first as run:
        run.event("run_started", strategy="aeasgd", workers=4, rows=64_000, epochs=5)
        for epoch in range(5):
            run.exchanges([
                {**RECORD, "rank": at % 4, "epoch": epoch, "samples": 640,
                 "loss": 1 / (1 + at + 100 * epoch), "t": run.seconds}
                for at in range(100)
            ])  # fmt: skip
            metrics = {"loss": 1 / (1 + epoch), "val_loss": 1.1 / (1 + epoch)}
            run.event("epoch_ended", epoch=epoch, samples=64_000, metrics=metrics)
        run.finish("finished")
    for at in range(1, count):
        shutil.copytree(root / run.id, root / f"2026-01-01-higgs-{at:05d}")


def make_long(root: Path, name: str, exchanges: int, workers: int = 64) -> StoredRun:
    """Makes a run of many exchanges, at 20 of them a second."""
    run = create(str(root), name, today=date(2026, 1, 2))
    rows = 64 * exchanges
    run.event("run_started", strategy="downpour", workers=workers, rows=rows, epochs=1)
    for rank in range(workers):
        run.event("worker_started", rank=rank, pid=100 + rank, node="localhost")
    for start in range(0, exchanges, 100):
        run.exchanges([
            {**RECORD, "rank": at % workers, "epoch": 0, "samples": 64,
             "loss": 2.5 * 0.99998**at + 0.2 * (at % 7) / 7, "t": at / 20}
            for at in range(start, start + 100)
        ])  # fmt: skip
    return run


def write_log(run: StoredRun, size: int) -> None:
    """Writes a log of many lines, with one of its own at the end of each tenth."""
    path = run.folder.local_path("experiments/worker-0.log")
    line = b"step 12345: loss 0.4321, accuracy 0.8765, 1234 samples a second\n"
    block = line * (size // 10 // len(line))
    with path.open("wb") as file:
        for at in range(10):
            file.write(block)
            file.write(b"a needle, number %d\n" % at)


@contextmanager
def served(root: Path, home: Path) -> Generator[tuple[str, psutil.Process]]:
    """Serves the page; yields its link, and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "ui", "--no-browser", "--port", "0",
         "--root", str(root)],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "HOME": str(home), "SHOAL_CACHE": str(home / "cache")},
    )  # fmt: skip
    try:
        link = process.stdout.readline() if process.stdout else ""
        yield link.strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def seconds(what: Callable[[], Any]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def open_list(page: Page, base: str, count: int) -> None:
    page.goto(f"{base}/", timeout=LIMIT_MS)
    rows = page.locator("#runs tbody tr")
    expect(rows).to_have_count(min(1000, count), timeout=LIMIT_MS)


def open_run(page: Page, base: str, run: str) -> None:
    page.goto(f"{base}/runs/runs/{run}", timeout=LIMIT_MS)
    page.locator("#charts[data-drawn] .plot canvas").first.wait_for(timeout=LIMIT_MS)


KEYSTROKE = """() => new Promise((done) => {
  const field = document.getElementById("q");
  const began = performance.now();
  field.value = field.value ? "" : "0099";
  field.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""
WATCH = """() => {
  window.drawn = [];
  const box = document.getElementById("charts");
  new MutationObserver(() => requestAnimationFrame(() => window.drawn.push(
    [Date.now(), Number(box.dataset.drawMs)])))
    .observe(box, { attributes: true, attributeFilter: ["data-drawn"] });
}"""


def watch(page: Page, run: StoredRun, count: int) -> tuple[list[float], list[float]]:
    """Returns milliseconds from event to frame, and of the drawing alone."""
    page.evaluate(WATCH)
    late: list[float] = []
    for at in range(count):
        before = page.evaluate("window.drawn.length")
        written = time.time()
        run.event("worker_lost", rank=at % 64, reason="gone", t=run.seconds)
        while page.evaluate("window.drawn.length") == before:
            time.sleep(0.005)
        shown = page.evaluate(f"window.drawn[{before}][0]")
        late.append(shown - 1000 * written)
        time.sleep(0.5 + 0.037 * (at % 7))
    return late, page.evaluate("window.drawn.map((one) => one[1])")


def search(page: Page, address: str, *, is_first: bool) -> int:
    """Searches as the page does, in parts, to the first hit or to the end."""
    count, later = 0, "0:0"
    while later and not (is_first and count):
        part = page.request.get(f"{address}&from={later}").json()
        count, later = count + len(part["lines"]), part["next"]
    return count


def share(process: psutil.Process, span_s: float, each: Callable[[], Any]) -> float:
    """Returns the share of one core, in percent, with something done each second."""
    before = sum(process.cpu_times()[:2])
    for _ in range(int(span_s)):
        each()
        time.sleep(1)
    return 100 * (sum(process.cpu_times()[:2]) - before) / span_s


OPENED_S = 5.0
"""Seconds after which an open page counts: before, it is loaded and drawn."""
TRAINING = """
import sys, keras, numpy as np, shoal
x = np.random.default_rng(0).standard_normal((8192, 64)).astype("f4")
layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(1, "sigmoid")]
model = keras.Sequential([keras.Input((64,)), *layers])
model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
shoal.fit(model, x, (x[:, :1] > 0).astype("f4"), epochs=int(sys.argv[2]), workers=2,
          batch_size=16, strategy="downpour:period=4", run=sys.argv[1], verbose=0)
"""


def train(root: Path, epochs: int, watching: Callable[[str, str], Any]) -> float:
    """Trains; returns samples a second, from `OPENED_S` after the first exchange on.

    Args:
        root: Folder of runs.
        epochs: Number of epochs.
        watching: Called with the name of the run and "begun" as soon as it is there,
            "opened" when a page has been open for so long, and "over" at the end.
    """
    command = [sys.executable, "-c", TRAINING, str(root), str(epochs)]
    before = set(run_ids(root))
    env = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    with subprocess.Popen(command, env=env) as process:
        while not (new := set(run_ids(root)) - before):
            if process.poll() is not None:
                raise RuntimeError(f"the training ended with {process.returncode}")
            time.sleep(0.05)
        [name] = new
        watching(name, "begun")
        folder = Folder.at(root).child(name)
        while process.poll() is None and not has_exchanges(folder):
            time.sleep(0.05)
        time.sleep(OPENED_S)
        watching(name, "opened")
        process.wait()
        watching(name, "over")
    records = list(exchange_records(read_events(folder)))
    since = records[0]["t"] + OPENED_S
    steady = [record for record in records if record["t"] > since]
    span = steady[-1]["t"] - steady[0]["t"]
    return sum(record["samples"] for record in steady[1:]) / span


def has_exchanges(folder: Folder) -> bool:
    return any(event["kind"] == "exchanges" for event in read_events(folder))


def read_as_a_page(base: str, cookie: str, run: str) -> subprocess.Popen[bytes]:
    """Starts a program that reads what a page reads, and draws nothing."""
    own = f"{base}/runs/watched/{run}"
    code = f"""
import json, urllib.request
for line in urllib.request.urlopen(urllib.request.Request(
        {own!r} + "/events", headers={{"Cookie": {cookie!r}}})):
    if line.startswith(b"data: {{"):
        json.loads(line[6:])
"""
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


def spent_s(programs: list[psutil.Process]) -> float:
    """Returns the processor time of programs that live, and of what they started."""
    found = 0.0
    for program in programs:
        for process in [program, *program.children(recursive=True)]:
            found += sum(process.cpu_times()[:2])
    return found


class Cost:
    """Trains without and with a watched page, in turns.

    Attributes:
        speeds: Way of watching -> samples a second of each training.
        shares: Way of watching -> percent of the machine's processor time that the page
            took, its server and its reader together.
    """

    def __init__(self, place: Path, browsers: Any, chromium: str | None) -> None:
        self.root, self.home = place / "watched", place / "other"
        self.root.mkdir()
        self.home.mkdir()
        self.browsers, self.chromium = browsers, chromium
        self.speeds: dict[str, list[float]] = {"alone": [], "watched": [], "drawn": []}
        self.shares: dict[str, list[float]] = {"watched": [], "drawn": []}

    def measure(self, epochs: int, turns: int) -> None:
        """Trains in turns."""
        with served(self.root, self.home) as (link, server):
            base, _, query = link.partition("/?")
            browser = self.browsers.launch(executable_path=self.chromium, args=OPTIONS)
            page = browser.new_context().new_page()
            page.goto(f"{base}/help?{query}")
            [cookie] = page.context.cookies()
            named = f"{cookie['name']}={cookie['value']}"
            page.goto("about:blank")
            for _ in range(turns):
                self.speeds["alone"].append(train(self.root, epochs, lambda *_: None))
                self._read(base, named, server, epochs)
                self._draw(base, page, server, epochs)
            browser.close()

    def _read(
        self, base: str, cookie: str, server: psutil.Process, epochs: int
    ) -> None:
        """Trains as a program reads what a page reads."""
        programs: list[subprocess.Popen[bytes]] = []

        def begin(run: str) -> list[psutil.Process]:
            programs.append(read_as_a_page(base, cookie, run))
            return [server, psutil.Process(programs[0].pid)]

        self._train("watched", epochs, begin)
        programs[0].terminate()
        programs[0].wait()

    def _draw(self, base: str, page: Page, server: psutil.Process, epochs: int) -> None:
        """Trains as a browser shows the page."""

        def begin(run: str) -> list[psutil.Process]:
            page.goto(f"{base}/runs/watched/{run}")
            mains = [
                process
                for process in psutil.Process().children(recursive=True)
                if "--headless" in (words := process.cmdline())
                and not any(word.startswith("--type=") for word in words)
            ]
            return [server, *mains]

        self._train("drawn", epochs, begin)
        page.goto("about:blank")

    def _train(
        self, way: str, epochs: int, begin: Callable[[str], list[psutil.Process]]
    ) -> None:
        programs: list[psutil.Process] = []
        at: dict[str, tuple[float, float]] = {}

        def watching(run: str, what: str) -> None:
            if what == "begun":
                programs.extend(begin(run))
            at[what] = time.monotonic(), spent_s(programs)

        self.speeds[way].append(train(self.root, epochs, watching))
        (began, before), (ended, after) = at["opened"], at["over"]
        took = (ended - began) * (os.cpu_count() or 1)
        self.shares[way].append(100 * (after - before) / took)


def in_words(found: dict[str, list[float]], digits: int) -> str:
    """Returns medians and ranges."""
    return " / ".join(
        f"{st.median(values):,.{digits}f} "
        f"({min(values):,.{digits}f} to {max(values):,.{digits}f})"
        for values in found.values()
    )


def tell(row: tuple[str, str, str]) -> None:
    """Prints a row of the table at once."""
    print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Measures all, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller runs")
    is_quick = parser.parse_args().quick
    count, exchanges = (100, 10_000) if is_quick else (1000, 100_000)
    size = 50_000_000 if is_quick else 1_000_000_000
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    print(f"load of the machine before: {os.getloadavg()}")
    tell(("what", "goal", "found"))
    tell(("---", "---", "---"))
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        root, home = Path(place) / "runs", Path(place) / "home"
        home.mkdir()
        make_runs(root, count)
        long = make_long(root, "long", exchanges)
        make_long(root, "huge", 10 * exchanges).finish("finished")
        write_log(long, size)
        with served(root, home) as (link, process):
            base = link.partition("/?")[0]
            browser = playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
            page = browser.new_context().new_page()
            page.goto(f"{base}/help?{link.partition('?')[2]}")
            first = seconds(lambda: open_list(page, base, count + 2))
            again = st.median(
                seconds(lambda: open_list(page, base, count + 2)) for _ in range(5)
            )
            tell((f"list of {count:,} runs, again / first time",
                         "1 s / 3 s", f"{again:.2f} s / {first:.2f} s"))  # fmt: skip
            keys = [page.evaluate(KEYSTROKE) for _ in range(9)]
            tell(("filter keystroke", "100 ms", f"{st.median(keys):.0f} ms"))
            first = seconds(lambda: open_run(page, base, long.id))
            again = st.median(
                seconds(lambda: open_run(page, base, long.id)) for _ in range(5)
            )
            tell((f"run of {exchanges:,} exchanges, first time / again",
                         "2 s", f"{first:.2f} s / {again:.2f} s"))  # fmt: skip
            live = create(str(root), "live")
            live.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
            record = {**RECORD, "rank": 0, "epoch": 0, "samples": 64, "loss": 1.0}
            live.exchanges([{**record, "t": at / 10} for at in range(20)])
            open_run(page, base, live.id)
            late, draws = watch(page, live, 20)
            tell(("event on disk to pixel, median / highest", "200 / 500 ms",
                         f"{st.median(late):.0f} / {max(late):.0f} ms"))  # fmt: skip
            open_run(page, base, long.id)
            _, draws = watch(page, long, 5)
            tell(("draw after an update of the long run", "50 ms",
                         f"{st.median(draws):.0f} ms"))  # fmt: skip
            found = f"{base}/runs/runs/{long.id}/logs/found?q=needle"
            hit = seconds(lambda: search(page, found, is_first=True))
            every = seconds(lambda: search(page, found, is_first=False))
            tell((f"search in {size / 1e9:g} GB of logs, first hit / all",
                         "0.5 s / 5 s", f"{hit:.2f} s / {every:.2f} s"))  # fmt: skip
            ended = next(p.name for p in root.iterdir() if "higgs" in p.name)
            open_run(page, base, ended)
            idle = share(process, 10, lambda: None)
            open_run(page, base, live.id)
            busy = share(
                process, 10, lambda: live.exchanges([{**record, "t": live.seconds}])
            )
            tell(("server, page of a run at rest / of a live one",
                         "0 % / below 1 %", f"{idle:.1f} / {busy:.1f} %"))  # fmt: skip
            # A browser has six connections to a server: each page is one of its own.
            huge = next(p.name for p in root.iterdir() if "huge" in p.name)
            for _ in range(9):
                other = browser.new_context().new_page()
                other.goto(f"{base}/help?{link.partition('?')[2]}")
                open_run(other, base, huge)
            memory = process.memory_info().rss / 1e6
            tell((f"memory, 10 pages, 9 of them of a run of {10 * exchanges:,} "
                  "exchanges", "300 MB", f"{memory:.0f} MB"))  # fmt: skip
            browser.close()
            live.finish("finished")
            long.finish("finished")
            cost = Cost(root.parent, playwright.chromium, chromium)
            cost.measure(*((40, 1) if is_quick else (160, 5)))
            tell(("training alone / watched by a program / in chromium, samples/s",
                  "within 1 %", in_words(cost.speeds, 0)))  # fmt: skip
            tell(("processor time of the machine for the page: program / chromium",
                  "below 1 %", in_words(cost.shares, 2)))  # fmt: skip


if __name__ == "__main__":
    main()
