"""`shoal cluster connect`, and the region of `down`: clusters of other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.clusters.aws.connecting import connect, for_its_end
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.providers import ClusterFile, provider_of
from shoal.errors import ClusterError, ConfigError, CredentialsError
from shoal.plan import environment
from shoal.terminal import say

Region = Annotated[
    str | None,
    typer.Option(help="Region of AWS, for a cluster of another machine."),
]
Profile = Annotated[str | None, typer.Option(help="Profile of AWS, with --region.")]


def show_connect(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster.")],
    region: Annotated[str, typer.Option(help="Region of AWS where it was made.")],
    profile: Annotated[str | None, typer.Option(help="Profile of AWS.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="Private key for its nodes; default as found.")
    ] = None,
) -> None:
    """Makes a cluster on AWS known to this machine, which another one has made.

    All commands then work here, too. What they need is in the cluster's bucket; the
    private key for SSH is not, and Ray's token comes from the head by SSH.
    """
    known = ClusterStore(environment().clusters)
    for sentence in connect(known, name, region=region, profile=profile, key=key):
        say(sentence, err=True)
    state = known.get(name)
    for note in provider_of(state).notes(state):
        say(note)
    head = f", the head is {state.head.address}" if state.nodes else ""
    say(f"{name} is known here: {len(state.nodes)} nodes{head}")


def confirm_name(name: str) -> None:
    """Asks for the name of a cluster whose storage is going to be removed.

    Raises:
        ConfigError: Another name was typed.
    """
    typed = str(typer.prompt(f"Type {name} to remove its storage for ever", err=True))
    if typed.strip() != name:
        raise ConfigError(
            f"{typed!r} was typed. Expected {name!r}, because deleted files cannot be "
            "restored. Nothing was removed."
        )


def found_in(
    store: ClusterStore, name: str, region: str | None, profile: str | None
) -> None:
    """Gets to know a cluster of another machine, if a region is given for it.

    A stack that is gone is no error: there may be storage.
    """
    if region is None or name in store.names():
        return
    try:
        connect(store, name, region=region, profile=profile)
    except CredentialsError:
        raise
    except ClusterError:  # it has not told about itself; its stack is enough
        state = for_its_end(name, region=region, profile=profile)
        with store.lock(name):
            store.write(state)
    except ConfigError as error:
        say(str(error), err=True)


def storage_state(
    store: ClusterStore,
    name: str,
    asked: ClusterFile | None,
    region: str | None,
    profile: str | None,
) -> ClusterState:
    """Returns whose storage is to be removed.

    Raises:
        ConfigError: Nothing says where it is.
    """
    known = store.read(name)
    if known is not None:
        return known
    if asked is not None:
        spec = asked.spec.model_copy(update={"name": name})
        return ClusterState.new(asked.provider.name, spec, "")
    if region is None:
        raise ConfigError(
            f"{name} is not known here, and --delete-storage does not tell where its "
            "storage is. Expected --region or --hosts. Add one."
        )
    return ClusterState(
        name=name, id="", created=0.0, token="", backend="", provider="aws", spec={},
        facts={"region": region, "profile": profile},
    )  # fmt: skip


def remove_storage(state: ClusterState) -> None:
    """Removes what `down` has kept, and says what."""
    for sentence in provider_of(state).remove_storage(state):
        say(sentence)
