"""Many runs in one process: does any of them leave something behind?

Run: `make soak`, or `python -m benchmarks.soak --quick`. After every fit it looks at
this process and at the folders that Shoal may write to. From the 50th fit on nothing
may grow: through the values goes the line of Theil and Sen (the median slope of all
pairs, which a few odd values do not bend), and even the upper end of its 95 % interval
(Kendall's), times the fits that are left, must be below a bound. `--plain` does the
same with `model.fit` of Keras and two new models a time, to tell whose memory it is.
`--warm` trains 1,000 times on the same worker processes, by `shoal.Session`, and looks
at their memory as well; it trains the same two models on and on, because Keras keeps a
little of each model that was ever made.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

MIB = 1 << 20
STRATEGIES = ("aeasgd", "all_reduce")
ROWS, EPOCHS = 2048, 2
PICTURE = Path(__file__).parents[1] / "docs/assets/soak.png"
WARM = PICTURE.with_name("soak-warm.png")
BOUNDS = {
    "memory_mib": 4.0, "workers_mib": 8.0, "descriptors": 0.5, "threads": 0.5,
    "processes": 0.5, "files": 0.5,
}  # fmt: skip
"""Highest growth of each count from the 50th fit to the last one."""


class Look(NamedTuple):
    """The state after a fit.

    Args:
        seconds: The fit took.
        memory_mib: Memory of this process, see `memory_of`, without garbage.
        workers_mib: Memory of its children; 0 where none is left.
        descriptors: Open file descriptors.
        threads: Threads of this process, those of libraries included.
        processes: Children and their children, zombies included.
        files: Files of Shoal in shared memory and in the temporary folder.
    """

    seconds: float
    memory_mib: float
    workers_mib: float
    descriptors: int
    threads: int
    processes: int
    files: int


class Growth(NamedTuple):
    """Values at the end less those at the beginning, by a straight line.

    Args:
        middle: Growth by the median slope.
        low: Growth by the lower end of its 95 % interval.
        high: Growth by the upper end.
    """

    middle: float
    low: float
    high: float


def growth(values: Sequence[float]) -> Growth:
    """Fits a line: Theil and Sen's slope, and its interval by Kendall's variance.

    Example:
        >>> growth([1.0, 2.0, 3.0, 4.0]).middle, growth([5.0] * 50)
        (3.0, Growth(middle=0.0, low=0.0, high=0.0))
    """
    count = len(values)
    slopes = sorted(
        (values[j] - values[i]) / (j - i) for i in range(count) for j in range(i)
    )
    spread = 1.96 * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    found = (float(np.median(slopes)), slopes[low], slopes[high])
    return Growth(*(slope * (count - 1) + 0.0 for slope in found))


def look(seconds: float, began: float) -> Look:
    """Counts what exists now; files older than this program are not its own."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # returns free memory that the C library keeps
        trim(0)
    process = psutil.Process()
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    children = process.children(recursive=True)
    files = [p for folder in folders for p in folder.glob("*shoal*")]
    return Look(
        seconds=seconds,
        memory_mib=memory_of(process) / MIB,
        workers_mib=sum(map(memory_of, children)) / MIB,
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        processes=len(children),
        files=sum(is_since(path, began) for path in files),
    )


def memory_of(process: psutil.Process) -> int:
    """Resident bytes of a process, 0 if it has just ended.

    On Linux without those of mapped files: the system takes their pages and gives
    them back as it likes, so that a program that stands still seems to grow.
    """
    try:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        return process.memory_info().rss
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return 0


def is_since(path: Path, began: float) -> bool:
    """Whether a file exists, and was made after a time."""
    try:
        return path.stat().st_ctime >= began
    except FileNotFoundError:
        return False


def make() -> Any:
    """A small model."""
    import keras

    net = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return net


def train(number: int, fit: Callable[..., Any] | None, models: Sequence[Any]) -> None:
    """One fit with a run folder, validation and a callback.

    Args:
        number: Number of the fit.
        fit: The `fit` of `shoal` or a session; None for that of Keras.
        models: Models to train in turn; empty for a new one each time.
    """
    import keras

    import shoal

    random = np.random.default_rng(number)
    x = random.standard_normal((ROWS, 16), np.float32)
    y = (x[:, 0] > x[:, 1]).astype("int32")
    given: dict[str, Any] = {
        "epochs": EPOCHS, "batch_size": 32, "verbose": 0, "validation_data": (x, y),
        "callbacks": [keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None)],
    }  # fmt: skip
    if fit is None:
        make().fit(x, y, **given)
        make().fit(x, y, **given)
        return
    # A longer period would warn at each fit: there is little data.
    elastic = shoal.strategies.AEASGD(period=5)
    strategy = (elastic, "all_reduce")[number % len(STRATEGIES)]
    model = models[number % len(models)] if models else make()
    history = fit(model, x, y, strategy=strategy, workers=2, **given)
    committed = history.run.report.get("samples_committed", ROWS * EPOCHS)
    if committed != ROWS * EPOCHS:
        sys.exit(f"fit {number} committed {committed} samples, not {ROWS * EPOCHS}")


