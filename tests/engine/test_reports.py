"""Reports of a server to the controller, with any JSON and bodies of any length.

Only who has the run's secret can send them. But servers may be on other machines.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.engine.controller.servers import ServerGone, Servers
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.server.center import Center
from shoal.engine.server.checkpoint import pack_checkpoint, read_checkpoint
from shoal.engine.server.report_checks import check_report
from shoal.engine.server.reports import (
    SMALL_METRICS,
    EpochTotals,
    pack_center,
    read_center,
    read_epoch,
    read_records,
)
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.fields import MOST
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.server_to_controller import (
    Exchanges,
    read_report,
)
from shoal.engine.transport.messages.server_to_worker import RunState
from shoal.engine.transport.messages.state_reports import (
    CenterShown,
    EpochEnded,
    RestartState,
)
from shoal.wire.frames import BadFrame, Head, unpack_head
from tests.engine.false_peers import frame, saying
from tests.engine.test_messages import hostile
from tests.engine.test_servers import LIMIT_S, FakePool, Notes, pool
from tests.engine.test_standby import setup
from tests.simulation.failover.processes import server_spec

__all__ = ["pool"]

SPEC: ServerSpec = server_spec(setup("diloco", has_standby=False))
SUMS = np.zeros(SPEC.sizes.metrics)
STATE = RunState(version=1, lineage=0, clock=1, workers=1, learning_rate=None)
FIELDS: dict[str, Any] = {
    "state": STATE,
    "size": SPEC.sizes.vector,
    "statistics": SPEC.sizes.statistics,
}
RECORD = [0.5, 0, 0, 8, 2, 1, 1, 0.1, 0.1, 0.0, 0.1, SUMS.tolist()]


def restart() -> tuple[Report, bytes]:
    sequencer = Sequencer(SPEC.rules)
    sequencer.proceed(0)
    center = Center(SPEC.strategy, SPEC.vector.copy(), SPEC.statistics.copy())
    totals = EpochTotals(SPEC.sizes.metrics)
    totals.adopt({0: SUMS})
    report, parts = pack_checkpoint(sequencer, center, totals, b"optimizer", 0)
    return report, b"".join(parts)


def good() -> dict[str, tuple[Head, bytes]]:
    center = b"".join(pack_center(SPEC.vector, SPEC.statistics, None))
    reports: list[tuple[Report, bytes]] = [
        (EpochEnded(epoch=0, rows=8, **FIELDS), center + SUMS.tobytes()),
        (CenterShown(samples=8, **FIELDS), center),
        (Exchanges(records=[RECORD, [*RECORD[:-1], None]]), SUMS.tobytes()),
        restart(),
    ]
    packed = ((json.dumps(report.pack()).encode(), body) for report, body in reports)
    return {head["kind"]: (head, b) for a, b in packed for head in [unpack_head(a)]}


GOOD = good()


def receive(head: Head, body: bytes) -> None:
    """What the controller does with a report.

    Raises:
        BadFrame: It is refused.
    """
    report = read_report(head)
    check_report(report, len(body), SPEC)
    content = memoryview(body)
    match report:
        case EpochEnded():
            assert read_epoch(report, content).epoch < SPEC.rules.epochs
        case CenterShown():
            assert read_center(report, content)[0].size == SPEC.sizes.vector
        case Exchanges():
            for record in read_records(report, content)[0]:
                assert (np.abs([*record[:-1]]) < MOST).all()
        case RestartState():
            checkpoint = read_checkpoint(report, content)
            assert checkpoint.open_sequencer(SPEC.rules).upcoming >= 0
            assert checkpoint.at_least(3).sequencer["lineage"] >= 3
        case _:
            pytest.fail(f"{report} is no report of these")


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a head, but for its kind."""
    pairs = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list)
        else ()
    )  # fmt: skip
    for key, inner in pairs:
        if place or key != "kind":
            yield (*place, key)
            yield from places(inner, (*place, key))


PLACES = [(kind, p) for kind, (head, _) in GOOD.items() for p in places(head)]


@pytest.mark.parametrize("kind", GOOD)
def test_what_a_server_reports_is_taken(kind: str) -> None:
    receive(*GOOD[kind])


def test_records_have_the_first_of_many_metrics() -> None:
    sizes = replace(SPEC.sizes, metrics=SMALL_METRICS + 9)
    spec = replace(SPEC, sizes=sizes)
    for length, is_right in ((SMALL_METRICS, True), (SMALL_METRICS + 9, False)):
        report = Exchanges(records=[[*RECORD[:-1], [0.0] * length]])
        with nullcontext() if is_right else pytest.raises(BadFrame, match="sums"):
            check_report(report, 0, spec)


@pytest.mark.parametrize(
    "closed", [[-(10**12), 1, 8], [0, 10**12, 8], [0, "1", 8], [0, 1], 7]
)
def test_complete_epochs_are_epochs_of_the_run(closed: Any) -> None:
    """A range may name more epochs than memory holds."""
    head, body = GOOD["restart"]
    changed = json.loads(json.dumps(head))
    changed["sequencer"]["epochs"]["ledger"]["closed"] = [closed]
    with pytest.raises(BadFrame):
        receive(changed, body)


@settings(max_examples=600)
@given(place=st.sampled_from(PLACES), value=hostile)
@example(place=("records", ("records", 0, 7)), value=-(1 << 63) - 1)
@example(place=("records", ("records", 0, 0)), value=1e300)
def test_any_value_in_any_place_is_refused_or_read(
    place: tuple[str, tuple[Any, ...]], value: Any
) -> None:
    kind, (*outer, key) = place
    head, body = GOOD[kind]
    head = copy.deepcopy(head)
    inner: Any = head
    for one in outer:
        inner = inner[one]
    inner[key] = value
    try:
        receive(head, body)
    except BadFrame:
        return


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("more", [-8, -1, 1])
def test_a_body_of_another_length_is_refused(kind: str, more: int) -> None:
    head, body = GOOD[kind]
    if kind == "restart":  # the state of an optimizer follows, of any length
        body, more = body[: -len(b"optimizer")], min(more, -1)
    body = body[:more] if more < 0 else body + bytes(more)
    with pytest.raises(BadFrame, match=kind):
        receive(head, body)


EPOCH, BODY = GOOD["epoch"]
TOLD: dict[str, bytes] = {
    "half a center": frame(EPOCH, BODY[:-8]),
    "an epoch of no run": frame({**EPOCH, "epoch": 10**9}, BODY),
    "an infinite epoch": frame({**EPOCH, "epoch": float("inf")}, BODY),
    "records of a list": frame({"kind": "records", "records": [[1]]}),
    "5,000 digits": frame('{"kind": "epoch", "epoch": ' + "9" * 5000 + "}"),
    "deep": frame('{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "a kind of nobody": frame({"kind": "push"}),
    "another magic": b"HTTP/1.1 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("what", TOLD)
def test_a_server_that_cannot_be_understood_counts_as_lost(
    what: str, pool: FakePool
) -> None:
    """So that the controller ends its process, and starts another."""
    with saying(TOLD[what], secret=SPEC.secret) as address:
        pair: Any = SimpleNamespace(
            **{name: getattr(pool, name) for name in ("leader", "name", "server")},
            standby="", address=address,
        )  # fmt: skip
        processes: Any = pool
        observer: Any = Notes()
        servers = Servers(processes, pair, observer, 1, list, has_standby=False)
        servers.start(SPEC)
        servers.connect(LIMIT_S, lambda: None)
        with pytest.raises(ServerGone, match="sent what no server of this run sends"):
            servers.receive(LIMIT_S)
        servers.close()
