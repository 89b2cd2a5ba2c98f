"""Bugs put into server and standby on purpose: the simulation finds each of them.

What takes it thousands of schedules has a test of its own in `tests/engine`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from shoal.engine.coordination.rounds import Round
from shoal.engine.server.primary import Primary
from shoal.engine.server.replica import Replica
from shoal.engine.server.replication import Replication
from shoal.engine.server.reports import ReportChannel
from shoal.engine.server.standby import Standby
from shoal.engine.transport.listener import Peer
from shoal.engine.transport.messages.events import Overdue
from shoal.engine.transport.messages.worker_to_server import WorkerRequest
from shoal.engine.worker.client import ServerClient
from shoal.engine.worker.gradient_loop import GradientLoop
from tests.simulation.failover import FailoverRun, draw
from tests.simulation.failover.network import Wire
from tests.simulation.protocol import Violation

MOST_SEEDS = 300

# Seeds that have found what takes many of them. They only save time:
# where one finds nothing any more, all are tried.
KNOWN_SEEDS = {
    "sends_vectors_that_have_changed": 124,
    "blames_workers_for_what_its_standby_does": 198,
    "loses_the_steps_taken_during_an_exchange": 36,
    "merges_what_was_computed_for_a_larger_step": 103,
    "computes_nothing_anew": 103,
    "closes_an_overdue_round_alone": 274,
}
Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[plant.__name__] = plant
    return plant


def before(patch: Patch, kind: type, name: str, spoil: Callable[..., None]) -> None:
    """Does something before a method."""
    original = getattr(kind, name)

    def spoilt(self: Any, *args: Any) -> Any:
        spoil(self, *args)
        return original(self, *args)

    patch.setattr(kind, name, spoilt)


# ------------------------------------------------------------ known before told


@mutant
def answers_before_the_standby_knows(patch: Patch) -> None:
    def send(self: Any, peer: Peer, message: Any, *body: Any) -> None:
        self._connections.send(peer, message, *body)

    patch.setattr(Replication, "send", send)


@mutant
def tells_the_standby_after_the_event(patch: Patch) -> None:
    def do(self: Any, event: Any, session: Any = None, blob: Any = b"") -> None:
        entry = self.replica.enter(event, 0.0)
        self._carry_out(self.replica.handle(entry, blob))
        self._replication.log(event, 0.0, session, blob)

    patch.setattr(Primary, "_do", do)


@mutant
def goes_on_when_its_standby_is_lost(patch: Patch) -> None:
    def lost(self: Any) -> None:
        self.peer = self._asked = None
        self._let_go()

    patch.setattr(Replication, "lost", lost)


@mutant
def sends_vectors_that_have_changed(patch: Patch) -> None:
    patch.setattr(Wire, "keep_output", lambda self: None)


@mutant
def blames_workers_for_what_its_standby_does(patch: Patch) -> None:
    patch.setattr(Replication, "waiting", property(lambda self: set()))


# -------------------------------------------------------------- what it knows


@mutant
def follows_without_vectors(patch: Patch) -> None:
    original = Standby._read

    def read(self: Any, head: Any, body: Any) -> Any:
        count = 0 if head.get("is_mapped") else int(head.get("vectors", 0))
        nothing = bytes(count) + bytes(body[count:])
        return original(self, head, memoryview(nothing))

    patch.setattr(Standby, "_read", read)


@mutant
def takes_over_without_the_numbers_of_questions(patch: Patch) -> None:
    def forget(server: Any) -> None:
        for session in server.replica.sessions.values() if server._failover else ():
            session.question = -1

    before(patch, Primary, "begin", forget)


@mutant
def takes_over_without_its_answers(patch: Patch) -> None:
    def forget(server: Any) -> None:
        for session in server.replica.sessions.values() if server._failover else ():
            session.answer = None

    before(patch, Primary, "begin", forget)


@mutant
def joins_without_the_center(patch: Patch) -> None:
    def spoil(replica: Any, found: Any) -> None:
        found["center"]["vector"] = replica.spec.vector.copy()

    before(patch, Replica, "thaw", spoil)


# -------------------------------------------------------------- the controller


@mutant
def reports_again_what_was_heard(patch: Patch) -> None:
    patch.setattr(ReportChannel, "forget", lambda self, heard: None)


@mutant
def keeps_no_reports(patch: Patch) -> None:
    patch.setattr(ReportChannel, "keep", lambda self, head, *body: None)


# ----------------------------------------------------------------- the workers


@mutant
def forgets_who_called_meanwhile(patch: Patch) -> None:
    def forget(server: Any) -> None:
        if server._failover:
            server._failover.callers.clear()

    before(patch, Primary, "begin", forget)


@mutant
def goes_back_without_its_message(patch: Patch) -> None:
    original = ServerClient._go_back

    def go_back(self: Any, error: Any) -> None:
        self.buffers.up[:] = bytes(len(self.buffers.up))
        original(self, error)

    patch.setattr(ServerClient, "_go_back", go_back)


@mutant
def loses_the_steps_taken_during_an_exchange(patch: Patch) -> None:
    original = ServerClient.catch_up

    def catch_up(self: Any, local: Any, statistics: Any) -> bool:
        return original(self, self._weights._pushed, statistics)

    patch.setattr(ServerClient, "catch_up", catch_up)


# ----------------------------------------------------------- what a step is made of


@mutant
def merges_what_was_computed_for_a_larger_step(patch: Patch) -> None:
    patch.setattr(Round, "outdated", lambda _: [])


@mutant
def computes_nothing_anew(patch: Patch) -> None:
    def learn_again(self: Any, part: Any, sums: Any) -> Any:
        return part._replace(weight=part.weight._replace(assumed=sums))

    patch.setattr(GradientLoop, "_learn_again", learn_again)


# ------------------------------------------------------------ quorum and grace


@mutant
def closes_an_overdue_round_alone(patch: Patch) -> None:
    original = Replication.log

    def log(self: Any, event: Any, *bodies: Any) -> None:
        if not isinstance(event, Overdue):
            original(self, event, *bodies)

    patch.setattr(Replication, "log", log)


@mutant
def asks_something_new_when_it_comes_back(patch: Patch) -> None:
    original, numbers = WorkerRequest.pack, itertools.count(1)

    def pack(self: Any) -> Any:
        return {**original(self), "question": next(numbers)}

    patch.setattr(WorkerRequest, "pack", pack)


def catch(known: int = 0, most: int = MOST_SEEDS) -> int:
    """The known seed if it finds the bug, otherwise the first that does."""
    for seed in (known, *range(most)):
        try:
            FailoverRun(draw(seed)).run()
        except Violation:
            return seed
    return -1


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    assert catch(KNOWN_SEEDS.get(name, 0)) >= 0
