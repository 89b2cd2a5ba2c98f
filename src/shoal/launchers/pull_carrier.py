"""A carrier whose agents call the driver: for engines that only start tasks.

A kind of cluster adds how a task is started, whether it has failed, and how it is
ended; listening, greeting, calls and the loss of a connection are here.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import cloudpickle

from shoal.forks import blank, gives_up
from shoal.host.ports import listen
from shoal.launchers.agent_loop import Ticket, this_node
from shoal.launchers.agent_messages import ANSWER, ARRIVE, BEAT, CALL, parse
from shoal.launchers.carrier import CallResult, Carrier, RequestedAgent
from shoal.wire.accepting import accept
from shoal.wire.frames import BadFrame, Head, Link
from shoal.wire.tls import Identity, server_context

BEAT_S = 5.0  # between messages to an agent without calls
LOOK_S = 0.05  # between looks at tasks that have not arrived
ACCEPT_S = 0.5  # between checks for the end
ARRIVE_S = 10.0  # for the first message of an agent
KEY_BYTES = 32
MOST_GREETED = 64  # callers at once that have not proved their key yet
HUNG_UP = "hung up"

CallId: TypeAlias = tuple[str, int]
"""Name of an agent, and the number of a call to it; 0 is its arrival."""


@final
@dataclass(kw_only=True, eq=False)
class _Remote:
    """An agent, as the driver knows it.

    Args:
        name: Name of the agent.
        key: Key that it proves.
        task: Task of the engine, None for an agent that came a second time.
        copy_of: Name of the agent whose ticket it had, if that came before.
    """

    name: str
    key: bytes
    task: Any = None
    copy_of: str = ""
    link: Link | None = None
    lost: str = ""
    is_asked: bool = False
    count: int = 0
    outbox: deque[tuple[Head, bytes | memoryview]] = field(
        default_factory=deque[tuple[Head, bytes | memoryview]]
    )
    methods: dict[int, str] = field(default_factory=lambda: {0: "arrive"})
    results: dict[int, CallResult] = field(default_factory=dict[int, CallResult])

    def __post_init__(self) -> None:
        self.woken, self.wake = socket.socketpair()
        self.wake.setblocking(False)

    def notice(self) -> None:
        """Wakes the thread of its connection to look at the outbox."""
        with suppress(OSError):  # full of such notices, or closed
            self.wake.send(b".")

    def close(self) -> None:
        """Ends its connection, whatever waits on it."""
        if self.link is not None:
            with suppress(OSError):
                # Not that of TLS, which another thread may be using.
                socket.socket.shutdown(self.link.socket, socket.SHUT_RDWR)
        self.notice()


class PullCarrier(Carrier):
    """Listens for agents, which `serve` a ticket wherever an engine runs it.

    Args:
        host: Address to listen at, which agents reach.
        number: The descriptor that processes know the data by.
        backend: Name of the Keras backend.
        identity: Identity for TLS; None on a private network.
        limit_s: Seconds that a task may wait for room, and an agent take to arrive.
        port: Port to listen at, or the next free one; default 0: any that is free.
        reuses_tasks: A task that its engine has run a second time, elsewhere, serves
            the next process. By default it is kept waiting and given nothing, as a
            ticket is good for one arrival.
    """

    def __init__(
        self,
        *,
        host: str,
        number: int,
        backend: str,
        identity: Identity | None,
        limit_s: float,
        port: int = 0,
        reuses_tasks: bool = False,
    ) -> None:
        self._number, self._backend, self._limit_s = number, backend, limit_s
        self._identity, self._reuses_tasks = identity, reuses_tasks
        self._context = None if identity is None else server_context(identity)
        self._remotes: dict[str, _Remote] = {}
        self._spares: list[_Remote] = []
        self._refused: tuple[int, str] = (0, "")
        self._threads: set[threading.Thread] = set()
        self._greeted: set[socket.socket] = set()
        self._changed = threading.Condition()
        self._is_closed = False
        self._listener = listen(host, port)
        self._listener.settimeout(ACCEPT_S)
        self._host = host
        gives_up(self)
        self._acceptor = threading.Thread(
            target=self._accept_all, name="shoal-agents", daemon=True
        )
        self._acceptor.start()

    # -------------------------------------------------- for a kind of cluster

    @abstractmethod
    def start_task(self, ticket: Ticket, avoided: Collection[str]) -> Any:
        """Has the engine run `serve(ticket)` where there is room; does not wait for it.

        Args:
            ticket: For the agent.
            avoided: Ids of nodes that are lost.

        Returns:
            What the engine knows the task by.
        """

    @abstractmethod
    def failure(self, task: Any) -> str:
        """Returns why a task ended before its agent arrived; "" where it has not.

        It is asked often, does not wait, and is not asked after `end_task`.
        """

    @abstractmethod
    def end_task(self, task: Any) -> None:
        """Has the engine end a task, which may have ended; does not wait for it."""

    # --------------------------------------------------------------- the calls

    @property
    def node_id(self) -> str:
        """This machine, as an agent on it would call it."""
        return this_node()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._host, self._listener.getsockname()[1]

    @property
    def room(self) -> str:
        """What an agent takes, and who was turned away: it may have been the agent."""
        count, why = self._refused
        more = (
            f"; {count} caller(s) were turned away, the last as {why}" if count else ""
        )
        return f"a task each{more}"

    def request_agents(
        self, avoided: Collection[str], *, is_patient: bool
    ) -> Sequence[RequestedAgent]:
        """Has a task started; or takes one that came a second time."""
        del is_patient
        with self._changed:
            while self._spares:
                spare = self._spares.pop()
                if not spare.lost:
                    return [self._asked(spare)]
        remote = _Remote(name=secrets.token_hex(4), key=secrets.token_bytes(KEY_BYTES))
        with self._changed:
            self._remotes[remote.name] = remote
        host, port = self.address
        ticket = Ticket(
            host=host, port=port, key=remote.key, number=self._number,
            certificate=None if self._identity is None else self._identity.certificate,
            backend=self._backend, engine=self.engine,
        )  # fmt: skip
        try:
            remote.task = self.start_task(ticket, avoided)
        except BaseException:
            self.release(remote.name)
            raise
        return [self._asked(remote)]

    def _asked(self, remote: _Remote) -> RequestedAgent:
        remote.is_asked = True
        return RequestedAgent(
            agent=remote.name, arrival=(remote.name, 0), limit_s=self._limit_s
        )

    def call(self, agent: Any, method: str, *arguments: Any) -> Any:
        """Puts a call into the outbox of an agent's connection."""
        with self._changed:
            remote = self._remotes.get(agent)
            if remote is None:
                return agent, -1
            remote.count += 1
            number = remote.count
            head: Head = {"kind": CALL, "id": number, "method": method}
            body: bytes | memoryview
            if method == "write":
                head["offset"], body = arguments
            else:
                body = cloudpickle.dumps(arguments)
            remote.methods[number] = method
            remote.outbox.append((head, body))
            remote.notice()
        return agent, number

    def ready(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, CallResult]:
        """Takes what has come; looks meanwhile whether tasks have failed."""
        until = time.monotonic() + timeout_s
        found: dict[Any, CallResult] = {}
        while True:
            self._look_at_tasks()
            with self._changed:
                for call in calls:
                    result = None if call in found else self._take(call)
                    if result is not None:
                        found[call] = result
                left_s = until - time.monotonic()
                if left_s <= 0 or len(found) == len(calls):
                    return found
                self._changed.wait(min(left_s, LOOK_S))

    def _take(self, call: CallId) -> CallResult | None:
        agent, number = call
        remote = self._remotes.get(agent)
        if remote is None:
            return CallResult(lost="was let go")
        found = remote.results.pop(number, None)
        if found is None and remote.lost:
            return CallResult(lost=remote.lost)
        return found

    def _look_at_tasks(self) -> None:
        """Notes tasks that ended before their agent arrived."""
        with self._changed:
            for remote in self._remotes.values():
                if remote.link is None and remote.task is not None and not remote.lost:
                    why = self.failure(remote.task)
                    remote.lost = f"could not start an agent: {why}" if why else ""

    def put(self, piece: Any) -> Any:
        """Returns the piece itself: each agent is sent it by its own connection."""
        return memoryview(piece).cast("B")

    def release(self, agent: Any) -> None:
        """Lets an agent go, or forgets that it was asked for."""
        with self._changed:
            remotes = [one for one in self._remotes.values() if one.name == agent]
            if not self._reuses_tasks:  # nor is there anything left for its copies
                remotes += [o for o in self._remotes.values() if o.copy_of == agent]
            for remote in remotes:
                del self._remotes[remote.name]
                remote.lost = remote.lost or "was let go"
            self._changed.notify_all()
        for remote in remotes:
            remote.close()
            if remote.link is None:
                _close_pair(remote)
            if remote.task is not None:
                self.end_task(remote.task)

    def close(self) -> None:
        """Lets all agents go, ends their tasks and stops listening."""
        self._is_closed = True
        for name in list(self._remotes):
            self.release(name)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor, on Linux
        self._acceptor.join()
        self._listener.close()
        for connection in list(self._greeted):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()

    def give_up(self) -> None:
        """Closes the listener in a forked process."""
        with suppress(OSError):
            blank(self._listener.fileno())

    # ---------------------------------------------------------- the connections

    def _accept_all(self) -> None:
        """Takes callers until the listener is closed; each has a thread."""
        while not self._is_closed:
            try:
                connection, place = self._listener.accept()
            except OSError:  # nobody called, or the listener is closed
                continue
            if len(self._greeted) >= MOST_GREETED:
                connection.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(connection, place[0]), name="shoal-agent",
                daemon=True,
            )  # fmt: skip
            self._threads.add(thread)
            thread.start()

    def _serve(self, connection: socket.socket, place: str) -> None:
        """One caller, from its greeting to its end."""
        self._greeted.add(connection)
        try:
            with self._changed:
                keys = {one.name: one.key for one in self._remotes.values() if one.key}
            try:
                name, link = accept(connection, keys, self._context)
            except (OSError, BadFrame) as error:
                with self._changed:
                    self._refused = self._refused[0] + 1, f"{place}: {error}"
                return
            finally:
                self._greeted.discard(connection)
            remote = self._admit(name, link)
            if remote is not None:
                self._converse(remote, link)
            link.close()
        finally:
            self._threads.discard(threading.current_thread())

    def _admit(self, name: str, link: Link) -> _Remote | None:
        """Gives a connection to the agent that was asked for, or to a spare one.

        Engines run a task a second time when its node is lost, or slow. That is another
        agent, never the one before: what that did is counted as its own.
        """
        with self._changed:
            remote = self._remotes.get(name)
            if remote is None or self._is_closed:
                return None
            if remote.link is not None or remote.lost:
                remote = _Remote(name=secrets.token_hex(4), key=b"", copy_of=name)
                self._remotes[remote.name] = remote
                if self._reuses_tasks:
                    self._spares.append(remote)
            remote.link = link
            return remote

    def _converse(self, remote: _Remote, link: Link) -> None:
        """Sends calls and takes answers until one of both ends is gone."""
        why = HUNG_UP
        try:
            head, _ = link.receive(timeout_s=ARRIVE_S)
            if head["kind"] != ARRIVE:
                raise BadFrame(f"an agent said {head['kind']!r} first")
            self._note(remote, {**head, "id": 0})
            while not self._is_closed and not remote.lost:
                self._turn(remote, link)
        except BadFrame as error:
            why = f"is none of ours: {error}"
        except Exception as error:
            why = f"{HUNG_UP}: {error}"
        with self._changed:
            remote.lost = remote.lost or why
            self._spares = [spare for spare in self._spares if spare is not remote]
            if not remote.is_asked:
                self._remotes.pop(remote.name, None)
            self._changed.notify_all()
        _close_pair(remote)

    def _turn(self, remote: _Remote, link: Link) -> None:
        """Waits for something to send, or to take, and does that."""
        readable: list[Any] = []
        if not link.has_pending and not remote.outbox:
            waited = [link.socket, remote.woken]
            readable = _readable(waited)
            if not readable:
                link.send({"kind": BEAT})
        if remote.woken in readable:
            remote.woken.recv(1 << 12)
        if remote.outbox:
            link.send(*remote.outbox.popleft())
        if link.has_pending or link.socket in readable:
            head, _ = link.receive()
            if head["kind"] != ANSWER:
                raise BadFrame(f"an agent said {head['kind']!r}")
            self._note(remote, head)

    def _note(self, remote: _Remote, head: Head) -> None:
        """Keeps what came of a call."""
        number, error = head.get("id"), head.get("error", "")
        if not isinstance(number, int) or number not in remote.methods:
            raise BadFrame(f"an agent answers call {number!r}")
        method = remote.methods.pop(number)
        if error:
            result = CallResult(error=str(error))
        else:
            result = CallResult(value=parse(method, head))
        with self._changed:
            remote.results[number] = result
            self._changed.notify_all()


def _readable(waited: Sequence[socket.socket]) -> list[socket.socket]:
    """Sockets with input, after one beat at most."""
    with selectors.DefaultSelector() as selector:
        for one in waited:
            selector.register(one, selectors.EVENT_READ)
        found = {key.fd for key, _ in selector.select(BEAT_S)}
        return [one for one in waited if one.fileno() in found]


def _close_pair(remote: _Remote) -> None:
    remote.woken.close()
    remote.wake.close()
