"""From the user's name of a cluster to the cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from shoal.clusters.base import Cluster
from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.ray import LAST_RAY, Ray
from shoal.registry import Registry

registry = Registry(
    kind="cluster",
    group="shoal.clusters",
    builtin={
        "ray": "shoal.clusters.ray:Ray",
        "spark": "shoal.clusters.spark:Spark",
    },
    base=Cluster,
)
"""Kinds of clusters by name, including those of plug-ins."""

HERE = ("local", "inline", "auto")
_ADDRESS = re.compile(r"(ray|https?)://.+|.+:\d+")


def find_cluster(given: Any, variables: Mapping[str, str] | None = None) -> Any:
    """Returns the cluster that is meant; other names unchanged.

    Args:
        given: A `Cluster`; the name of a kind, such as "ray"; the address of a Ray
            cluster, or "auto" for the one of this process or of this machine;
            or another name.
        variables: Environment variables, default None means this process's.

    Example:
        >>> find_cluster("local"), find_cluster("10.0.0.7:6379").address
        ('local', '10.0.0.7:6379')
        >>> find_cluster("auto", {"RAY_ADDRESS": "10.0.0.7:6379"}).name
        'ray'
    """
    if given == "auto":
        return Ray() if _has_ray(variables) else "local"
    if not isinstance(given, str) or given in HERE:
        return given
    if _ADDRESS.fullmatch(given):
        return Ray(address=given)
    return registry.load(given)() if given in registry.names() else given


def names() -> tuple[str, ...]:
    """Returns allowed values of `cluster`, except addresses and clusters of hosts."""
    return (*HERE, *registry.names())


def _has_ray(variables: Mapping[str, str] | None) -> bool:
    """Whether this process is part of a Ray cluster, by cheap checks."""
    found = os.environ if variables is None else variables
    if find_spec("ray") is None:
        return False
    return bool(found.get("RAY_ADDRESS")) or LAST_RAY.is_file()


def is_known_elsewhere(given: Any, clusters: str) -> bool:
    """Whether a name is a cluster of hosts that this machine brought up.

    Args:
        given: Value, as for `find_cluster`.
        clusters: Folder of the files that describe clusters.
    """
    if not isinstance(given, str) or given in names() or _ADDRESS.fullmatch(given):
        return False
    return given in ClusterStore(clusters).names()


def name_of(cluster: Any) -> Any:
    """Returns the name of a cluster in a plan; other values unchanged."""
    return cluster.name if isinstance(cluster, Cluster) else cluster
