"""`shoal.fit` with each worker on a host of its own, behind a cable; as root.

Hosts are network namespaces: processor, memory and files are those of this machine.
"""

from __future__ import annotations

import json
import time
from typing import Any

import shoal
from benchmarks.entrants.keras_fit import Marks
from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS
from shoal.engine.controller.process_pool import ProcessPool
from shoal.launchers.base import Role
from shoal.training.early_start import worker_environment_of
from shoal.training.fit_call import FitCall
from shoal.training.run_fit import FitContext, perform
from tests.support.hosts import Cable, Hosts


def fit_on_hosts(cable: Cable | None, **arguments: Any) -> Any:
    """Trains with two workers; returns the history.

    Args:
        cable: Link of each worker's host, None for an unlimited one.
        arguments: Arguments of `shoal.fit`.
    """
    hosts = Hosts(2, cable)

    def through(role: Role) -> list[str]:
        kind, _, number = role.name.rpartition("-")
        if kind != "worker":
            return []
        return ["ip", "netns", "exec", hosts.names[int(number) % 2]]

    pool = ProcessPool(
        worker_environment_of("jax", 2, 1), address=(hosts.address, 0), through=through
    )
    try:
        context = FitContext(began=time.monotonic(), pool=pool)
        given: dict[str, Any] = {"workers": 2, "run": False, "verbose": 0, **arguments}
        return perform(FitCall.of(**given), context)
    finally:
        pool.close()
        hosts.close()


def main() -> None:
    """Trains."""
    given = asked(
        lambda parser: parser.add_argument("--arguments", default="{}"),
        lambda parser: parser.add_argument("--mbit", type=float, default=0.0),
        lambda parser: parser.add_argument("--delay", type=float, default=0.0),
    )
    work, marks = WORKS[given.work], Marks()
    x, y = work.samples(given.rows)
    said = json.loads(given.arguments)
    if isinstance(said["strategy"], dict):
        fields = said["strategy"]
        said["strategy"] = shoal.strategies.get(fields.pop("name"), **fields)
    history = fit_on_hosts(
        Cable(mbit=given.mbit, delay_s=given.delay) if given.mbit else None,
        model=work.make(), x=x, y=y, batch_size=given.batch, epochs=given.epochs,
        callbacks=[marks], **said,
    )  # fmt: skip
    answer(marks.spans, history.history["loss"])


if __name__ == "__main__":
    main()
