"""Each worker's optimizer state in the checkpoints of a run, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.engine.controller.resume_point import ResumePoint
from shoal.engine.environment import SYSTEM
from shoal.engine.server.checkpoint import OptimizerSnapshot, ServerCheckpoint
from shoal.engine.server.effects import AnswerWorker, Raise, TellController
from shoal.engine.server.replica import Replica
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.messages.events import read_event
from shoal.engine.worker.spec import WorkerSpec
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from tests.support.inline import Setup

PROBLEM = LeastSquares.seeded(rows=4096)


class Stand:
    """A replica; the test acts as its workers and controller."""

    def __init__(self, name: str = "aeasgd", workers: int = 3) -> None:
        setup = Setup.linear(PROBLEM, get(name), workers=workers)
        sizes = Sizes(
            vector=setup.vector.size,
            statistics=setup.statistics.size,
            metrics=setup.metrics,
            digest="stand",
        )
        spec = ServerSpec(
            secret=bytes(32),
            strategy=setup.strategy,
            rules=setup.rules(),
            sizes=sizes,
            vector=setup.vector,
            statistics=setup.statistics,
        )
        self.replica = Replica(spec, SYSTEM.clock)
        self.reports: list[tuple[Any, bytes]] = []
        self.answers: dict[int, Any] = {}
        self.questions = dict.fromkeys(range(workers), 0)
        for rank in range(workers):
            known = {"token": f"t{rank}", "node": "here", "pid": rank}
            self.happens("join", hint=rank, known=known)
        self.command("proceed", epoch=0)
        for rank in range(workers):
            self.says(rank, "ready")

    def happens(self, event: str, blob: bytes = b"", **fields: Any) -> None:
        found, at = read_event({"event": event, "at": 0.0, **fields})
        for effect in self.replica.handle(self.replica.enter(found, at), blob):
            match effect:
                case AnswerWorker(session, message, _):
                    self.answers[session.rank] = message
                case TellController(report, body):
                    self.reports.append((report, b"".join(body)))
                case Raise(error):
                    raise error

    def command(self, kind: str, **fields: Any) -> None:
        self.happens("command", kind=kind, **fields)

    def says(self, rank: int, kind: str, blob: bytes = b"", **fields: Any) -> None:
        self.questions[rank] += 1
        incarnation = self.replica.sessions[rank].incarnation
        who = {"rank": rank, "incarnation": incarnation}
        self.happens(kind, blob, question=self.questions[rank], **who, **fields)

    def asked(self) -> list[int]:
        """Every worker pushes once; returns those that are asked for their state."""
        found: list[int] = []
        for rank in list(self.replica.sessions):
            piece = self.replica.sequencer.ledger.held(rank)[0]
            self.says(
                rank, "push", lineage=0, sequence=self.questions[rank], steps=1,
                samples=float(piece.rows), pieces=[list(piece)], doubt=0, group=0,
                times=[0.0] * 4, rows=piece.rows, own=[], assumed=[],
            )  # fmt: skip
            if self.answers[rank].wants_snapshot:
                found.append(rank)
        return found

    def told(self, kind: str) -> list[tuple[Any, bytes]]:
        return [report for report in self.reports if report[0].kind == kind]


def test_each_checkpoint_asks_the_next_worker_in_turn() -> None:
    stand = Stand()
    for turn in (0, 1, 2, 0):
        stand.command("checkpoint", wants_snapshot=True)
        assert stand.asked() == [turn]
        stand.says(turn, "snapshot", b"of rank %d" % turn)
        report, blob = stand.told("snapshot")[-1]
        rank, incarnation, sequence = report.sender
        assert (rank, blob) == (turn, b"of rank %d" % turn)
        assert incarnation == 1
        assert sequence == stand.replica.sequencer.members[turn].sequence > 0
    assert len(stand.told("restart")) == 4


def test_a_lost_worker_is_passed_over() -> None:
    stand = Stand()
    stand.command("checkpoint", wants_snapshot=True)
    assert stand.asked() == [0]
    stand.says(0, "snapshot", b"0")
    stand.says(1, "leave", reason="killed", is_hung=False)
    stand.command("checkpoint", wants_snapshot=True)
    assert stand.asked() == [2]


def test_fit_returns_the_state_of_the_first_rank() -> None:
    stand = Stand()
    for turn in (0, 1):
        stand.command("checkpoint", wants_snapshot=True)
        assert stand.asked() == [turn]
        if turn == 0:
            stand.says(0, "snapshot", b"earlier")
    stand.command("state")
    stand.says(1, "snapshot", b"of rank 1")
    assert stand.told("optimizer") == []
    assert [report.sender.rank for report, _ in stand.told("snapshot")] == [0, 1]
    assert stand.asked() == [0]
    stand.says(0, "snapshot", b"of rank 0")
    [(report, blob)] = stand.told("optimizer")
    assert (report.sender.rank, blob) == (0, b"of rank 0")


def test_a_worker_asked_at_the_end_may_still_send_its_state() -> None:
    stand = Stand()
    stand.command("checkpoint", wants_snapshot=True)
    assert stand.asked() == [0]
    stand.command("finish")
    stand.says(0, "snapshot", b"too late")
    assert stand.answers[0].kind == "stored"
    assert stand.replica.blob == b""
    stand.says(0, "need")
    assert stand.answers[0].kind == "done"


def test_a_checkpoint_without_snapshot_asks_no_worker() -> None:
    stand = Stand()
    stand.command("checkpoint", wants_snapshot=False)
    assert stand.asked() == []


@pytest.fixture
def resume_point() -> ResumePoint:
    """The resume point of a run without checkpoint."""
    nothing: Any = None
    part = WorkerSpec(
        server_address=nothing,
        strategy=nothing,
        compute=nothing,
        order=nothing,
        open_backend=nothing,
        open_source=nothing,
        exchanges_gradients=False,
    )
    stand = Stand()
    return ResumePoint(stand.replica.spec, lambda _hint, _token: part)


def test_a_replacement_gets_the_optimizer_state_of_its_rank(
    resume_point: ResumePoint,
) -> None:
    assert resume_point.worker(0, "token").optimizer == b""
    resume_point.keep_snapshot(1, OptimizerSnapshot(1, 4, b"older"))
    resume_point.keep_snapshot(1, OptimizerSnapshot(2, 9, b"of rank 1"))
    checkpoint = ServerCheckpoint(
        sequencer={"lineage": 0}, arrays={"vector": np.zeros(2, "f4")}
    )
    kept = resume_point.keep(checkpoint)
    assert kept.snapshots == {1: OptimizerSnapshot(2, 9, b"of rank 1")}
    again = ResumePoint(
        resume_point.server, lambda *given: resume_point._make_worker(*given)
    )
    for one in (resume_point, again):
        assert one.worker(1, "token").optimizer == b"of rank 1"
        assert one.worker(0, "token").optimizer == b""
        assert one.part.checkpoint is not None
        assert one.part.checkpoint.snapshots == {}
