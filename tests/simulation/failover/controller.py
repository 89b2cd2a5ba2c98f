"""A simulated controller: its messages, and what it does about lost processes.

The protocol of `controller` and `servers` of `shoal.engine.controller`, without their
clocks. Where a run has neither leader nor standby left it ends: what follows from
checkpoints is the business of `tests.simulation.protocol`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

from shoal.engine.server.primary import JOINED_AGAIN
from shoal.engine.server.records import EpochEnd, Record
from shoal.engine.server.reports import read_epoch, read_records
from shoal.engine.transport.messages.server_to_controller import Exchanges
from shoal.engine.transport.messages.state_reports import EpochEnded
from shoal.errors import ExchangeTimeout
from shoal.wire.frames import Head
from tests.simulation.controller import Controller
from tests.simulation.failover.network import Wire
from tests.simulation.violation import Violation, require


class Processes(Protocol):
    """Actions of a controller on processes."""

    @property
    def living(self) -> Sequence[str]:
        """Tokens of workers whose process lives."""
        ...

    def call(self, *, is_leader: bool) -> Wire:
        """Calls the leader or the standby; raises ExchangeTimeout."""
        ...

    def end_leader(self) -> None:
        """Ends the leading server's process, if it has not ended."""
        ...

    def end_standby(self) -> None:
        """Ends the standby's process, if it has not ended."""
        ...

    def promote(self) -> None:
        """Makes the standby's process the leader's."""
        ...

    def start_worker(self, hint: int) -> None:
        """Starts a worker."""
        ...

    def end_worker(self, token: str) -> None:
        """Ends a worker's process, if it has not ended."""
        ...


@final
class SimController(Controller[str]):
    """The controller of one run.

    Args:
        processes: Processes of the run.
        epochs: Passes.
    """

    def __init__(self, processes: Processes, epochs: int) -> None:
        super().__init__(0, epochs)
        self._processes = processes
        self.wire: Wire | None = processes.call(is_leader=True)
        self.standby_peer: Wire | None = None
        self.wants_standby, self.generation = True, 0
        self.heard = 0
        self.is_lost = self.has_rolled_back = False
        self.has_lost_workers = False
        self.is_called = False
        """Whether the standby that was started last has called its server."""
        self.ends: dict[int, EpochEnd] = {}
        self.records: list[Record] = []
        self._asked: dict[str, Head] = {}
        self._tokens: dict[tuple[int, int], str] = {}
        self.command("control")
        self._proceed(0)

    # ---------------------------------------------------------------- speaking

    def command(self, kind: str, **values: Any) -> None:
        """Sends the server a command."""
        if self.wire is not None:
            self.wire.say({"kind": kind, "heard": self.heard, **values})

    def _ask(self, kind: str, **values: Any) -> None:
        """Sends a command, and again to the server that takes over."""
        self._asked[kind] = values
        self.command(kind, **values)

    # ----------------------------------------------------------------- hearing

    def hear(self) -> Head:
        """Takes one frame of the leader."""
        if self.wire is None:
            raise RuntimeError("nobody is there to be heard")
        frame = self.wire.down.popleft()
        if not frame.text:
            self.lost()
            return {"kind": "end"}
        head, body = frame.open()
        if "number" in head:
            is_next = head["number"] == self.heard + 1
            require(is_next, "reports come once, in order", self.heard, head)
            self.heard += 1
        kind = head["kind"]
        if kind == "standby_ready":
            if head["generation"] == self.generation:
                self._greet_standby()
        elif kind == "standby_called":
            self.is_called |= head["generation"] == self.generation
        elif kind == "standby_left":
            if head["generation"] == self.generation:
                self.lose_standby()
        else:
            self._keep(head, memoryview(body))
        return head

    def _keep(self, head: Head, body: memoryview) -> None:
        kind = head["kind"]
        if kind == "records":
            self.records += read_records(Exchanges.parse(head), body)[0]
        elif kind == "epoch":
            self._end_epoch(head, body)
        elif kind == "optimizer":
            self.is_over = True
        elif kind == "rollback":
            self.has_rolled_back = True
        elif kind == "joined":
            self._tokens[head["rank"], head["incarnation"]] = head["token"]
        elif kind == "left":
            self._left(head)
        elif kind in ("broken", "failed", "mismatch", "not_finite"):
            raise Violation(f"nobody fails: {head}")

    def _end_epoch(self, head: Head, body: memoryview) -> None:
        epoch = head["epoch"]
        self.ends[epoch] = read_epoch(EpochEnded.parse(head), body)
        self._epoch_ended(epoch)

    def _proceed(self, epoch: int) -> None:
        self._ask("proceed", epoch=epoch)

    def _end_run(self) -> None:
        self._ask("state")

    # ----------------------------------------------------------------- workers

    def _left(self, head: Head) -> None:
        if head["reason"] == JOINED_AGAIN:
            return
        self.has_lost_workers = True
        token = self._tokens[head["rank"], head["incarnation"]]
        if token in self.hands:
            self._processes.end_worker(token)
            self._lost(token, head["rank"])

    def worker_ended(self, token: str) -> None:
        """A server's process has ended."""
        self.command("gone", token=token)
        if token in self.hands:
            self._lost(token, self.hands[token])

    def _replace(self, hint: int) -> None:
        self._processes.start_worker(hint)

    # ----------------------------------------------------------------- servers

    def lost(self) -> None:
        """The leader is lost, or hangs: promotes the standby."""
        self._processes.end_leader()
        self.wire, self.standby_peer = self.standby_peer, None
        if self.wire is None:
            self.is_lost = True
            return
        self._processes.promote()
        self.command("lead", living=list(self._processes.living))
        self.wants_standby = True
        for kind, values in list(self._asked.items()):
            self.command(kind, **values)

    def _greet_standby(self) -> None:
        try:
            wire = self._processes.call(is_leader=False)
        except ExchangeTimeout:
            self.lose_standby()
            return
        wire.say({"kind": "control"})
        self.standby_peer = wire

    def lose_standby(self) -> None:
        """Lets the leader go on alone, until another standby has started."""
        if self.standby_peer is not None:
            self.standby_peer.hang_up()
            self.standby_peer = None
        if not self.wants_standby:
            self._processes.end_standby()
            self.command("alone", generation=self.generation)
            self.wants_standby = True
