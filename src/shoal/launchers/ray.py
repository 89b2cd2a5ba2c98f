"""Workers on the nodes of a Ray cluster.

Ray finds room and starts one agent for each worker there, in a bundle of a placement
group; the agent starts the worker as any launcher does, a clean interpreter. This file
decides where workers go, and when a node counts as gone: Ray itself would take a minute
to notice that a cable is out.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import cloudpickle
import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shoal.errors import ClusterError
from shoal.host.private import alike
from shoal.launchers.base import Exit, Launcher, Role
from shoal.launchers.data_broadcast import DataBroadcast
from shoal.launchers.node_agent import BEAT_S, Arrival, Memory, Report
from shoal.launchers.ray_agents import (
    REPORTS,
    WORK,
    AgentSlot,
    Hand,
    RayNodeAgent,
    why_gone,
)
from shoal.launchers.ray_bundles import Bundle, Group
from shoal.launchers.ray_store import Store
from shoal.launchers.shared import SharedBlob
from shoal.launchers.versions import difference, versions

LOOK_S = 0.05  # between looks at what has come
SILENT_S = BEAT_S + 5.0  # without a word a node is gone
TOGETHER_S = 3.0  # for agents that are to be sent data at once
PAUSE_S = 1.0  # this process did not run for so long: no node is to blame
SPARED_S = 5.0  # room stays empty for who is to replace the process that had it
END_S = 2.0  # for agents to end their processes, beside the grace of those
GONE = -9


@final
class RayLauncher(Launcher):
    """Starts workers on the cluster that this process is connected to.

    Args:
        blob: The data, in memory of this machine.
        room: What each worker is to have.
        group: Room that is set aside; whoever made it closes it.
    """

    def __init__(self, blob: SharedBlob, room: Bundle, group: Group) -> None:
        self._room, self._group, self._number = room, group, blob.descriptor
        groups = {REPORTS: 1, WORK: 1}
        as_actor: Any = ray.remote  # whose types leave these options out
        self._kind: Any = as_actor(concurrency_groups=groups)(RayNodeAgent)
        self._versions = versions(room.backend)
        here = ray.get_runtime_context().get_node_id()
        self._broadcast = DataBroadcast(blob, here, Store())
        self._slots: list[AgentSlot] = []
        self._hands: dict[str, Hand] = {}
        self._ended: dict[str, Exit] = {}
        self._avoided: set[str] = set()
        self._looked = 0.0

    # ------------------------------------------------------------- starting

    def start(self, role: Role) -> str:
        """Starts a process where there is room, or asks for room; returns its token."""
        token, now = secrets.token_hex(8), time.monotonic()
        free = self._idle(now)
        if free is not None:
            slots = [free]
        elif role.is_patient:
            slots = [self._ask_anywhere(now)]
        else:
            slots = self._ask_for_room(now)
        hand = self._hands[token] = Hand(role=role, slots=slots, since=now)
        for slot in slots:
            slot.token = token
        if free is not None:
            self._begin(token, hand, free)
        return token

    def _idle(self, now: float, least_s: float = 0.0) -> AgentSlot | None:
        """An agent that has had no process for so long."""
        idle = (b for b in self._slots if b.here and not b.token)
        return next((b for b in idle if now - b.idle_since >= least_s), None)

    def _ask_for_room(self, now: float) -> list[AgentSlot]:
        """In a bundle that nobody is in, and where a node is gone also elsewhere.

        Until Ray knows of that, the bundle is still on the node.
        """
        taken = {slot.bundle for slot in self._slots}
        free = [n for n in range(self._group.workers) if n not in taken]
        found: list[AgentSlot] = []
        if free:
            place: Any = PlacementGroupSchedulingStrategy(
                self._group.bundles, placement_group_bundle_index=free[0]
            )
            found.append(self._open(now, free[0], scheduling_strategy=place))
        if not free or self._avoided:
            found.append(self._ask_anywhere(now))
        return found

    def _ask_anywhere(self, now: float) -> AgentSlot:
        """Outside of what is set aside; an autoscaler hears of it."""
        where: dict[str, Any] = {}
        if self._avoided:
            words = ",".join(sorted(self._avoided))
            where["label_selector"] = {"ray.io/node-id": f"!in({words})"}
        if self._room.placement == "SPREAD":
            where["scheduling_strategy"] = "SPREAD"
        return self._open(now, None, **where)

    def _open(self, now: float, bundle: int | None, **options: Any) -> AgentSlot:
        """Asks Ray for an agent."""
        room = self._room
        kind = self._kind.options(num_cpus=room.cpus, num_gpus=room.gpus, **options)
        agent = kind.remote(self._number)
        first = agent.arrive.options(concurrency_group=WORK).remote(room.backend)
        slot = AgentSlot(agent=agent, arrival=first, bundle=bundle, since=now)
        self._slots.append(slot)
        return slot

    def _arrived(self, slot: AgentSlot, here: Arrival) -> None:
        """An agent is there: its process starts, if it is still wanted."""
        odd = difference(here.versions, self._versions)
        hand = self._hands.get(slot.token)
        if odd and hand is not None and hand.role.is_patient:
            slot.here = here
            self._gone(slot, f"has {odd}", is_node=False)
            return
        if odd:
            raise ClusterError(
                f"node {here.node} has {odd}. Expected the same versions on every "
                "node. Install them there, or name them in pip=... of "
                "shoal.clusters.Ray."
            )
        slot.here = here
        slot.ask(time.monotonic())
        if hand is None or hand.slot not in (None, slot):  # another one was first
            self._drop(slot)
            return
        for other in list(hand.slots):
            if other is not slot:
                self._drop(other)
        hand.slots = [slot]
        self._begin(slot.token, hand, slot)

    def _begin(self, token: str, hand: Hand, slot: AgentSlot) -> None:
        if slot.here is not None:
            memory = self._broadcast.home(slot.here, slot.agent)
            variables = {**self._room.variables, **(hand.role.environment or {})}
            role = replace(hand.role, log=None, environment=variables)
            slot.call("start", token, role, memory)
            self._send(token, hand)

    def give(self, token: str, argument: Any, log: Path | None = None) -> None:
        """Sends the argument as soon as the process and its data are there."""
        hand = self._hands.get(token)
        if hand is None:
            return  # it has ended, and `poll` tells
        hand.parts.append(cloudpickle.dumps(argument))
        hand.log, hand.has_part = log, True
        if log is not None:
            with suppress(OSError):  # there, though nothing may be written
                open(log, "ab", opener=alike).close()
        while hand.early:
            self._write(hand, hand.early.popleft())
        self._send(token, hand)

    def _send(self, token: str, hand: Hand) -> None:
        slot = hand.slot
        if slot is None or slot.here is None:
            return
        if not self._broadcast.has_arrived(slot.here.node_id):
            return
        while hand.parts:
            slot.call("give", token, hand.parts.popleft())

    def share(self) -> None:
        """Data goes to each node once, as soon as the node is known."""
        self._broadcast.load()

    def is_waiting(self, token: str) -> bool:
        """Whether no node has had room for it yet."""
        hand = self._hands.get(token)
        return hand is not None and hand.slot is None

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
                for slot in self._slots:
                    slot.asked = max(slot.asked, now - BEAT_S)
            self._hear()
            self._look(time.monotonic())
        found, self._ended = self._ended, {}
        return found

    def _hear(self) -> None:
        """Takes what has come from agents."""
        slots = {ref: b for b in self._slots for ref in b.waited_for()}
        if not slots:
            return
        refs = list(slots)
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            slot = slots[ref]
            if slot not in self._slots:
                continue
            try:
                self._take(slot, ref, ray.get(ref))
            except RayTaskError as error:
                self._failed(slot, ref, error)
            except (RayError, RuntimeError) as error:
                why, is_node = why_gone(error)
                self._gone(slot, why, is_node=is_node)

    def _take(self, slot: AgentSlot, ref: Any, answer: Any) -> None:
        if ref == slot.arrival and slot.here is None:
            self._arrived(slot, answer)
        elif ref == slot.report:
            self._heard(slot, answer)
            slot.ask(time.monotonic())
        elif ref in slot.calls:
            slot.calls.remove(ref)
            if isinstance(answer, Memory) and slot.here is not None:
                self._broadcast.opened(slot.here.node_id, slot.agent, answer)

    def _failed(self, slot: AgentSlot, ref: Any, error: Exception) -> None:
        """A method of an agent raised."""
        if ref in slot.calls:
            slot.calls.remove(ref)
        cause = str(getattr(error, "cause", None) or error)
        self._gone(slot, f"could not start a process: {cause}", is_node=False)

    def _heard(self, slot: AgentSlot, report: Report) -> None:
        for token, line in report.lines:
            hand = self._hands.get(token)
            if hand is not None and hand.has_part:
                self._write(hand, line)
            elif hand is not None:
                hand.early.append(line)
            if hand is not None and self.echo is not None:
                self.echo(hand.role.name, line)
        for token, gone in report.exits.items():
            if slot.token == token:
                slot.token, slot.idle_since = "", time.monotonic()
            self._over(token, gone)

    def _write(self, hand: Hand, line: str) -> None:
        if hand.log is not None:
            with suppress(OSError), open(hand.log, "a", opener=alike) as log:
                log.write(f"{line}\n")

    def _over(self, token: str, gone: Exit) -> None:
        hand = self._hands.pop(token, None)
        if hand is not None:
            self._ended[token] = replace(gone, name=hand.role.name)
            for slot in list(hand.slots):
                if slot.here is None:
                    self._drop(slot)

    def _look(self, now: float) -> None:
        """Gives up nodes that say nothing, and room that does not come."""
        for slot in list(self._slots):
            if slot.here is not None and now - slot.asked > SILENT_S:
                self._gone(slot, f"has said nothing for {now - slot.asked:.0f} s")
        for token, hand in list(self._hands.items()):
            if hand.parts:
                self._send(token, hand)
            if hand.slot is None:
                self._move_in(token, hand, now)
            limit_s = self._limit_s(hand)
            if hand.slot is None and now - hand.since > limit_s:
                reason = (
                    f"found no room on the cluster within {limit_s:g} s, for "
                    f"{self._room.bundle}"
                )
                name = hand.role.name
                self._over(token, Exit(name=name, code=GONE, reason=reason))
        # An agent that comes at once, or not for long, comes within seconds.
        wanted = any(
            now - hand.since < TOGETHER_S and not hand.role.is_patient
            for hand in self._hands.values()
            if hand.slot is None
        )
        self._broadcast.look(may_go=not wanted)

    def _move_in(self, token: str, hand: Hand, now: float) -> None:
        """Whoever waits for room takes that of a process that has ended.

        But it is left for a while to who is to replace that one, if nobody waits for
        the other.
        """
        free = self._idle(now, SPARED_S if hand.role.is_patient else 0.0)
        if free is None:
            return
        for slot in list(hand.slots):
            self._drop(slot)
        hand.slots, free.token = [free], token
        self._begin(token, hand, free)

    def _limit_s(self, hand: Hand) -> float:
        """Seconds until an agent is there; what is set aside needs no room, but Ray."""
        room = self._room
        if hand.role.is_patient:
            return math.inf
        is_set_aside = all(slot.bundle is not None for slot in hand.slots)
        return max(room.start_s, room.wait_s if not is_set_aside else 0.0)

    def _gone(self, slot: AgentSlot, why: str, *, is_node: bool = True) -> None:
        """An agent is lost, and its process with it."""
        token, here = slot.token, slot.here
        self._drop(slot)
        if here is not None and is_node:
            self._avoided.add(here.node_id)
        hand = self._hands.get(token)
        if hand is None:
            return
        if hand.slots and slot in hand.slots:
            hand.slots.remove(slot)
        if hand.slots:
            return
        where = "a node" if here is None else f"node {here.node}"
        reason = f"{where} is gone: it {why}" if is_node else f"{where} {why}"
        self._over(token, Exit(name=hand.role.name, code=GONE, reason=reason))

    def _drop(self, slot: AgentSlot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
            self._broadcast.forget(slot.agent)
            with suppress(RayError):
                ray.kill(slot.agent)

    # --------------------------------------------------------------- ending

    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends one process, by force after `grace_s` seconds; `poll` tells when."""
        hand = self._hands.get(token)
        if hand is None or hand.is_stopped:
            return
        slot = hand.slot
        if slot is None:
            reason = "was ended before any node had room for it"
            self._over(token, Exit(name=hand.role.name, code=GONE, reason=reason))
            return
        hand.is_stopped = True
        slot.call("stop", token, grace_s)

    def rename(self, token: str, name: str) -> None:
        """A process plays another role from now on."""
        hand = self._hands[token]
        hand.role = replace(hand.role, name=name)

    def prune(self, kept: Collection[str]) -> set[str]:
        """Ends and forgets all processes but some; returns those of them that live."""
        for token in self._hands.keys() - kept:
            self.stop(token)
            self._hands.pop(token, None)
        self._ended.clear()
        return set(self._hands)

    def close(self, grace_s: float = 0.0) -> None:
        """Ends every process and gives the room back."""
        self._broadcast.close()
        calls = [b.call("close", grace_s) for b in self._slots if b.here is not None]
        if calls:
            with suppress(RayError):
                ray.wait(calls, num_returns=len(calls), timeout=grace_s + END_S)
        for slot in list(self._slots):
            self._drop(slot)
        self._hands.clear()
        self._ended.clear()
