"""Workers on other machines, each with an agent, and servers beside them.

An engine finds room and starts the agents, which a `Carrier` hides; an agent starts its
worker as any launcher does, as a clean interpreter. This file decides where workers
run, and when a node counts as lost: engines take a minute to notice a broken network
link.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import cloudpickle

from shoal.errors import ClusterError
from shoal.host.private import alike
from shoal.launchers.base import Exit, Launcher, NodeSocket, Role
from shoal.launchers.carrier import CallResult, Carrier, RequestedAgent
from shoal.launchers.data_broadcast import DataBroadcast
from shoal.launchers.node_agent import BEAT_S, AgentReport, Arrival, Listening, Memory
from shoal.launchers.shared import SharedBlob
from shoal.launchers.versions import difference, versions
from shoal.wire.tls import is_loopback

LOOK_S = 0.05  # between checks for new results
SILENT_S = BEAT_S + 5.0  # a node that is silent for longer is lost
TOGETHER_S = 3.0  # within this time agents are served by one transfer
PAUSE_S = 1.0  # a longer time between two turns is a pause of this process
SPARED_S = 5.0  # room is kept for the replacement of its process
END_S = 2.0  # for agents to end their processes, beyond the grace
MOST_EARLY = 200  # lines of a process before its log is known
GONE = -9


@dataclass(kw_only=True, eq=False)
class AgentSlot:
    """An agent, the worker's process that it watches, and servers beside it.

    Args:
        request: How it was requested.
        sockets: Listening sockets that it holds or opens.
        opening: Pending call -> the socket that it opens.
        servers: Tokens of processes that have inherited one.
    """

    request: RequestedAgent
    here: Arrival | None = None
    token: str = ""
    report: Any = None
    asked: float = 0.0
    idle_since: float = 0.0
    calls: list[Any] = field(default_factory=list[Any])
    sockets: list[NodeSocket] = field(default_factory=list[NodeSocket])
    opening: dict[Any, NodeSocket] = field(default_factory=dict[Any, NodeSocket])
    servers: set[str] = field(default_factory=set[str])

    def waited_for(self) -> list[Any]:
        """Returns the calls that it will answer."""
        first = [self.request.arrival] if self.here is None else []
        return [*first, *self.calls, *([] if self.report is None else [self.report])]


@dataclass(kw_only=True, eq=False)
class RemoteProcess:
    """A process on a node, as the driver sees it.

    Args:
        role: Role of the process.
        slots: Its agent; several candidates while none has room.
        parts: Arguments that have not been sent.
        log: File of its lines, None for none.
        early: Lines that it wrote before it was given a role.
        reads_data: Whether it has to wait for the data of its node.
        spent_s: Processor time that it has used, None before its agent has told.
    """

    role: Role
    slots: list[AgentSlot]
    parts: deque[bytes] = field(default_factory=deque[bytes])
    log: Path | None = None
    has_part: bool = False
    early: deque[str] = field(default_factory=lambda: deque[str](maxlen=MOST_EARLY))
    since: float = 0.0
    is_stopped: bool = False
    reads_data: bool = True
    spent_s: float | None = None

    @property
    def slot(self) -> AgentSlot | None:
        """Returns its agent; None while it waits for room."""
        return self.slots[0] if self.slots and self.slots[0].here else None


@final
class RemoteLauncher(Launcher):
    """Starts workers where a carrier has room for agents.

    Args:
        carrier: Carrier of the engine.
        blob: The data, in memory of this machine.
        backend: Keras backend; its version is checked.
        variables: Name -> value, for the environment of workers.
        silent_s: Seconds without a word of an agent after which its node is lost.
    """

    def __init__(
        self,
        carrier: Carrier,
        blob: SharedBlob,
        backend: str,
        variables: Mapping[str, str],
        silent_s: float = SILENT_S,
    ) -> None:
        self._carrier, self._variables = carrier, dict(variables)
        self._silent_s = silent_s
        self._versions = versions(backend, carrier.engine)
        self._broadcast = DataBroadcast(blob, carrier)
        self._slots: list[AgentSlot] = []
        self._processes: dict[str, RemoteProcess] = {}
        self._ended: dict[str, Exit] = {}
        self._avoided: set[str] = set()
        self._looked = 0.0

    # ------------------------------------------------------------- starting

    def start(self, role: Role) -> str:
        """Starts a process where there is room, or requests room; returns its token."""
        token, now = secrets.token_hex(8), time.monotonic()
        free = self._idle(now)
        slots = [free] if free is not None else self._ask_for_room(role)
        process = self._processes[token] = RemoteProcess(
            role=role, slots=slots, since=now
        )
        for slot in slots:
            slot.token = token
        if free is not None:
            self._begin(token, process, free)
        return token

    def _idle(self, now: float, least_s: float = 0.0) -> AgentSlot | None:
        """Returns an agent that has had no process for so long."""
        idle = (b for b in self._slots if b.here and not b.token)
        return next((b for b in idle if now - b.idle_since >= least_s), None)

    def _ask_for_room(self, role: Role) -> list[AgentSlot]:
        """Requests an agent; several of which the first is used."""
        asked = self._carrier.request_agents(self._avoided, is_patient=role.is_patient)
        found = [AgentSlot(request=one) for one in asked]
        self._slots += found
        return found

    def _call(self, slot: AgentSlot, method: str, *arguments: Any) -> Any:
        """Calls an agent, which runs such calls one after the other."""
        found = self._carrier.call(slot.request.agent, method, *arguments)
        slot.calls.append(found)
        return found

    def _ask(self, slot: AgentSlot, now: float) -> None:
        """Requests an agent's next report."""
        slot.asked = now
        slot.report = self._carrier.call(slot.request.agent, "report")

    def _arrived(self, slot: AgentSlot, here: Arrival) -> None:
        """Handles an agent's arrival: its process starts, if it is still wanted."""
        odd = difference(here.versions, self._versions)
        process = self._processes.get(slot.token)
        if odd and process is not None and process.role.is_patient:
            slot.here = here
            self._gone(slot, f"has {odd}", is_node=False)
            return
        if odd:
            raise ClusterError(
                f"node {here.node} has {odd}. Expected the same versions on every "
                f"node. {self._carrier.advice}"
            )
        slot.here = here
        self._ask(slot, time.monotonic())
        if process is None or process.slot not in (
            None,
            slot,
        ):  # another one arrived first
            self._drop(slot)
            return
        for other in list(process.slots):
            if other is not slot:
                self._drop(other)
        process.slots = [slot]
        self._begin(slot.token, process, slot)

    def _begin(self, token: str, process: RemoteProcess, slot: AgentSlot) -> None:
        if slot.here is not None:
            memory = self._broadcast.home(slot.here, slot.request.agent)
            variables = {**self._variables, **(process.role.environment or {})}
            role = replace(process.role, log=None, environment=variables)
            self._call(slot, "start", token, role, memory)
            self._send(token, process)

    def give(self, token: str, argument: Any, log: Path | None = None) -> None:
        """Sends the argument as soon as the process and its data are there."""
        process = self._processes.get(token)
        if process is None:
            return  # it has ended, which `poll` reports
        process.parts.append(cloudpickle.dumps(argument))
        process.log, process.has_part = log, True
        if log is not None:
            with suppress(OSError):  # the file exists from the start, even when empty
                open(log, "ab", opener=alike).close()
        while process.early:
            self._write(process, process.early.popleft())
        self._send(token, process)

    def _send(self, token: str, process: RemoteProcess) -> None:
        slot = process.slot
        if slot is None or slot.here is None:
            return
        has_data = self._broadcast.has_arrived(slot.here.node_id)
        if process.reads_data and not has_data:
            return
        while process.parts:
            self._call(slot, "give", token, process.parts.popleft())

    def share(self) -> None:
        """Sends the data to each node once, as soon as the node is known."""
        self._broadcast.load()

    # -------------------------------------------------------------- servers

    @property
    def is_settled(self) -> bool:
        """Whether every process that is not patient has room, or has ended."""
        return not any(
            process.slot is None and not process.role.is_patient
            for process in self._processes.values()
        )

    def nodes(self) -> Sequence[str]:
        """Returns ids of the other nodes that have an agent now."""
        here = [slot.here.node_id for slot in self._slots if slot.here is not None]
        return [name for name in dict.fromkeys(here) if name != self._carrier.node_id]

    def listen(self, node_id: str, host: str) -> NodeSocket:
        """Has an agent of a node open a listening socket at the node's address."""
        for slot in self._slots:
            here = slot.here
            if here is not None and here.node_id == node_id:
                # A driver at a loopback address has all its nodes on this machine, and
                # its servers have no TLS: then no other address may be opened.
                where = host if is_loopback(host) else here.node
                opened = NodeSocket(node=here.node, node_id=node_id, host=where)
                slot.sockets.append(opened)
                slot.opening[self._call(slot, "listen", where)] = opened
                return opened
        return NodeSocket(node=node_id, node_id=node_id, lost="its agent is gone")

    def start_at(self, socket: NodeSocket, role: Role) -> str:
        """Has the agent that holds a socket start a process, which inherits it."""
        token = secrets.token_hex(8)
        slot = next((slot for slot in self._slots if socket in slot.sockets), None)
        if slot is None or not socket.port:
            reason = f"node {socket.node} is gone: {socket.lost}"
            self._ended[token] = Exit(name=role.name, code=GONE, reason=reason)
            return token
        process = self._processes[token] = RemoteProcess(
            role=replace(role, inherits=(socket.descriptor,)),
            slots=[slot],
            since=time.monotonic(),
            reads_data=False,
        )
        slot.servers.add(token)
        self._begin(token, process, slot)
        return token

    def is_waiting(self, token: str) -> bool:
        """Whether no node has had room for it yet."""
        process = self._processes.get(token)
        return process is not None and process.slot is None

    def spent_s(self, token: str) -> float | None:
        """Returns the processor time that a process has used, None if unknown."""
        process = self._processes.get(token)
        return None if process is None else process.spent_s

    # ------------------------------------------------------------ following

    def poll(self) -> dict[str, Exit]:
        """Returns the processes that ended since the last call, by token.

        Raises:
            ClusterError: A node has other versions than this process.
        """
        now = time.monotonic()
        pause_s = now - self._looked
        if pause_s >= LOOK_S:
            self._looked = now
            if pause_s > PAUSE_S:
                # A pause counts as one beat: who stood still has heard nothing. It
                # does count: callbacks may make each turn longer than this.
                for slot in self._slots:
                    slot.asked = min(now, slot.asked + pause_s - BEAT_S)
            self._hear()
            self._look(time.monotonic())
        found, self._ended = self._ended, {}
        return found

    def _hear(self) -> None:
        """Handles the results that have come from agents."""
        slots = {call: b for b in self._slots for call in b.waited_for()}
        if not slots:
            return
        for call, result in self._carrier.ready(list(slots), 0.0).items():
            slot = slots[call]
            if slot not in self._slots:
                continue
            if result.lost:
                self._gone(slot, result.lost, is_node=result.is_node)
            elif result.error:
                self._failed(slot, call, result)
            else:
                self._take(slot, call, result.value)

    def _take(self, slot: AgentSlot, call: Any, answer: Any) -> None:
        if call == slot.request.arrival and slot.here is None:
            self._arrived(slot, answer)
        elif call == slot.report:
            self._heard(slot, answer)
            self._ask(slot, time.monotonic())
        elif call in slot.calls:
            slot.calls.remove(call)
            if isinstance(answer, Memory) and slot.here is not None:
                self._broadcast.opened(slot.here.node_id, slot.request.agent, answer)
            elif isinstance(answer, Listening) and call in slot.opening:
                opened = slot.opening.pop(call)
                opened.port, opened.descriptor = answer.port, answer.descriptor

    def _failed(self, slot: AgentSlot, call: Any, result: CallResult) -> None:
        """Handles an error of an agent's method."""
        if call in slot.calls:
            slot.calls.remove(call)
        if call in slot.opening:  # its other processes work on
            socket = slot.opening.pop(call)
            slot.sockets.remove(socket)
            socket.lost = f"could not open a socket: {result.error}"
            return
        self._gone(slot, f"could not start a process: {result.error}", is_node=False)

    def _heard(self, slot: AgentSlot, report: AgentReport) -> None:
        for token, line in report.lines:
            process = self._processes.get(token)
            if process is not None and process.has_part:
                self._write(process, line)
            elif process is not None:
                process.early.append(line)
            if process is not None and self._echo is not None:
                self._echo(process.role.name, line)
        for token, spent_ms in report.spent_ms.items():
            if token in self._processes:
                self._processes[token].spent_s = spent_ms / 1e3
        for token, gone in report.exits.items():
            if slot.token == token:
                slot.token, slot.idle_since = "", time.monotonic()
            slot.servers.discard(token)
            self._over(token, gone)

    def _write(self, process: RemoteProcess, line: str) -> None:
        if process.log is not None:
            with suppress(OSError), open(process.log, "a", opener=alike) as log:
                log.write(f"{line}\n")

    def _over(self, token: str, gone: Exit) -> None:
        process = self._processes.pop(token, None)
        if process is not None:
            self._ended[token] = replace(gone, name=process.role.name)
            for slot in list(process.slots):
                if slot.here is None:
                    self._drop(slot)

    def _look(self, now: float) -> None:
        """Gives up silent nodes, and requests for room after their limit."""
        for slot in list(self._slots):
            if slot.here is not None and now - slot.asked > self._silent_s:
                self._gone(slot, f"has said nothing for {now - slot.asked:.0f} s")
        for token, process in list(self._processes.items()):
            if process.parts:
                self._send(token, process)
            if process.slot is None:
                self._move_in(token, process, now)
            limit_s = self._limit_s(process)
            if process.slot is None and now - process.since > limit_s:
                reason = self._why_late(process, limit_s)
                name = process.role.name
                self._over(token, Exit(name=name, code=GONE, reason=reason))
        # An agent that starts at once, or is requested for a short time, needs seconds.
        wanted = any(
            now - process.since < TOGETHER_S and not process.role.is_patient
            for process in self._processes.values()
            if process.slot is None
        )
        self._broadcast.look(may_go=not wanted)

    def _move_in(self, token: str, process: RemoteProcess, now: float) -> None:
        """Gives the room of an ended process to a process that waits for room.

        It is kept for a while for the replacement of the ended one, unless that already
        has room.
        """
        free = self._idle(now, SPARED_S if process.role.is_patient else 0.0)
        if free is None:
            return
        for slot in list(process.slots):
            self._drop(slot)
        process.slots, free.token = [free], token
        self._begin(token, process, free)

    def _limit_s(self, process: RemoteProcess) -> float:
        """Returns the seconds until an agent must have started."""
        if process.role.is_patient:
            return math.inf
        return max((slot.request.limit_s for slot in process.slots), default=0.0)

    def _why_late(self, process: RemoteProcess, limit_s: float) -> str:
        """Returns why a process has no agent after its limit."""
        room = self._carrier.room
        if any(slot.request.has_room for slot in process.slots):
            return (
                f"did not start within {limit_s:g} s, though {room} is reserved for "
                f"it: {self._carrier.advice_for_start}"
            )
        return f"found no room on the cluster within {limit_s:g} s, for {room}"

    def _gone(self, slot: AgentSlot, why: str, *, is_node: bool = True) -> None:
        """Handles the loss of an agent and its processes."""
        token, here = slot.token, slot.here
        where = "a node" if here is None else f"node {here.node}"
        reason = f"{where} is gone: it {why}" if is_node else f"{where} {why}"
        self._drop(slot, reason)
        if here is not None and is_node:
            self._avoided.add(here.node_id)
        for server in slot.servers:
            name = self._processes[server].role.name
            self._over(server, Exit(name=name, code=GONE, reason=reason, is_lost=True))
        process = self._processes.get(token)
        if process is None:
            return
        if process.slots and slot in process.slots:
            process.slots.remove(slot)
        if process.slots:
            return
        name = process.role.name
        self._over(token, Exit(name=name, code=GONE, reason=reason, is_lost=True))

    def _drop(self, slot: AgentSlot, why: str = "its agent was let go") -> None:
        if slot in self._slots:
            for socket in slot.sockets:
                socket.lost = why
            self._slots.remove(slot)
            self._broadcast.forget(slot.request.agent)
            self._carrier.release(slot.request.agent)

    # --------------------------------------------------------------- ending

    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends one process, by force after `grace_s` seconds; `poll` reports it."""
        process = self._processes.get(token)
        if process is None or process.is_stopped:
            return
        slot = process.slot
        if slot is None:
            reason = "was ended before any node had room for it"
            self._over(token, Exit(name=process.role.name, code=GONE, reason=reason))
            return
        process.is_stopped = True
        self._call(slot, "stop", token, grace_s)

    def rename(self, token: str, name: str) -> None:
        """Gives a process another role's name."""
        process = self._processes[token]
        process.role = replace(process.role, name=name)

    def prune(self, kept: Collection[str]) -> set[str]:
        """Ends and forgets all processes but some; returns the live ones of those."""
        for token in self._processes.keys() - kept:
            self.stop(token)
            self._processes.pop(token, None)
        self._ended.clear()
        return set(self._processes)

    def close(self, grace_s: float = 0.0) -> None:
        """Ends every process and releases the room."""
        self._broadcast.close()
        there = [slot for slot in self._slots if slot.here is not None]
        calls = [self._call(slot, "close", grace_s) for slot in there]
        if calls:
            self._carrier.ready(calls, grace_s + END_S)
        for slot in list(self._slots):
            self._drop(slot)
        self._processes.clear()
        self._ended.clear()
        self._carrier.close()
