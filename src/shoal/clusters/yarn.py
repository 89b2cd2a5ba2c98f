"""The number of workers for which a YARN cluster has room, by its ResourceManager."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass, field
from typing import Any, final

from shoal.errors import ClusterError, ConfigError

USUAL = "http://localhost:8088"  # for example on the master of EMR
METRICS = "/ws/v1/cluster/metrics"
LIMIT_S = 10.0
MOST_BYTES = 1 << 20


@final
@dataclass(frozen=True)
class Yarn:
    """As many workers as the active nodes of a YARN cluster have cores.

    Pass it as `workers`; "yarn" is one without arguments. It only counts:
    `cluster` decides where workers run.

    Args:
        address: Address of the ResourceManager's web interface, as
            "http://master:8088"; default None means $SHOAL_YARN, else http://localhost:8088.
        max_workers: Largest number, for any size of cluster, at least 1; None for no
            limit.
        cores_each: Cores of one worker, at least 1.

    Example:
        >>> Yarn(max_workers=16).read(
        ...     {"clusterMetrics": {"activeNodes": 3, "totalVirtualCores": 24}}
        ... )
        16
    """

    address: str | None = None
    max_workers: int | None = field(default=None, kw_only=True)
    cores_each: int = field(default=1, kw_only=True)

    def count(self, usual: str | None = None) -> int:
        """Asks the ResourceManager; returns the number of workers, at least 1.

        Args:
            usual: Its address if none was given; default None means USUAL.

        Raises:
            ClusterError: It does not answer, or its answer is invalid.
            ConfigError: A number or the address cannot be used.
        """
        self._check()
        address = self.address or usual or USUAL
        if not address.startswith(("http://", "https://")):
            raise ConfigError(
                f"{address!r} is not a ResourceManager's address. Expected one such as "
                f"{USUAL}. Pass Yarn(address=...), or set SHOAL_YARN."
            )
        return self.read(_ask(address.rstrip("/") + METRICS))

    def _check(self) -> None:
        for name, number in (
            ("max_workers", self.max_workers),
            ("cores_each", self.cores_each),
        ):
            if number is not None and number < 1:
                raise ConfigError(
                    f"{name}={number} cannot be used. Expected a whole number of at "
                    "least 1. Correct it, or leave it out."
                )

    def read(self, answer: Any) -> int:
        """Returns the number of workers that an answer allows.

        Raises:
            ClusterError: The answer is invalid, or there is no active node.
        """
        try:
            metrics = answer["clusterMetrics"]
            nodes, cores = (
                int(metrics[name]) for name in ("activeNodes", "totalVirtualCores")
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ClusterError(
                f"the ResourceManager's answer about its cluster cannot be read "
                f"({error!r}). Expected clusterMetrics with activeNodes and "
                "totalVirtualCores. Check that the address is that of a "
                "ResourceManager."
            ) from None
        if nodes < 1 or cores < self.cores_each:
            raise ClusterError(
                f"the YARN cluster has {nodes} active nodes with {cores} cores. "
                f"Expected room for one worker of {self.cores_each}. Start nodes, or "
                "pass workers as a number."
            )
        workers = nodes * max(1, cores // nodes // self.cores_each)
        return workers if self.max_workers is None else min(workers, self.max_workers)


def _ask(url: str) -> Any:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ClusterError(
            f"the ResourceManager at {url} gave no answer that can be read: {why}. "
            f"Expected JSON within {LIMIT_S:g} s. Check that it runs there and "
            "can be reached without Kerberos, which is not supported; or pass "
            "workers as a number."
        ) from None
