"""Follows a stack and its nodes until the cluster can be reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.degrade import Asked, Came, decide, is_permanent
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.members import MASTER, Formed, Member, aliases_of
from shoal.clusters.aws.nodes import Place, formed, members, refused_launches
from shoal.clusters.aws.stack import BUSY, PAUSE_S, Clock, Stack, StackState
from shoal.clusters.aws.ways_in import names_in
from shoal.clusters.provider import Acquisition
from shoal.errors import ProvisionError


@final
class Following:
    """One wait for a cluster.

    The master's agent decides how many workers are enough, and tells the stack. A
    later `up` waits for as many.

    Args:
        spec: The file, with its region.
        acquisition: State of the cluster, and the place for facts.
        calls: Calls of AWS.
        place: Where the cluster is.
        stack: Its stack.
        clock: Time for waits.
    """

    def __init__(
        self,
        spec: AwsFile,
        acquisition: Acquisition,
        calls: Calls,
        place: Place,
        stack: Stack,
        clock: Clock,
    ) -> None:
        self._spec, self._acquisition, self._calls = spec, acquisition, calls
        self._place, self._stack, self._clock = place, stack, clock
        self._begun_s = self._heard_s = clock.now()
        self._ready: set[str] = set()
        self._told: dict[str, str] = {}
        self._sentences: set[str] = set()

    def run(self) -> list[Member]:
        """Returns the nodes that can be reached, the master first.

        Raises:
            ProvisionError: The stack failed, or too few nodes came.
        """
        while True:
            state = self._stack.state()
            for resource, step in self._stack.news():
                self._acquisition.tell(resource, step)
            made = self._made(state)
            found, wrong = members(self._calls, self._place)
            self._tell_nodes(found, wrong)
            done = formed(self._calls, self._place) if made is not None else None
            if made is None:
                self._require_master()
            elif self._is_enough(made, done, found):
                return [one for one in found if one.is_ready]
            self._clock.sleep(PAUSE_S)

    def _made(self, state: StackState | None) -> StackState | None:
        """Returns the stack if it is made; None while it is being made.

        Raises:
            ProvisionError: It failed.
        """
        name = self._spec.stack
        if state is None:
            raise ProvisionError(
                f"the stack {name} was deleted while it was being made. "
                "Expected it to stay. Run `shoal cluster up` again."
            )
        if state.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            return state
        if state.status not in BUSY or state.status == "ROLLBACK_IN_PROGRESS":
            why = "; ".join(self._stack.failures()) or state.reason
            raise ProvisionError(
                f"the stack {name} could not be made, its state is {state.status}: "
                f"{why}. Expected CREATE_COMPLETE. Correct what AWS names, then run "
                "`shoal cluster up` again."
            )
        return None

    def _require_master(self) -> None:
        """Asks why there is no master, while the stack waits for one.

        Raises:
            ProvisionError: It cannot come, however long one waits.
        """
        group = self._stack.made.get("Masters")
        if group is None:
            return
        for reason in refused_launches(self._calls, group):
            if is_permanent(reason):
                raise ProvisionError(
                    f"AWS launches no master for cluster {self._spec.name}: {reason}. "
                    "Expected one machine. Correct what AWS names, then run "
                    "`shoal cluster up` again."
                )
            self._once("Masters", f"is not launched: {reason}")

    def _is_enough(
        self, made: StackState, done: Formed | None, found: Sequence[Member]
    ) -> bool:
        """Tells whether the nodes that came are enough; notes why they are fewer.

        Raises:
            ProvisionError: They are too few.
        """
        spec, now = self._spec, self._clock.now()
        workers = [one for one in found if one.role != MASTER]
        ready = {one.instance for one in workers if one.is_ready}
        self._heard_s = now if ready - self._ready else self._heard_s
        self._ready = ready
        if done is not None and done.state == "fail":
            raise self._too_few(done.why)
        waits_for = spec.workers.count if done is None else done.came
        has_master = any(one.is_ready and one.role == MASTER for one in found)
        is_late = now - self._begun_s > spec.wait_minutes * 60
        if not has_master or done is None:
            if is_late:
                raise self._too_few("the master did not come in time")
            return False
        booting = [one for one in workers if one.boot in ("unheard", "booting")]
        is_short = len(ready) < waits_for
        refused = (
            refused_launches(self._calls, made.outputs["Workers"]) if is_short else []
        )
        decision = decide(
            Asked(
                waits_for, spec.workers.min,
                spec.settle_minutes * 60, spec.wait_minutes * 60,
            ),
            Came(len(ready), len(booting), tuple(refused)),
            elapsed_s=now - self._begun_s, quiet_s=now - self._heard_s,
        )  # fmt: skip
        if decision.do == "fail":
            raise self._too_few(decision.why)
        if decision.do == "wait":
            return False
        why = decision.why or done.why
        self._acquisition.note(came=len(ready), why=why)
        if len(ready) < spec.workers.count:
            self._acquisition.tell(
                spec.name,
                f"goes on with {len(ready)} of {spec.workers.count} workers: {why}",
            )
        return True

    def _too_few(self, reason: str) -> ProvisionError:
        spec = self._spec
        return ProvisionError(
            f"{len(self._ready)} of {spec.workers.count} workers of the cluster "
            f"{spec.name} are ready: {reason}. Expected at least workers.min="
            f"{spec.workers.min}, and the master. Choose another type or zone, ask for "
            "fewer workers, or try later."
        )

    def _tell_nodes(self, found: Sequence[Member], wrong: Sequence[str]) -> None:
        before = names_in(self._acquisition.state.facts)
        names = {**before, **aliases_of(self._spec.name, found, before)}
        if names != before:
            self._acquisition.note(names=dict(names))
        for one in found:
            step = {"unheard": one.state, "booting": "boots"}.get(one.boot, one.boot)
            step = f"{step}: {one.reason}" if one.reason else f"{step} ({one.instance})"
            self._once(names[one.instance], step)
        for sentence in wrong:
            if sentence not in self._sentences:
                self._sentences.add(sentence)
                self._acquisition.tell(self._spec.name, sentence)

    def _once(self, name: str, step: str) -> None:
        if self._told.get(name) != step:
            self._told[name] = step
            self._acquisition.tell(name, step)
