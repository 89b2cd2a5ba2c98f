"""`up` of a cluster on AWS, in order: ask, agree, make, wait, and the ways in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from shoal.clusters.aws import choices, degrade, storage
from shoal.clusters.aws.asked_prices import asked_prices
from shoal.clusters.aws.calls import CallRefused, Calls
from shoal.clusters.aws.cost import cost_of, require_budget
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.joining import forget_token, send_agent
from shoal.clusters.aws.members import MASTER, Member, aliases_of, lists_of
from shoal.clusters.aws.nodes import Groups, Place, group_names, members
from shoal.clusters.aws.parameters import end_of, parameters_of, tags_of
from shoal.clusters.aws.preview import dollars, preview_of
from shoal.clusters.aws.published import publish
from shoal.clusters.aws.stack import BUSY, FAILED, PAUSE_S, Clock, Stack, StackState
from shoal.clusters.aws.template import MOST_BYTES, template
from shoal.clusters.aws.ways_in import hosts_of, names_in
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.pins import storage_of
from shoal.clusters.provider import Acquisition
from shoal.errors import PlanError, ProvisionError, ShoalError

FREE = ("setup", "environment", "settle_minutes", "wait_minutes", "profile")
"""Fields that may change while a stack is there: they are no part of it."""


@final
class Acquiring:
    """One run of `acquire`.

    Args:
        spec: The file, with its region.
        acquisition: State of the cluster, and the place for facts.
        calls: Calls of AWS.
        clock: Time for waits.
    """

    def __init__(
        self, spec: AwsFile, acquisition: Acquisition, calls: Calls, clock: Clock
    ) -> None:
        self._spec, self._acquisition, self._calls = spec, acquisition, calls
        self._clock = clock
        self._stack = Stack(calls, spec.stack, clock)

    @property
    def _facts(self) -> Mapping[str, Any]:
        return self._acquisition.state.facts

    def run(self) -> HostsFile:
        """Returns the hosts, the master first.

        Raises:
            PlanError: The file cannot work, or is another than the stack was made of.
            ProvisionError: Too few machines came.
        """
        self.begin()
        with self._told_what_runs():
            found = self._follow()
            groups = Groups(self._calls, group_names(found.outputs))
            came = self._wait_for_nodes(groups)
        forget_token(self._calls, self._place)  # agents start no node until it is back
        self._send_lists(came)
        folder = self._acquisition.folder
        return hosts_of(self._spec, self._facts, came, folder)

    def begin(self) -> str:
        """Makes the stack, unless it is there; returns its ARN without waiting for it.

        Raises:
            PlanError: The file cannot work, or is another than the stack was made of.
        """
        if self._spec.storage.runs == "bucket":
            storage_of("s3://")  # before anything costs money
        state = self._stack.state()
        if state is not None:
            self._refuse_others(state)
            if state.status in (*FAILED, "DELETE_FAILED", "DELETE_IN_PROGRESS"):
                self._acquisition.tell(self._spec.stack, f"was {state.status}")
                Stack(self._calls, state.id, self._clock).delete(self._acquisition.tell)
                state = None
        if state is None:
            self._make()
        return str(self._facts.get("stack_id", ""))

    # ------------------------------------------------------------ what is there

    def _refuse_others(self, state: StackState) -> None:
        """Refuses a stack that is of somebody else, or of another file."""
        spec, known = self._spec, self._acquisition.state
        if state.tags.get("shoal:id") != known.id:
            raise PlanError(
                f"the stack {spec.stack} in {spec.region} is not of this cluster: "
                "another machine, or something else, has made it. Expected a free "
                f"name. If it is yours: shoal cluster connect {spec.name} --region "
                f"{spec.region}, or `down` in its place. Else choose another `name`."
            )
        before = self._facts.get("file")
        if not isinstance(before, dict):
            return
        now = self._spec.model_dump(mode="json")
        lines = [
            f"  {name}: {before.get(name)!r} -> {now[name]!r}"
            for name in now
            if name not in FREE and before.get(name) != now[name]
        ]
        if lines:
            raise PlanError(
                f"the stack {spec.stack} was made of another file:\n"
                + "\n".join(lines)
                + "\nExpected the same as long as it is there. Restore the file, or "
                f"run `shoal cluster down {spec.name}` before."
            )

    # --------------------------------------------------------------- making it

    def _make(self) -> None:
        spec, acquisition = self._spec, self._acquisition
        acquisition.tell(spec.stack, "is being checked")
        wishes, id_of = acquisition.wishes, acquisition.state.id
        answers = choices.ask(
            spec, self._calls, str(acquisition.folder), opens=wishes.opens
        )
        prices = asked_prices(
            self._calls, (spec.master.type, spec.workers.type),
            zone=answers.choices.zone, partition=answers.who.partition,
        )  # fmt: skip
        cost = cost_of(spec, prices)
        require_budget(spec, cost)
        wishes.confirm(preview_of(spec, datetime.now(UTC), prices))
        account = answers.who.account
        chosen = answers.choices
        if not answers.has_bucket:
            acquisition.tell(chosen.bucket, "is being made")
            storage.make_bucket(spec, self._calls, account, spec.tags)
        if answers.key is not None:
            self._calls.ask(
                "ec2", "ImportKeyPair", KeyName=answers.key.name,
                PublicKeyMaterial=answers.key.text.encode(),
            )  # fmt: skip
        role = storage.end_role(spec, self._calls, answers.who)
        place = Place(id=id_of, name=spec.name, account=account, bucket=chosen.bucket)
        setup = self._send_setup(place)
        agent = send_agent(self._calls, place)
        end_at = end_of(cost.hours, datetime.now(UTC))
        text = template(chosen.sources, spec.tags)
        if len(text.encode()) > MOST_BYTES:
            raise PlanError(
                f"the template has {len(text.encode()):,} bytes with the tags and SSH "
                f"sources of the file. Expected at most {MOST_BYTES:,}. Use fewer or "
                "shorter ones."
            )
        acquisition.note(
            stack=spec.stack, account=account, bucket=chosen.bucket, end=end_at,
            file=spec.model_dump(mode="json"), key=answers.private_key,
            login=chosen.login, hour=cost.hour,
        )  # fmt: skip
        values = parameters_of(
            spec,
            replace(chosen, end_role=role),
            id_of=id_of,
            end_at=end_at,
            setup=setup,
            agent=agent,
        )
        made = self._stack.create(
            text, values, tags_of(spec, id_of),
            keeps_failed=wishes.keeps_failed,
        )  # fmt: skip
        acquisition.note(stack_id=made)
        publish(self._calls, place, acquisition.state)

    def _send_setup(self, place: Place) -> str:
        """Puts the setup script to the bucket; returns its digest, "" for none."""
        if self._spec.setup is None:
            return ""
        path = Path(self._spec.setup).expanduser()
        try:
            content = path.read_bytes()
        except OSError as error:
            raise PlanError(
                f"the setup script {path} cannot be read: {error.strerror}. Expected a "
                "file. Correct `setup`."
            ) from error
        digest = hashlib.sha256(content).hexdigest()
        self._calls.ask(
            "s3", "PutObject", Bucket=place.bucket, Body=content,
            Key=f"{place.prefix}/setup-{digest}", ExpectedBucketOwner=place.account,
        )  # fmt: skip
        return digest

    def _send_lists(self, came: Sequence[Member]) -> None:
        """Puts the list of nodes to the bucket; each node rewrites its files by it.

        The master's agent does so, too, and may have numbered nodes.
        """
        place = self._place
        where = {
            "Bucket": place.bucket, "Key": f"{place.prefix}/cluster.json",
            "ExpectedBucketOwner": place.account,
        }  # fmt: skip
        before: Any = None
        with suppress(CallRefused, ValueError):  # it is not there yet, or is broken
            answer = self._calls.ask("s3", "GetObject", **where)
            before = json.loads(answer["Body"].read())
        known = before if isinstance(before, dict) else None
        body = json.dumps(lists_of(came, known)).encode()
        self._calls.ask("s3", "PutObject", Body=body, **where)

    # --------------------------------------------------------------- waiting

    def _follow(self) -> StackState:
        """Follows the stack until it is made.

        Raises:
            ProvisionError: It failed, or there will be no master.
        """
        name = self._spec.stack
        while True:
            state = self._stack.state()
            for resource, step in self._stack.news():
                self._acquisition.tell(resource, step)
            if state is None:
                raise ProvisionError(
                    f"the stack {name} is gone: somebody deleted it meanwhile. "
                    "Expected it to be made. Run `up` again."
                )
            if state.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
                return state
            if state.status not in BUSY or state.status == "ROLLBACK_IN_PROGRESS":
                why = "; ".join(self._stack.failures()) or state.reason
                raise ProvisionError(
                    f"the stack {name} is {state.status}: {why}. Expected it to be "
                    "made. Correct what is named, then `up` again."
                )
            self._clock.sleep(PAUSE_S)

    def _wait_for_nodes(self, groups: Groups) -> list[Member]:
        """Waits for the nodes; returns those that can be reached, the master first.

        Raises:
            ProvisionError: Too few came.
        """
        spec, place = self._spec, self._place
        begun = heard = self._clock.now()
        ready: set[str] = set()
        told: dict[str, str] = {}
        while True:
            found, wrong = members(self._calls, place)
            self._name(found)
            self._tell_nodes(found, wrong, told)
            now = self._clock.now()
            came = {one.instance for one in found if one.is_ready}
            heard = now if came - ready else heard
            ready = came
            decision = degrade.decide(
                spec, found, groups.failures(),
                elapsed_s=now - begun, quiet_s=now - heard,
            )  # fmt: skip
            match decision:
                case degrade.Wait():
                    self._clock.sleep(PAUSE_S)
                    continue
                case degrade.GiveUp(reason=reason):
                    workers = sum(one.is_ready and one.role != MASTER for one in found)
                    raise ProvisionError(
                        f"{workers} of {spec.workers.count} workers of the cluster "
                        f"{spec.name} came: {reason}. Expected at least workers.min="
                        f"{spec.workers.min}, and the master. Take another type or "
                        "zone, fewer workers, or try later."
                    )
                case degrade.Fewer(workers=count, reason=reason):
                    groups.lower(found, count)
                    self._acquisition.note(came=count, why=reason)
                    self._acquisition.tell(
                        spec.name,
                        f"goes on with {count} of {spec.workers.count} workers: "
                        f"{reason}",
                    )
                case degrade.Complete():
                    self._acquisition.note(came=spec.workers.count, why="")
            return [one for one in found if one.is_ready]

    def _name(self, found: Sequence[Member]) -> None:
        before = names_in(self._facts)
        names = aliases_of(self._spec.name, found, before)
        if names.items() - before.items():
            self._acquisition.note(names={**before, **names})

    def _tell_nodes(
        self, found: Sequence[Member], wrong: Sequence[str], told: dict[str, str]
    ) -> None:
        for one in found:
            step = {"unheard": one.state, "booting": "boots"}.get(one.boot, one.boot)
            step = f"{step}: {one.reason}" if one.reason else f"{step} ({one.instance})"
            self._once(names_in(self._facts)[one.instance], step, told)
        for sentence in wrong:
            self._once(self._spec.name, sentence, told)

    def _once(self, name: str, step: str, told: dict[str, str]) -> None:
        if told.get(name) != step:
            told[name] = step
            self._acquisition.tell(name, step)

    @property
    def _place(self) -> Place:
        return place_of(self._spec.name, self._acquisition.state.id, self._facts)

    @contextmanager
    def _told_what_runs(self) -> Generator[None]:
        """Adds to an error that something costs, until when, and how to come back."""
        try:
            yield
        except (KeyboardInterrupt, ShoalError) as error:
            is_kept = bool(self._acquisition.state.nodes)
            is_kept |= self._acquisition.wishes.keeps_failed
            if isinstance(error, ShoalError) and not is_kept:
                raise  # the caller releases it
            hour, end = self._facts.get("hour"), self._facts.get("end")
            price = dollars(hour) if isinstance(hour, float) else "an unknown price"
            until = f"ends by itself at {end} UTC" if end else "has no end"
            error.add_note(
                f"Still running: the stack {self._spec.stack} in {self._spec.region}; "
                f"it costs {price} an hour and {until}."
            )
            raise


def place_of(name: str, id_of: str, facts: Mapping[str, Any]) -> Place:
    """Returns where a cluster is, from the facts of its state."""
    return Place(
        id=id_of, name=name,
        account=str(facts.get("account", "")), bucket=str(facts.get("bucket", "")),
    )  # fmt: skip
