"""The server of a run and its standby: two processes, either of which may lead.

This file starts them, speaks with the leader, and promotes the standby if the leader is
lost. It alone decides who leads: it ends the old leader before it promotes another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from shoal.engine.controller.endpoints import ServerEndpoints, ServerSocket
from shoal.engine.controller.observer import Observer
from shoal.engine.controller.process_pool import ProcessPool
from shoal.engine.controller.start_progress import StartProgress
from shoal.engine.coordination.restart_policy import FIRST_DELAY_S, later_delay_s
from shoal.engine.coordination.timeouts import PAUSE_S
from shoal.engine.server.main import ServeInherited
from shoal.engine.server.report_checks import check_report
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.standby import StandbySpec
from shoal.engine.transport.heartbeat import Heartbeat, ServerSilent, hear
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.controller_to_server import (
    Command,
    Control,
    Follow,
    GoAlone,
    Lead,
)
from shoal.engine.transport.messages.server_to_controller import (
    Leads,
    OfStandby,
    StandbyCalled,
    StandbyLeft,
    StandbyReady,
    read_report,
)
from shoal.engine.transport.shared_memory import sweep, tag_of
from shoal.errors import ClusterError, ExchangeTimeout, ShoalError
from shoal.forks import Origin
from shoal.interruption import Deadline, check, ends_hard, pause
from shoal.launchers.base import Exit
from shoal.wire.frames import BadFrame, Link

GRACE_S = 2.0
LOOK_S = 0.01  # between looks at a process that is about to end
GREETING_S = 60.0  # for a server's start, if no start of a worker was measured
RELIEF_S = 2.0  # for the handshake with a standby that is known to be up

Message = tuple[Report, memoryview]
Living = Callable[[], Sequence[str]]


class ServerGone(ClusterError):
    """The server of the run is gone; the controller may start another."""


@final
class Servers:
    """The controller's connection to the server of a run.

    Args:
        pool: Pool of the processes.
        pair: Endpoints of the server and its standby.
        observer: Observer of the run.
        workers: Number of workers.
        has_standby: A standby follows the server.
        living: Returns the tokens of all workers whose process lives.
        on_succession: Called when another process leads: the last commands to the old
            one may be lost.
    """

    def __init__(
        self,
        pool: ProcessPool,
        pair: ServerEndpoints,
        observer: Observer,
        workers: int,
        living: Living,
        *,
        has_standby: bool,
        on_succession: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool, self._pair, self._observer = pool, pair, observer
        self._clock = pool.environment.clock
        self._workers, self._living = workers, living
        self._has_standby, self._origin = has_standby, Origin()
        ends_hard(self)
        self._spec: ServerSpec | None = None
        self._link: Link | None = None
        self._standby_peer: Link | None = None
        self._heartbeat = Heartbeat()
        self._heard = 0
        self._standby_due: float | None = None
        self._standby_started: float | None = (
            None  # it has not connected to its server yet
        )
        self._standby_progress = self._progress_of("")
        self._standby_failures = self._generation = 0
        self._lost_at, self._looked = 0.0, self._clock()
        self._on_succession = on_succession
        self._order: tuple[str, int] | None = None

    @property
    def tag(self) -> str:
        """Tag of this run's shared memory."""
        return tag_of(b"" if self._spec is None else self._spec.secret)

    # -------------------------------------------------------------- starting

    def start(self, spec: ServerSpec) -> None:
        """Gives the server's process its spec; starts it first where it has none."""
        self._spec, self._heard, self._order = spec, 0, spec.order
        pair = self._pair
        if not pair.server:
            pair.start_server()
        self._give(pair.server, spec, pair.leader)

    def _give(
        self, token: str, spec: ServerSpec | StandbySpec, at: ServerSocket
    ) -> None:
        part = ServeInherited(
            spec=spec,
            descriptor=at.descriptor,
            is_kept=self._pool.is_kept,
            name=self._pair.name,
            run=self._pool.run,
        )
        self._pool.give(token, part)
        self._tell_of(token, at)

    def _tell_of(self, token: str, at: ServerSocket) -> None:
        """Records which process is the server or its standby, and where."""
        pair, pid = self._pair, self._pool.pid(token)
        name = pair.standby_name if token == pair.standby else pair.name
        where = {"node": at.node} if at.node else {}
        self._observer.on_event("process_started", name=name, pid=pid, **where)

    def connect(self, limit_s: float, meanwhile: Callable[[], None]) -> None:
        """Connects to the server; its socket listens already, it answers when it is up.

        Args:
            limit_s: Limit for its start.
            meanwhile: Called regularly; it may raise.

        Raises:
            ServerGone: It does not start.
        """
        began = self._clock()
        try:
            self._link = self._call_slow(min(GREETING_S, limit_s), meanwhile)
        except (OSError, ExchangeTimeout) as error:
            raise ServerGone(
                f"the server of the run did not start: {error}. "
                f"A server process on {self._pair.leader.node or 'this machine'} was "
                "expected to answer. See whether memory is free."
            ) from None
        self._begin_pulse(self._clock() - began)
        self.command(Control())
        if self._has_standby:
            self._standby_due = self._clock()

    def _call_slow(self, limit_s: float, meanwhile: Callable[[], None]) -> Link:
        """Connects to a server that starts, and may be slow on a busy machine."""
        began, progress = self._clock(), self._progress_of(self._pair.server)

        def look() -> None:
            progress.look(self._clock())
            meanwhile()

        while True:
            try:
                return self._call(limit_s, look)
            except ExchangeTimeout:
                now = self._clock()
                if progress.is_over(now, late_s=now - began, limit_s=limit_s):
                    raise

    def _progress_of(self, token: str) -> StartProgress:
        return StartProgress(spent=lambda: self._pool.spent_s(token))

    def _begin_pulse(self, startup_s: float) -> None:
        spec, size = self._spec, 0
        if spec is not None:  # a worker's state is kept, packed and sent on
            size = spec.sizes.slot_bytes + spec.sizes.state
        self._heartbeat = Heartbeat.of(self._clock(), startup_s, size, self._workers)

    def _call(
        self, limit_s: float, meanwhile: Callable[[], None], *, is_leader: bool = True
    ) -> Link:
        spec, pair = self._spec, self._pair
        if spec is None:
            raise RuntimeError("there is no server yet; call `start` first")
        return self._pool.environment.connect(
            pair.address if is_leader else pair.other_address,
            spec.secret,
            certificate=None if spec.identity is None else spec.identity.certificate,
            timeout_s=limit_s,
            meanwhile=meanwhile,
        )

    def call_again(self, limit_s: float) -> Link | None:
        """Connects to the server again; returns the old connection, to be closed later.

        A server without a controller ends.

        Raises:
            OSError: It does not answer.
            ExchangeTimeout: The same.
        """
        old, self._link = self._link, self._call(limit_s, check)
        self.command(Control())
        return old

    # -------------------------------------------------------------- speaking

    def command(self, command: Command, body: bytes = b"") -> None:
        """Sends a command; a lost server shows at the next `receive`."""
        if self._link is not None:
            self._send(self._link, command, body)

    @property
    def silence_limit_s(self) -> float:
        """Returns the seconds of silence after which the server counts as lost."""
        return self._heartbeat.limit_s

    def follow(self, address: tuple[str, int]) -> None:
        """Tells the server the address of the one that orders events."""
        self._order = address
        self.command(Follow(order=address))

    def _send(self, link: Link, command: Command, body: bytes = b"") -> bool:
        try:
            link.send(command.replace(heard=self._heard).pack(), body)
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float) -> Message | None:
        """Returns one message of the server, None if none comes in time.

        Raises:
            ServerGone: It is lost, or cannot be understood, and there is no standby.
        """
        link = self._link
        if link is None:
            raise RuntimeError("there is no server yet; call `connect` first")
        try:
            message = hear(link, self._heartbeat, self._heard, timeout_s, self._clock)
            self._check(message)
        except ServerSilent as silent:
            self.lost(why=str(silent))
            return None
        except BadFrame as bad:  # it would not end by itself
            self.lost(why=f"sent what no server of this run sends: {bad}")
            return None
        except OSError:
            self.lost()
            return None
        if message is None:
            return None
        report = message[0]
        # Sent with each command and heartbeat: the standby drops the reports up to it.
        if report.number is not None:
            self._heard = report.number
        if isinstance(report, OfStandby):
            self._hear_of_standby(report)
        elif isinstance(report, Leads):
            seconds = round(self._clock() - self._lost_at, 3)
            self._observer.on_event("server_replaced", seconds=seconds, by="standby")
        else:
            return message
        return None

    @property
    def has_input(self) -> bool:
        """Whether the server has sent something, or has ended its connection."""
        try:
            return self._link is not None and self._link.has_input(0.0)
        except (OSError, ValueError):  # it is closed: the next `receive` tells
            return True

    def _check(self, message: Message | None) -> None:
        """Checks a message before anything uses it.

        Raises:
            BadFrame: No server of this run sends it.
        """
        if message is not None and self._spec is not None:
            check_report(message[0], len(message[1]), self._spec)

    def last_words(self, timeout_s: float) -> list[Message]:
        """Returns the messages of the server until it ends."""
        found: list[Message] = []
        link = self._link
        if link is None:
            return found
        link.is_closing = True  # these are the last messages of a finished run
        with contextlib.suppress(OSError, ExchangeTimeout, BadFrame):
            while Deadline(timeout_s).wait(link.has_input):
                head, body = link.receive(timeout_s=timeout_s, stall_s=timeout_s)
                message = read_report(head), body
                self._check(message)
                found.append(message)
        return found

    # ---------------------------------------------------------------- losses

    def look(self, exits: dict[str, Exit], start_limit_s: float) -> None:
        """Looks after the processes of server and standby.

        Args:
            exits: Exits of processes that are not workers.
            start_limit_s: Limit for the start of a process.

        Raises:
            ServerGone: The server is lost, and there is no standby.
        """
        pair = self._pair
        if pair.standby in exits:
            self._lose_standby(exits[pair.standby].reason)
        if pair.server in exits:
            self.lost(exits[pair.server])
        self._look_for_standby(start_limit_s)

    def _look_for_standby(self, start_limit_s: float) -> None:
        """Gives up a standby that never connects, and starts one when it is due."""
        now = self._clock()
        pause_s, self._looked = now - self._looked, now
        if self._standby_started is not None:
            progress, late_s = self._standby_progress, now - self._standby_started
            if pause_s > PAUSE_S:  # it may have connected in the pause
                self._standby_started += pause_s
                progress.forgive(pause_s)
                late_s -= pause_s
            progress.look(now)
            if progress.is_over(now, late_s=late_s, limit_s=start_limit_s):
                self._lose_standby(f"hung: not started within {start_limit_s:.1f} s")
        if self._standby_due is not None and now >= self._standby_due:
            self._start_standby()

    def lost(self, gone: Exit | None = None, why: str = "") -> None:
        """Promotes the standby, as the server is lost.

        Raises:
            ServerGone: There is no standby.
        """
        until = self._clock() + GRACE_S
        self._lost_at = self._clock()
        if self._standby_peer is not None:
            self._pool.stop(self._pair.server)  # it may hang only
        # How the process ended tells the user more than a closed connection.
        while gone is None and not why and self._clock() < until:
            gone = self._pool.poll_one(self._pair.server)
            if gone is None:
                pause(LOOK_S)
        if not why:
            why = f"{gone.reason}\n{gone.output}" if gone else "closed its connection"
        if self._succeed(why):
            return
        raise ServerGone(
            f"the server of the run is gone: {why.strip()}. "
            "It was expected to live as long as the run, and no replacement was left. "
            "Raise max_restarts; the model holds the center of the last epoch's end."
        )

    def _succeed(self, why: str) -> bool:
        """Promotes the standby; returns False if it cannot."""
        # The old server's process is gone: it ended, or `lost` killed it before
        # this call. That is the fence. A process that only hangs could wake up
        # later and reply beside its successor (decision 14).
        standby_peer, self._standby_peer = self._standby_peer, None
        if standby_peer is None:
            return False
        if self._link is not None:
            self._link.close()
        sweep(self.tag)
        lead = Lead(living=tuple(self._living()), order=self._order)
        if not self._send(standby_peer, lead):
            standby_peer.close()
            return False
        reason = why.partition("\n")[0]
        self._observer.on_event("server_lost", reason=reason, has_standby=True)
        self._link = standby_peer
        self._pair.promote()
        name = self._pair.standby_name
        self._observer.on_event("process_ended", name=name)
        self._tell_of(self._pair.server, self._pair.leader)
        self._begin_pulse(self._heartbeat.startup_s)
        self._standby_due = self._clock()
        self._on_succession()
        return True

    def prepare(self) -> None:
        """Starts another server's process; the old server and standby end first.

        Without a place, as its node is lost, it starts when it is given its spec.
        """
        for link in (self._link, self._standby_peer):
            if link is not None:
                link.close()
        self._link = self._standby_peer = self._standby_due = self._standby_started = (
            None
        )
        pair = self._pair
        self._pool.stop(pair.server)  # it may hang only
        if pair.standby:
            self._pool.stop(pair.standby)
            pair.standby = ""
        sweep(self.tag)
        pair.server = ""
        if pair.has_place:
            pair.start_server()

    # --------------------------------------------------------------- standby

    def _start_standby(self) -> None:
        self._standby_due = None
        pair, spec = self._pair, self._spec
        if spec is not None:
            pair.start_standby()
            self._standby_started = self._clock()
            self._standby_progress = self._progress_of(pair.standby)
            # It gets the state from the leader. A replica that begins from a checkpoint
            # reports a rollback.
            server = replace(spec, checkpoint=None)
            self._generation += 1
            part = StandbySpec(
                server=server, leader=pair.address, generation=self._generation
            )
            self._give(pair.standby, part, pair.follower)

    def _hear_of_standby(self, report: OfStandby) -> None:
        if report.generation != self._generation:
            return  # it was given up before the server knew
        match report:
            case StandbyCalled():
                self._standby_started = None
            case StandbyReady():
                self._greet_standby()
            case StandbyLeft(reason=reason):
                self._lose_standby(reason)
            case _:
                pass

    def _greet_standby(self) -> None:
        """Connects to the standby that has the whole state; it may be promoted now."""
        try:
            # It answers before it has unpacked the state.
            limit_s = RELIEF_S + self._heartbeat.work_s
            self._standby_peer = self._call(limit_s, check, is_leader=False)
            self._standby_peer.send(Control().pack())
        except (OSError, ShoalError) as error:
            self._lose_standby(str(error))
            return
        self._standby_failures = 0
        self._heartbeat.has_standby = True
        self._observer.on_event("standby_ready")

    def _lose_standby(self, reason: str) -> None:
        """Lets the server continue alone, until another standby has started."""
        pair = self._pair
        self._standby_started = None
        if self._standby_peer is not None:
            self._standby_peer.close()
            self._standby_peer = None
        self._heartbeat.has_standby = False
        if not pair.standby:
            return
        self._pool.stop(pair.standby)
        pair.standby = ""
        self._observer.on_event("process_ended", name=pair.standby_name)
        # Nobody can promote it any more: its process is ended and its connection
        # closed. Only then may the server reply without it (decision 14).
        self.command(GoAlone(generation=self._generation))
        self._observer.on_event("standby_lost", reason=reason)
        failures, self._standby_failures = self._standby_failures, (
            self._standby_failures + 1
        )  # fmt: skip
        delay_s = later_delay_s(failures) if failures else FIRST_DELAY_S
        self._standby_due = self._clock() + delay_s

    def close(self) -> None:
        """Closes the connections and frees what a killed server left."""
        for link in (self._standby_peer, self._link):
            if link is not None:
                link.close()
        self._link = self._standby_peer = None
        if not self._origin.is_forked:
            sweep(self.tag)

    def end_hard(self) -> None:
        """Frees what killed servers leave; see `interruption.ends_hard`."""
        sweep(self.tag)
