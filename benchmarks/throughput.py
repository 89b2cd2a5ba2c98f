"""Seconds to plain Keras' loss, and samples a second, against Keras and other systems.

Run: `python -m benchmarks.throughput [asynchronous|all_reduce|images|text ...]`. Other
systems are installed into environments of their own when they are first needed;
`--ours` goes without them. See `contest` for how it is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import Aim, Contest, Entrant, keep
from benchmarks.works import WORKS

PLAIN = ("keras.Model.fit, 1 step an execution", "keras.Model.fit, 32 steps")
BEST = ("diloco", "aeasgd", "downpour", "adag", "dynsgd", "eamsgd", "local_sgd")
LIMIT = "limit: two pinned scans, no exchange"
RAY = "Ray Train, torch DDP"
DDP, ELEPHAS = "torch DDP", "Elephas, asynchronous, every epoch"
OFTEN = "Elephas, asynchronous, every batch"
PARALLEL = "Keras DataParallel, two processes"


def _plain(**given: Any) -> list[Entrant]:
    return [
        Entrant(name=name, module="keras_fit", options=("--steps", steps), **given)
        for name, steps in zip(PLAIN, ("1", "32"), strict=True)
    ]


def _ours(strategy: str, **given: Any) -> Entrant:
    options = ("--strategy", strategy)
    return Entrant(name=strategy, module="shoal_fit", options=options, **given)


def _ddp(**given: Any) -> Entrant:
    return Entrant(name=DDP, module="torch_ddp", environment="torch", **given)


def _elephas(name: str, frequency: str, **given: Any) -> Entrant:
    return Entrant(
        name=name, module="elephas_fit", environment="elephas",
        options=("--frequency", frequency),
        variables={"KERAS_BACKEND": "tensorflow", "PYTHONWARNINGS": "ignore"}, **given,
    )  # fmt: skip


def _scans(**given: Any) -> Entrant:
    variables = {
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    }
    return Entrant(name=LIMIT, module="pinned_scans", variables=variables, **given)


def asynchronous(rows: int, *, has_peers: bool) -> list[Contest]:
    """The perceptron at batch 64: all strategies, other systems."""
    given: dict[str, Any] = {"work": "higgs", "batch": 64, "rows": rows}
    entrants = [*_plain(**given), _ours("auto", **given)]
    entrants += [_ours(name, **given) for name in BEST]
    entrants.append(_scans(**given))
    aims = [
        Aim(
            "auto", PLAIN, 1.43, "seconds of plain `fit` to its loss, over these", True
        ),
        Aim("auto", BEST, 0.95, "seconds of the best strategy, over these", True),
        Aim("aeasgd", PLAIN, 1.5, "best plain `fit`"),
        Aim("aeasgd", (LIMIT,), 0.92, "the limit"),
    ]
    if has_peers:
        few = given | {"rows": rows // 8, "epochs": 3}
        entrants += [
            _ddp(**given),
            Entrant(name=RAY, module="ray_train", environment="ray", **given),
            _elephas(ELEPHAS, "epoch", **given),
            _elephas(OFTEN, "batch", **few),
        ]
        aims += [
            Aim("aeasgd", (DDP, RAY), 3.5, "torch DDP, by itself or by Ray Train"),
            Aim("aeasgd", (ELEPHAS, OFTEN), 5, "Elephas at its quickest"),
            Aim("aeasgd", (OFTEN,), 5, "Elephas that exchanges while it trains"),
        ]
    return [Contest("Strategies: perceptron, batch 64", entrants, aims, PLAIN)]


def all_reduce(rows: int, *, has_peers: bool) -> list[Contest]:
    """The perceptron, averaged after every step, at three batch sizes."""
    contests = list[Contest]()
    for batch in (64, 128, 256):
        given: dict[str, Any] = {"work": "higgs", "batch": batch, "rows": rows}
        entrants = [*_plain(**given), _ours("all_reduce", **given)]
        aims = list[Aim]()
        if batch == 256:
            aims.append(Aim("all_reduce", PLAIN, 0.9, "best plain `fit`"))
        if has_peers:
            few = given | {"rows": rows // 4, "epochs": 3}
            entrants += [
                _ddp(**given | {"batch": batch // 2}),
                Entrant(
                    name=PARALLEL, module="keras_data_parallel", environment="keras",
                    **few,
                ),
            ]  # fmt: skip
        if has_peers and batch == 128:
            aims += [
                Aim("all_reduce", (DDP,), 2, "torch DDP"),
                Aim("all_reduce", (PARALLEL,), 5, "Keras DataParallel"),
            ]
        title = f"`all_reduce`: perceptron, batch {batch} of both workers together"
        contests.append(Contest(title, entrants, aims))
    return contests


def images(rows: int, *, has_peers: bool) -> list[Contest]:
    """A small ResNet on CIFAR-10, batch 64."""
    given: dict[str, Any] = {"work": "images", "batch": 64, "rows": rows, "epochs": 3}
    names = ("diloco", "aeasgd", "auto")
    entrants = [*_plain(**given), *(_ours(name, **given) for name in names)]
    entrants.append(_ours("all_reduce", **given | {"batch": 128}))
    aims = [Aim("aeasgd", PLAIN, 1.4, "best plain `fit`")]
    if has_peers:
        entrants.append(_ddp(**given))
        aims.append(Aim("aeasgd", (DDP,), 1.2, "torch DDP"))
    title = "Images: small ResNet on CIFAR-10, batch 64"
    return [Contest(title, entrants, aims, PLAIN)]


def text(rows: int, *, has_peers: bool) -> list[Contest]:
    """EasyDist's LSTM, batch 64."""
    del has_peers
    given: dict[str, Any] = {"work": "text", "batch": 64, "rows": rows}
    names = ("diloco", "aeasgd", "auto")
    entrants = [*_plain(**given), *(_ours(name, **given) for name in names)]
    aims = [Aim("aeasgd", PLAIN, 1.4, "best plain `fit`")]
    title = "Text: LSTM of EasyDist's example, batch 64"
    return [Contest(title, entrants, aims, PLAIN)]


CONTESTS: dict[str, tuple[Callable[..., list[Contest]], str]] = {
    "asynchronous": (asynchronous, "higgs"),
    "all_reduce": (all_reduce, "higgs"),
    "images": (images, "images"),
    "text": (text, "text"),
}


def main() -> None:
    """Prints tables and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contests", nargs="*", metavar="CONTEST", default=[*CONTESTS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ours", action="store_true", help="no other systems")
    parser.add_argument("--quick", action="store_true", help="1 repeat, fewer rows")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    unknown = {*given.contests} - {*CONTESTS}
    if unknown:
        parser.error(
            f"no contest {', '.join(unknown)}; there are: {', '.join(CONTESTS)}"
        )
    held = list[Contest]()
    for name in given.contests:
        make, work = CONTESTS[name]
        rows = WORKS[work].rows // (4 if given.quick else 1)
        WORKS[work].samples(1)  # fills caches of data before the clock starts
        for contest in make(rows, has_peers=not given.ours):
            print(f"== {contest.title}", flush=True)
            contest.hold(1 if given.quick else given.repeats)
            held.append(contest)
    keep(held, given.out)


if __name__ == "__main__":
    main()
