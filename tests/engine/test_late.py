"""A late worker at a real server: the others do not wait for it."""

from __future__ import annotations

import threading

import pytest

from shoal.engine.worker.spec import Moment
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from tests.support.inline import Cluster, Setup

pytestmark = pytest.mark.usefixtures("unhurried")

PROBLEM = LeastSquares.seeded(rows=480)
EPOCHS, OTHER, SLOW = 2, 1, 2


class Traffic:
    """Stops one worker until the others have closed some rounds without it.

    Then another one stands until the first has taken part in a round.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds, self.go_on = rounds, threading.Event()
        self.is_back = threading.Event()
        self.stood = 0

    def watch(self, moment: Moment) -> None:
        if moment.rank == SLOW and not self.go_on.is_set():
            self.stood += 1
            assert self.go_on.wait(20)
        if moment.rank == OTHER and self.go_on.is_set():
            assert self.is_back.wait(20)

    def follow(self, cluster: Cluster) -> None:
        """Reads the reports of the server."""
        keep = cluster._keep

        def see(head: dict[str, object], *given: object, **more: object) -> None:
            keep(head, *given, **more)  # type: ignore[arg-type]
            if any(record.version >= self.rounds for record in cluster._records):
                self.go_on.set()
            if any(record.rank == SLOW for record in cluster._records):
                self.is_back.set()

        cluster._keep = see  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("name", ["local_sgd", "easgd", "diloco"])
@pytest.mark.parametrize("has_standby", [False, True])
def test_a_round_does_not_wait_for_the_slowest(name: str, has_standby: bool) -> None:
    traffic = Traffic(rounds=6)
    given = Setup.linear(
        PROBLEM, get(name, period=4), workers=3, epochs=EPOCHS, quorum=2,
        watch=traffic.watch, has_standby=has_standby,
    )  # fmt: skip
    with Cluster(given) as cluster:
        traffic.follow(cluster)
        outcome = cluster.run()
    assert traffic.stood == 1
    assert [end.rows for end in outcome.epochs] == [PROBLEM.rows] * EPOCHS
    assert [end.metrics[1] for end in outcome.epochs] == [PROBLEM.rows] * EPOCHS
    first = {r.rank for r in outcome.records if r.version < traffic.rounds}
    assert SLOW not in first
    assert traffic.is_back.is_set()
    late = [event for event in outcome.events if event["kind"] == "late"]
    assert late[0]["ranks"] == [SLOW]
    assert "left" not in {event["kind"] for event in outcome.events}
