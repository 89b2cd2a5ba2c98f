"""From the file of a cluster, or from its state, to its provider."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from shoal.clusters.cluster_state import ClusterState
from shoal.clusters.provider import Provider
from shoal.clusters.spec_file import (
    ClusterSpec,
    named,
    parse_fields,
    read_fields,
    validated,
    wrong,
)
from shoal.clusters.yaml_text import Lines
from shoal.registry import Registry

OWN = "hosts"

registry: Registry[Provider[Any]] = Registry(
    kind="provider",
    group="shoal.providers",
    builtin={
        "aws": "shoal.clusters.aws.provider:Aws",
        OWN: "shoal.clusters.hosts:OwnHosts",
    },
    base=Provider,
)
"""Providers by name, including those of plug-ins."""


@final
@dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """Content of a file.

    Args:
        provider: Provider that it names.
        spec: Its fields for the provider.
    """

    provider: Provider[Any]
    spec: ClusterSpec


def read_cluster_file(path: Path) -> ClusterFile:
    """Reads the file of a cluster: YAML, or the same as JSON.

    Without a `provider` it describes the user's own hosts.

    Raises:
        ConfigError: The file does not exist, its provider is unknown, or a field is
            invalid; with the line.
    """
    return _of_fields(*read_fields(path), path)


def parse_cluster_file(text: str, path: Path) -> ClusterFile:
    """Reads the text of such a file.

    Args:
        text: YAML, or the same as JSON.
        path: Path of the file, for its name and for messages.

    Raises:
        ConfigError: The provider is unknown, or a field is invalid; with the line.
    """
    is_json = path.suffix == ".json"
    return _of_fields(*parse_fields(text, str(path), is_json=is_json), path)


def _of_fields(fields: dict[str, Any], lines: Lines, path: Path) -> ClusterFile:
    said: object = fields.pop("provider", OWN)
    if not isinstance(said, str):
        raise wrong(str(path), f"provider is {said!r}", "the name of a provider")
    provider = registry.load(said)()
    spec = validated(provider.spec, fields, str(path), lines)
    return ClusterFile(provider=provider, spec=named(spec, path))


def provider_of(state: ClusterState) -> Provider[Any]:
    """Returns the provider of a known cluster.

    Raises:
        ConfigError: Its package is not installed here.
    """
    return registry.load(state.provider)()