def judge(looks: Sequence[Look], settle: int) -> dict[str, tuple[Growth, bool]]:
    """Whether each count stays at its value of fit `settle`."""
    later = looks[settle - 1 :]
    found: dict[str, tuple[Growth, bool]] = {}
    for name, bound in BOUNDS.items():
        grown = growth([float(getattr(each, name)) for each in later])
        found[name] = (grown, grown.high < bound)
    return found


def report(looks: Sequence[Look], settle: int) -> bool:
    """Prints two tables; returns whether nothing grows."""
    every = max(10, len(looks) // 20)
    shown = sorted({0, *range(every - 1, len(looks), every), settle - 1})
    print(f"\n{'fit':>5} {'seconds':>8}", *(f"{name:>12}" for name in BOUNDS))
    for at in shown:
        each = looks[at]
        values = (f"{getattr(each, name):>12.0f}" for name in BOUNDS)
        print(f"{at + 1:>5} {each.seconds:>8.2f}", *values)
    print(f"\nfrom fit {settle} to fit {len(looks)}")
    print(f"{'':12} {'grows by':>9}  {'95 % interval':>20}  {'at most':>8}")
    verdicts = judge(looks, settle)
    for name, (grown, is_well) in verdicts.items():
        interval = f"{grown.low:.2f} to {grown.high:.2f}"
        print(
            f"{name:12} {grown.middle:>9.2f}  {interval:>20}  {BOUNDS[name]:>8}  "
            f"{'well' if is_well else 'GROWS'}"
        )
    return all(is_well for _, is_well in verdicts.values())


def draw(looks: Sequence[Look], settle: int, out: Path) -> None:
    """Writes the picture: memory above, all counts below."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    fits = range(1, len(looks) + 1)
    above.plot(fits, [each.memory_mib for each in looks], color="#0072B2")
    above.set_ylabel("resident memory, MiB")
    above.set_ylim(0, 1.2 * max(each.memory_mib for each in looks))
    colours = {"descriptors": "#E69F00", "threads": "#009E73", "processes": "#CC79A7",
               "files": "#D55E00"}  # fmt: skip
    for name, colour in colours.items():
        values = [getattr(each, name) for each in looks]
        below.plot(fits, values, color=colour, label=name)
    below.set_ylim(-1, 1.3 * max(each.threads for each in looks))
    below.set_ylabel("how many")
    below.set_xlabel(f"fits in one process ({' and '.join(STRATEGIES)} in turn)")
    below.legend(frameon=False, fontsize=9, ncols=4, loc="upper left")
    for axes in (above, below):
        axes.axvline(settle, color="#999999", linewidth=1, linestyle="--")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=120, format="png")


@contextmanager
def fitting(options: argparse.Namespace) -> Generator[Callable[..., Any] | None]:
    """The function that trains: of a session, of Shoal, or None for that of Keras."""
    import shoal

    if options.plain:
        yield None
    elif options.warm:
        with shoal.Session() as session:
            yield session.fit
    else:
        yield shoal.fit


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, help="default 100, 1,000 if warm")
    parser.add_argument("--settle", type=int, default=50, help="fits before the line")
    parser.add_argument("--quick", action="store_true", help="12 fits, settled after 6")
    parser.add_argument("--plain", action="store_true", help="fit of Keras, no Shoal")
    parser.add_argument("--warm", action="store_true", help="fits of one session")
    parser.add_argument("--out", type=Path, help="of the picture; not with --quick")
    options = parser.parse_args()
    fits, settle = options.fits or (1000 if options.warm else 100), options.settle
    if options.quick:
        fits, settle = 12, 6
    if not 1 <= settle <= fits - 3:
        parser.error(f"--settle {settle} leaves no 4 of {fits} fits for a line")
    began, looks = time.time(), list[Look]()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for variable, name in (("TMPDIR", "tmp"), ("SHOAL_RUNS", "runs"),
                               ("SHOAL_CACHE", "cache")):  # fmt: skip
            os.environ[variable] = str(Path(folder, name))
            Path(folder, name).mkdir()
        tempfile.tempdir = None  # Python reads the environment again
        with fitting(options) as fit:
            models = [make() for _ in STRATEGIES] if options.warm else []
            for number in range(fits):
                called = time.perf_counter()
                train(number, fit, models)
                looks.append(look(time.perf_counter() - called, began))
                if (number + 1) % 10 == 0:
                    print(f"{number + 1} of {fits} fits", flush=True)
    is_well = report(looks, settle)
    if not options.quick:
        draw(looks, settle, options.out or (WARM if options.warm else PICTURE))
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
