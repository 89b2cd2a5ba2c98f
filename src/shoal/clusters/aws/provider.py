"""AWS as a provider: a stack of CloudFormation becomes the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, final

from shoal.clusters.aws import leftovers
from shoal.clusters.aws.acquiring import Acquiring, place_of
from shoal.clusters.aws.boot_logs import logs_of, newest
from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.choices import identity_of
from shoal.clusters.aws.connecting import place_in
from shoal.clusters.aws.cost import cost_of, require_budget
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.joining import send_join
from shoal.clusters.aws.node_findings import (
    end_finding,
    findings_of,
    said_by_nodes,
    statuses_of,
)
from shoal.clusters.aws.nodes import Place, joined, members
from shoal.clusters.aws.preview import dollars, preview_of
from shoal.clusters.aws.prices import listed_prices
from shoal.clusters.aws.published import publish
from shoal.clusters.aws.region import completed
from shoal.clusters.aws.stack import Clock, Stack
from shoal.clusters.aws.storage import auto_bucket, bucket_name
from shoal.clusters.aws.ways_in import names_in, refreshed
from shoal.clusters.cluster_state import ClusterState
from shoal.clusters.doctor import Finding
from shoal.clusters.host_setup import Installation
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.provider import (
    Acquisition,
    Instance,
    LogText,
    Preview,
    Provider,
)
from shoal.errors import ClusterError
from shoal.runs.profiles import note_profile


@final
class Aws(Provider[AwsFile]):
    """Machines of AWS, one stack for each cluster.

    Args:
        clock: Time for waits.
    """

    name: ClassVar[str] = "aws"
    goes_on: ClassVar[bool] = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()

    @property
    def spec(self) -> type[AwsFile]:
        """Returns the fields of a file with `provider: aws`."""
        return AwsFile

    def preview(self, spec: AwsFile) -> Preview:
        """Returns what `up` would make, and its price; asks nobody.

        Raises:
            ConfigError: Nothing says the region.
            PlanError: The budget cannot be kept.
        """
        spec = completed(spec)
        require_budget(spec, cost_of(spec, listed_prices(str(spec.region))))
        return preview_of(spec, datetime.now(UTC))

    def acquire(self, spec: AwsFile, acquisition: Acquisition) -> HostsFile:
        """Makes the stack, or follows it, and waits until nodes can be reached."""
        spec = completed(spec)
        acquisition.note(region=spec.region, profile=spec.profile)
        with closing(Calls(str(spec.region), spec.profile)) as calls:
            hosts = Acquiring(spec, acquisition, calls, self._clock).run()
        note_profile(str(acquisition.state.facts.get("bucket")), spec.profile)
        return hosts

    def begin(self, spec: AwsFile, acquisition: Acquisition) -> str:
        """Makes the stack, or finds it, and returns its ARN."""
        spec = completed(spec)
        acquisition.note(region=spec.region, profile=spec.profile)
        with closing(Calls(str(spec.region), spec.profile)) as calls:
            return Acquiring(spec, acquisition, calls, self._clock).begin()

    def came_up(self, state: ClusterState, installation: Installation | None) -> None:
        """Writes what other machines need to know it, and what later nodes need."""
        place = place_of(state.name, state.id, state.facts)
        with closing(_calls_of(state.facts)) as calls:
            publish(calls, place, state)
            send_join(calls, place, state, installation)

    def instances(self, state: ClusterState) -> Sequence[Instance]:
        """Returns the machines, as EC2 and their own objects describe them."""
        if "stack" not in state.facts:
            return ()
        place = place_of(state.name, state.id, state.facts)
        with closing(_calls_of(state.facts)) as calls:
            found, _ = members(calls, place)
        known = names_in(state.facts)
        return [
            Instance(
                id=one.instance,
                address=known.get(one.instance, ""),
                state=one.state if one.boot == "ready" else f"{one.state}, {one.boot}",
                is_running=one.state in ("pending", "running"),
            )
            for one in found
        ]

    def refresh(self, state: ClusterState, folder: Path) -> ClusterState:
        """Returns the state with the machines of now, and rewrites the ways in."""
        if "stack" not in state.facts or not state.nodes:
            return state  # its `up` did not come so far
        place = place_of(state.name, state.id, state.facts)
        with closing(_calls_of(state.facts)) as calls:
            found, _ = members(calls, place)
            said = joined(calls, place, found)
        return refreshed(state, found, folder, said)

    def findings(self, state: ClusterState) -> Mapping[str, Sequence[Finding]]:
        """Returns boots, EC2's checks, services, mounts and the end, by address."""
        if "stack" not in state.facts or not state.nodes:
            return {}
        names = names_in(state.facts)
        place = place_of(state.name, state.id, state.facts)
        with closing(_calls_of(state.facts)) as calls:
            found, _ = members(calls, place)
            statuses = statuses_of(calls, [one.instance for one in found])
        said = said_by_nodes(state, state.shared or "")
        told = {
            names[one.instance]: findings_of(
                state.name, one, statuses.get(one.instance, ""),
                said.get(names[one.instance]),
            )
            for one in found
            if one.instance in names
        }  # fmt: skip
        end = end_finding(str(state.facts.get("end") or ""), datetime.now(UTC))
        head = state.head.address
        return {**told, head: [*told.get(head, ()), end]}

    def notes(self, state: ClusterState) -> Sequence[str]:
        """Returns how many workers came and why, and when it ends."""
        facts, spec = state.facts, state.spec
        lines: list[str] = []
        if facts.get("machines") == 0:
            lines.append(
                "AWS has no machine of it any more: its end has come, or its stack was "
                f"deleted. `shoal cluster down {state.name}` looks, and forgets it."
            )
        workers = spec.get("workers")
        asked = workers.get("count") if isinstance(workers, dict) else None
        came, why = facts.get("came"), facts.get("why")
        if came is not None and came != asked:
            lines.append(
                f"{came} of {asked} workers came: {why}. A run has that many fewer "
                "workers; the group does not try again."
            )
        if facts.get("stack"):
            hour, end = facts.get("hour"), facts.get("end")
            price = dollars(hour if isinstance(hour, float) else None)
            until = f"it ends by itself at {end} UTC" if end else "no end is set"
            lines.append(f"It costs {price} an hour at full number; {until}.")
        return lines

    def logs(self, state: ClusterState, instance: str) -> Iterable[LogText]:
        """Returns logs of boots and setup scripts, from the bucket."""
        if "bucket" in state.facts:
            place = place_of(state.name, state.id, state.facts)
            with closing(_calls_of(state.facts)) as calls:
                return list(logs_of(calls, place, instance))
        spec = completed(AwsFile.model_validate(state.spec))
        with closing(Calls(str(spec.region), spec.profile)) as calls:
            account = identity_of(calls).account
            bucket = bucket_name(spec, account)
            place = Place(id="", name=state.name, account=account, bucket=bucket)
            return list(logs_of(calls, newest(calls, place), instance))

    def release(self, state: ClusterState) -> Sequence[str]:
        """Deletes the stack, and waits; returns what stays on purpose.

        Raises:
            ClusterError: A part cannot be deleted.
        """
        facts = state.facts
        if facts and "stack" not in facts:
            return ()  # nothing was asked for
        name = f"shoal-{state.name}"
        if not facts:  # this machine has lost the state; the stack has a tag
            spec = completed(AwsFile.model_validate(state.spec))
            facts = {"region": spec.region, "profile": spec.profile}
        with closing(_calls_of(facts)) as calls:
            stack = Stack(calls, str(facts.get("stack_id") or name), self._clock)
            found = stack.state()
            if found is None:
                return ()
            if found.tags.get("shoal:cluster") != state.name:
                raise ClusterError(
                    f"the stack {name} in {facts['region']} has no tag of the "
                    f"cluster {state.name}: Shoal has not made it. Expected one that "
                    "it made. Delete it yourself, if that is meant."
                )
            Stack(calls, found.id, self._clock).delete()
            files = "" if found.parameters.get("FileSystem") != "new" else (
                found.outputs.get("FileSystem", "")
            )  # fmt: skip
            place = place_in(found, state.name)
            return [
                *leftovers.kept_sentences(
                    calls, state.name, account=place.account, bucket=place.bucket,
                    files=files,
                ),
                *leftovers.forgotten(calls, place.id, files),
            ]  # fmt: skip

    def remove_storage(self, state: ClusterState) -> Sequence[str]:
        """Removes file systems that its stacks made, and its objects in the bucket.

        Raises:
            ClusterError: Its stack is there, or a part cannot be removed.
        """
        facts: Mapping[str, Any] = state.facts
        if "region" not in facts:  # this machine has lost the state
            spec = completed(AwsFile.model_validate(state.spec))
            facts = {"region": spec.region, "profile": spec.profile}
        with closing(_calls_of(facts)) as calls:
            if Stack(calls, f"shoal-{state.name}").state() is not None:
                raise ClusterError(
                    f"the stack shoal-{state.name} is still in {calls.region}. "
                    "Expected the stack to be deleted before its storage. Run "
                    f"`shoal cluster down {state.name}` again."
                )
            account = identity_of(calls).account
            known = state.spec.get("storage")
            said = known.get("bucket") if isinstance(known, dict) else None
            bucket = facts.get("bucket") or (
                said if isinstance(said, str) and said != "auto"
                else auto_bucket(account, calls.region)
            )  # fmt: skip
            return leftovers.remove(
                calls, state.name, account=account, bucket=str(bucket)
            )


def _calls_of(facts: Mapping[str, Any]) -> Calls:
    """Returns calls in the region of a cluster, by its profile."""
    profile = facts.get("profile")
    return Calls(str(facts["region"]), None if profile is None else str(profile))
