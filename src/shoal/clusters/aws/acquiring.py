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

from shoal.clusters.aws import choices, storage
from shoal.clusters.aws.asked_prices import asked_prices
from shoal.clusters.aws.calls import CallRefused, Calls, Unanswered
from shoal.clusters.aws.cost import cost_of, require_budget
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.following import Following
from shoal.clusters.aws.joining import hold_joins, send_agent
from shoal.clusters.aws.members import Member, lists_of
from shoal.clusters.aws.nodes import Place, token_of
from shoal.clusters.aws.parameters import end_of, parameters_of, tags_of
from shoal.clusters.aws.preview import dollars, preview_of
from shoal.clusters.aws.published import publish
from shoal.clusters.aws.stack import FAILED, Clock, Stack, StackState
from shoal.clusters.aws.template import MOST_BYTES, template
from shoal.clusters.aws.ways_in import hosts_of
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.pins import storage_of
from shoal.clusters.provider import Acquisition
from shoal.errors import PlanError, ShoalError

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
            following = Following(
                self._spec, self._acquisition, self._calls, self._place,
                self._stack, self._clock,
            )  # fmt: skip
            came = following.run()
            self._acquisition.set_token(token_of(self._calls, self._place))
            hold_joins(self._calls, self._place)
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
                f"the stack {spec.stack} was made from a file with other values:\n"
                + "\n".join(lines)
                + "\nExpected the same values while the stack exists. Restore the "
                f"file, or run `shoal cluster down {spec.name}` first."
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
            keeps_failed=wishes.keeps_failed,
        )
        made = self._stack.create(
            text, values, tags_of(spec, id_of),
            keeps_failed=wishes.keeps_failed,
        )  # fmt: skip
        acquisition.note(stack_id=made)
        with self._told_what_runs():
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

    @property
    def _place(self) -> Place:
        return place_of(self._spec.name, self._acquisition.state.id, self._facts)

    @contextmanager
    def _told_what_runs(self) -> Generator[None]:
        """Adds to an error that something costs, until when, and how to come back."""
        try:
            yield
        except (KeyboardInterrupt, ShoalError) as error:
            if isinstance(error, Unanswered):
                self._acquisition.keep()
            if isinstance(error, ShoalError) and not self._acquisition.is_kept:
                raise  # the caller releases it
            hour, end = self._facts.get("hour"), self._facts.get("end")
            price = dollars(hour) if isinstance(hour, float) else "an unknown price"
            until = f"ends by itself at {end} UTC" if end else "has no end"
            error.add_note(
                f"Still running: the stack {self._spec.stack} in {self._spec.region}; "
                f"it costs {price} an hour and {until}."
            )
            if isinstance(error, Unanswered):
                error.add_note(
                    "AWS goes on with it. The same command follows it; `shoal cluster "
                    f"down {self._spec.name}` ends it."
                )
            raise


def place_of(name: str, id_of: str, facts: Mapping[str, Any]) -> Place:
    """Returns where a cluster is, from the facts of its state."""
    return Place(
        id=id_of, name=name,
        account=str(facts.get("account", "")), bucket=str(facts.get("bucket", "")),
    )  # fmt: skip
