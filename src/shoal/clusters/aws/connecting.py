"""Makes a cluster on AWS known to another machine than the one that made it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.keys import AUTO, own_key, private_key_of
from shoal.clusters.aws.nodes import Place
from shoal.clusters.aws.published import Published, published
from shoal.clusters.aws.stack import Stack, StackState
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.refreshing import refreshed
from shoal.errors import ConfigError
from shoal.runs.profiles import note_profile


def connect(
    store: ClusterStore,
    name: str,
    *,
    region: str,
    profile: str | None = None,
    key: Path | None = None,
) -> list[str]:
    """Stores the state of a cluster that is up; returns sentences about what lacks.

    Args:
        store: Store of states.
        name: Name of the cluster.
        region: Its region.
        profile: Profile of the credentials; None for the environment's.
        key: Private key for its nodes; None for the one that is found here.

    Raises:
        ConfigError: There is no such stack, or another cluster has its name here.
        ClusterError: It cannot be read.
        CredentialsError: The credentials are missing, expired or too weak.
    """
    with closing(Calls(region, profile)) as calls:
        stack = stack_of(calls, name)
        place = place_in(stack, name)
        told = published(calls, place)
    private, said = _key(told.spec, stack.parameters, store.folder, key)
    facts = {
        **told.facts, "region": region, "profile": profile, "stack": told.spec.stack,
        "stack_id": stack.id, "account": place.account, "bucket": place.bucket,
        "end": stack.parameters.get("EndAt", ""), "key": private,
        "login": stack.parameters.get("LoginUser", ""),
    }  # fmt: skip
    with store.lock(name):
        known = store.read(name)
        if known is not None and known.id != told.id:
            raise ConfigError(
                f"this machine knows another cluster with the name {name}. Expected "
                f"a free name, or the same cluster. Run `shoal cluster down {name}` "
                "first, which ends the other one."
            )
        token = "" if known is None else known.token
        store.write(_state(told, facts, token))
    note_profile(place.bucket, profile)
    refreshed(store, name)
    return said


def for_its_end(name: str, *, region: str, profile: str | None = None) -> ClusterState:
    """Returns a state that is enough to end a cluster, from its stack alone.

    Raises:
        ConfigError: There is no such stack.
    """
    with closing(Calls(region, profile)) as calls:
        stack = stack_of(calls, name)
    place = place_in(stack, name)
    facts = {
        "region": region, "profile": profile, "stack": f"shoal-{name}",
        "stack_id": stack.id, "account": place.account, "bucket": place.bucket,
    }  # fmt: skip
    return ClusterState(
        name=name, id=place.id, created=0.0, token="", backend="", provider="aws",
        spec={}, facts=facts,
    )  # fmt: skip


def stack_of(calls: Calls, name: str) -> StackState:
    """Returns the stack of a cluster.

    Raises:
        ConfigError: There is none in the region, or it is not of that cluster.
    """
    found = Stack(calls, f"shoal-{name}").state()
    if found is None or found.tags.get("shoal:cluster") != name:
        raise ConfigError(
            f"no cluster {name} is up in {calls.region}: there is no stack "
            f"shoal-{name} with its tag. Expected the region where it was made. "
            "`shoal cluster list --all-regions` shows those of the account."
        )
    return found


def place_in(stack: StackState, name: str) -> Place:
    """Returns where a cluster is, from its stack."""
    return Place(
        id=stack.tags.get("shoal:id", ""), name=name, account=stack.id.split(":")[4],
        bucket=stack.parameters.get("Bucket", ""),
    )  # fmt: skip


def _state(told: Published, facts: Mapping[str, Any], token: str) -> ClusterState:
    return ClusterState(
        name=told.name, id=told.id, created=told.created, token=token,
        backend=told.backend, environment=told.environment, port=told.port,
        nodes=told.nodes, provider="aws", spec=told.spec.model_dump(mode="json"),
        facts=facts,
    )  # fmt: skip


def _key(
    spec: AwsFile, parameters: Mapping[str, str], folder: Path, said: Path | None
) -> tuple[str, list[str]]:
    """Returns the private key for the nodes, "" for the agent's; and what lacks."""
    if said is not None:
        if not said.is_file():
            raise ConfigError(
                f"--key {said} is no file. Expected a private key. Correct the path."
            )
        return str(said.absolute()), []
    if spec.access.session_manager:
        return "", []
    if spec.access.key == AUTO:
        private = own_key(str(folder), parameters.get("KeyName", ""))
    else:
        private = private_key_of(spec.access.key)
    lacking = (
        f"The private key {parameters.get('KeyName')!r} is not on this machine: ssh "
        "takes those of its agent. Expected it for `ssh`, `submit` and `up`. Copy it "
        "from the machine that made the cluster, and connect again with --key FILE."
    )
    return private, [] if private else [lacking]
