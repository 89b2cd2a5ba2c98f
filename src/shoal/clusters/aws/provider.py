"""AWS as a provider: a stack of CloudFormation becomes the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, ClassVar, final

from shoal.clusters.aws.acquiring import Acquiring, place_of
from shoal.clusters.aws.boot_logs import logs_of, newest
from shoal.clusters.aws.calls import CallRefused, Calls
from shoal.clusters.aws.choices import identity_of
from shoal.clusters.aws.cost import cost_of, require_budget
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.nodes import Place, members
from shoal.clusters.aws.policy import END_ROLE
from shoal.clusters.aws.preview import dollars, preview_of
from shoal.clusters.aws.prices import listed_prices
from shoal.clusters.aws.region import completed
from shoal.clusters.aws.stack import Clock, Stack
from shoal.clusters.aws.storage import bucket_name
from shoal.clusters.cluster_state import ClusterState
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.provider import (
    Acquisition,
    Instance,
    LogText,
    Preview,
    Provider,
)
from shoal.errors import ClusterError


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
            return Acquiring(spec, acquisition, calls, self._clock).run()

    def instances(self, state: ClusterState) -> Sequence[Instance]:
        """Returns the machines, as EC2 and their own objects describe them."""
        if "stack" not in state.facts:
            return ()
        place = place_of(state.name, state.id, state.facts)
        with closing(_calls_of(state.facts)) as calls:
            found, _ = members(calls, place)
        names = state.facts.get("names")
        known: Mapping[str, Any] = names if isinstance(names, dict) else {}
        return [
            Instance(
                id=one.instance,
                address=str(known.get(one.instance, "")),
                state=one.state if one.boot == "ready" else f"{one.state}, {one.boot}",
                is_running=one.state in ("pending", "running"),
            )
            for one in found
        ]

    def notes(self, state: ClusterState) -> Sequence[str]:
        """Returns how many workers came and why, and when it ends."""
        facts, spec = state.facts, state.spec
        lines: list[str] = []
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
        spec = AwsFile.model_validate(state.spec)
        if not facts:  # this machine has lost the state; the stack has a tag
            spec = completed(spec)
            facts = {"region": spec.region, "profile": spec.profile}
        with closing(_calls_of(facts)) as calls:
            stack = Stack(calls, str(facts.get("stack_id") or spec.stack), self._clock)
            found = stack.state()
            if found is None:
                return ()
            if found.tags.get("shoal:cluster") != state.name:
                raise ClusterError(
                    f"the stack {spec.stack} in {facts['region']} has no tag of the "
                    f"cluster {state.name}: Shoal has not made it. Expected one that "
                    "it made. Delete it yourself, if that is meant."
                )
            Stack(calls, found.id, self._clock).delete()
            files = "" if found.parameters.get("FileSystem") != "new" else (
                found.outputs.get("FileSystem", "")
            )  # fmt: skip
            bucket = found.parameters.get("Bucket", "")
            return [
                *_files_that_stay(calls, files),
                f"The bucket {bucket} stays, with runs and logs; remove those of this "
                f"cluster by: aws s3 rm --recursive s3://{bucket}/clusters/"
                f"{state.name}.",
                f"The role {END_ROLE}, which ended it, stays: it is free, and one in "
                "an account.",
                *_forgotten(calls, state.id, files),
            ]


def _calls_of(facts: Mapping[str, Any]) -> Calls:
    """Returns calls in the region of a cluster, by its profile."""
    profile = facts.get("profile")
    return Calls(str(facts["region"]), None if profile is None else str(profile))


def _files_that_stay(calls: Calls, name: str) -> list[str]:
    """Returns a sentence about the file system that the stack has made."""
    if not name:
        return []
    try:
        told = calls.ask("efs", "DescribeFileSystems", FileSystemId=name)
    except CallRefused:
        return []  # it is gone
    except ClusterError:
        size = None  # the stack is deleted: a report is no reason to fail
    else:
        size = told["FileSystems"][0].get("SizeInBytes", {}).get("Value", 0) / 1e9
    price = listed_prices(calls.region).other("efs_gb_month")
    known = "its size is unknown"
    if size is not None:
        month = dollars(None if price is None else price * size)
        known = f"{size:.1f} GB, {month} a month"
    return [
        f"The file system {name} stays: {known}. Use it again by `shared: {name}`, or "
        f"remove it: aws efs delete-file-system --region {calls.region} "
        f"--file-system-id {name}."
    ]


def _forgotten(calls: Calls, id_of: str, files: str) -> list[str]:
    """Returns sentences about whatever still has the tag of the cluster."""
    found = calls.pages(
        "resourcegroupstaggingapi", "GetResources", "ResourceTagMappingList",
        TagFilters=[{"Key": "shoal:id", "Values": [id_of]}],
    )  # fmt: skip
    try:
        names = [str(one["ResourceARN"]) for one in found]
    except ClusterError as error:
        return [f"What else has the tag of the cluster cannot be told: {error}"]
    return [
        f"Still has the tag of the cluster: {name}."
        for name in names
        if not files or not name.endswith(f"/{files}")
    ]
