"""Changes of callbacks reach every worker once, and older values never return."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.coordination.instructions import PushMetadata, Rules
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.environment import SYSTEM
from shoal.engine.server.checkpoint import read_checkpoint
from shoal.engine.server.replica import Replica
from shoal.engine.transport.changes import (
    ATTRIBUTE,
    FIXED,
    OPTIMIZER,
    STATISTICS,
    Change,
    Changes,
    Key,
    stamped,
    unstamped,
)
from shoal.engine.transport.messages.server_to_worker import Answer
from shoal.strategies import get
from shoal.testing.faults import leave
from shoal.testing.problems import LeastSquares
from tests.engine.cases import setup
from tests.engine.test_snapshots import Stand
from tests.engine.test_standby import kill
from tests.support.inline import Cluster, Setup

LEVEL = Key(STATISTICS, "0")
COUNT = Key(OPTIMIZER, "0")


def changed(**fields: float) -> Changes:
    changes = Changes()
    changes.add({LEVEL: np.array([fields["level"]], np.float32)})
    return changes


def told(stand: Stand, rank: int) -> Changes:
    """Changes in the last answer to a worker."""
    answer = stand.replica.sessions[rank].answer
    assert answer is not None
    message, blob = answer
    count = message.changes if isinstance(message, Answer) else 0
    return Changes.read(blob[len(blob) - count :])


def says_statistics(stand: Stand, value: float) -> None:
    for session in stand.replica.sessions.values():
        session.buffers.message_statistics[:] = value


@pytest.mark.parametrize("name", ["aeasgd", "local_sgd", "all_reduce"])
def test_an_older_message_does_not_restore_the_value_before_a_change(name: str) -> None:
    stand = Stand(name, workers=2)
    says_statistics(stand, 1.0)
    stand.happens("command", changed(level=5.0).pack(), kind="changes")
    assert list(stand.replica.center.statistics) == [5.0]
    stand.asked()
    assert list(stand.replica.center.statistics) == [5.0]
    for rank in (0, 1):
        session = stand.replica.sessions[rank]
        assert list(session.buffers.reply_statistics) == [5.0]
        assert told(stand, rank).found[LEVEL].value == 5.0
    # From then on it is a worker's to move again.
    says_statistics(stand, 7.0)
    stand.asked()
    assert list(stand.replica.center.statistics) != [5.0]
    assert not told(stand, 0)


def test_a_rollback_of_all_reduce_keeps_a_callbacks_change() -> None:
    stand = Stand("all_reduce", workers=2)
    stand.asked()
    stand.command("checkpoint")
    stand.asked()
    [rank] = [r for r in (0, 1) if stand.answers[r].wants_snapshot]
    says_statistics(stand, 1.0)
    stand.happens("command", changed(level=5.0).pack(), kind="changes")
    stand.says(rank, "snapshot", b"state")  # of before: it had not heard
    assert list(stand.replica.center.statistics) == [5.0]
    for gone in (0, 1):
        stand.says(gone, "leave", reason="killed", is_hung=False)
    assert stand.told("rollback")
    assert list(stand.replica.center.statistics) == [5.0]


def test_a_joining_worker_gets_all_changes_but_those_in_its_statistics() -> None:
    stand = Stand("aeasgd", workers=1)
    changes = changed(level=5.0)
    changes.add({Key(FIXED, "3"): np.float32(2.0)})
    stand.happens("command", changes.pack(), kind="changes")
    stand.replica.center.statistics[:] = 6.0  # as it was trained since
    known = {"token": "t1", "node": "here", "pid": 1}
    stand.questions[1] = 0
    stand.happens("join", hint=1, known=known)
    stand.says(1, "ready")
    assert list(told(stand, 1).found) == [Key(FIXED, "3")]
    assert list(stand.replica.center.statistics) == [6.0]


def test_a_checkpoint_has_the_serial_number_of_its_changes() -> None:
    """A server with one change applies later ones, and no older one again."""
    stand = Stand("aeasgd", workers=1)
    changes = changed(level=5.0)
    stand.happens("command", changes.pack(), kind="changes")
    stand.replica.center.statistics[:] = 6.0
    stand.command("checkpoint")
    [(head, body)] = stand.told("restart")
    checkpoint = read_checkpoint(head, memoryview(body))
    assert checkpoint.changes == 1
    for known, wanted in ((checkpoint, 6.0), (replace(checkpoint, changes=0), 5.0)):
        spec = replace(stand.replica.spec, changes=changes, checkpoint=known)
        assert list(Replica(spec, SYSTEM.clock).center.statistics) == [wanted]


def test_a_standby_has_the_changes() -> None:
    stand = Stand("aeasgd", workers=1)
    stand.happens("command", changed(level=5.0).pack(), kind="changes")
    other = Replica(stand.replica.spec, SYSTEM.clock)
    other.thaw(stand.replica.freeze())
    assert other.changes == stand.replica.changes
    assert other.sessions[0].told == stand.replica.sessions[0].told


# ------------------------------------------------------------ on real connections


@pytest.mark.parametrize("name", ["aeasgd", "all_reduce", "local_sgd"])
@pytest.mark.parametrize("loss", ["none", "worker", "server"])
def test_every_worker_applies_a_change_whichever_process_is_lost(
    name: str, loss: str
) -> None:
    """The only variable of this optimizer counts steps."""
    changes = Changes()
    changes.add({COUNT: np.int64(1000), LEVEL: np.array([0.5], np.float32)})
    watch = leave(rank=1, step=2) if loss == "worker" else None
    fields: dict[str, Any] = {"watch": watch, "has_standby": loss == "server"}
    with Cluster(setup(name, **fields)) as cluster:
        cluster._link.send({"kind": "changes", "heard": 0}, changes.pack())
        if loss == "server":
            kill(cluster.server, 12, "after")
        outcome = cluster.run()
    state, serial = unstamped(outcome.optimizer_state)
    assert serial == 1
    assert 1000 < int.from_bytes(state, "little") < 1100


def test_changes_reach_workers_with_several_servers() -> None:
    changes = Changes()
    changes.add({COUNT: np.int64(1000), LEVEL: np.array([0.5], np.float32)})
    problem = LeastSquares.seeded(rows=64, size=150)
    given = Setup.linear(problem, get("all_reduce"), workers=2, epochs=2, servers=2)
    with Cluster(given) as cluster:
        cluster._link.send({"kind": "changes", "heard": 0}, changes.pack())
        outcome = cluster.run()
    assert unstamped(outcome.optimizer_state)[1] == 1


# ------------------------------------------------------------------- one by one


def rules(**fields: Any) -> Rules:
    full: dict[str, Any] = {
        "epoch_rows": (12,), "first_epoch": 0, "epochs": 1, "workers": 2, "batch": 4,
        "window": 5, "is_rounds": True, "exchanges_gradients": True,
        "is_elastic": False, **fields,
    }  # fmt: skip
    return Rules(**full)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_step_waits_for_the_controller(workers: int) -> None:
    exchanges_gradients = workers > 1
    sequencer = Sequencer(
        rules(
            workers=workers,
            exchanges_gradients=exchanges_gradients,
            is_rounds=exchanges_gradients,
        )
    )
    members = [sequencer.join(rank) for rank in range(workers)]
    sequencer.pace(-1)
    sequencer.proceed(0)
    for member in members:
        sequencer.ready(member.rank, member.incarnation)
    for step in range(3):
        ledger = sequencer.ledger
        held = [ledger.held(member.rank) for member in members]
        assert sum(piece.rows for pieces in held for piece in pieces) == 4
        for member, pieces in zip(members, held, strict=True):
            who = member.rank, member.incarnation
            sequencer.push(
                PushMetadata(*who, 0, step + 1, tuple(pieces), 1, 4.0 / workers)
            )
        for member in members:
            assert not ledger.held(member.rank)
            answers = sequencer.need(member.rank, member.incarnation)
            assert step == 2 or not answers
        sequencer.pace(step + 1)
    assert sequencer.ledger.committed(0) == 12


def test_without_a_pace_data_is_dealt_as_before() -> None:
    sequencer = Sequencer(
        rules(epoch_rows=(40,), workers=1, exchanges_gradients=False, is_rounds=False)
    )
    member = sequencer.join()
    sequencer.pace(-1)
    sequencer.proceed(0)
    sequencer.ready(member.rank, member.incarnation)
    assert sequencer.ledger.held_rows(0) == 4
    assert sequencer.is_in_step
    sequencer.pace(None)
    sequencer.need(member.rank, member.incarnation)
    assert sequencer.ledger.held_rows(0) > 4
    assert not sequencer.is_in_step


# --------------------------------------------------------------------- as bytes


@given(
    st.dictionaries(
        st.tuples(st.sampled_from([STATISTICS, FIXED]), st.integers(0, 9).map(str)),
        st.tuples(st.integers(1, 5), st.sampled_from(["<f4", "<i8", "|b1", "<f2"])),
        max_size=5,
    )
)
def test_changes_come_back_from_bytes(made: dict[tuple[str, str], Any]) -> None:
    changes = Changes(
        {
            Key(*key): Change(serial, np.ones((2, serial), dtype))
            for key, (serial, dtype) in made.items()
        }
    )
    again = Changes.read(changes.pack())
    assert list(again.found) == list(changes.found)
    for key, change in changes.found.items():
        assert again.found[key].serial == change.serial
        assert again.found[key].value.dtype == change.value.dtype
        np.testing.assert_array_equal(again.found[key].value, change.value)


def test_bytes_that_are_cut_off_are_refused() -> None:
    data = changed(level=5.0).pack()
    with pytest.raises(ValueError, match=r"buffer|changes"):
        Changes.read(data[:-1])


def test_a_state_takes_changes_that_it_lacks_and_those_outside_of_it() -> None:
    changes = changed(level=1.0)
    changes.add({Key(FIXED, "1"): 2.0})
    changes.add({Key(ATTRIBUTE, "model/rate"): 3.0})
    changes.add({Key(FIXED, "2"): 4.0})
    assert [k.place for k in changes.since(3).found] == ["model/rate", "2"]
    assert unstamped(stamped(b"", 4)) == (b"", 0)
