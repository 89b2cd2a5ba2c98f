"""The master's agent forms the cluster: it counts workers, and tells the stack.

It decides once, before the stack is complete, by `degrade.decide`. A worker that comes
later joins all the same.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, final

from shoal.clusters.aws.degrade import (
    GONE,
    Asked,
    Formation,
    came_of,
    decide,
    failures_of,
)
from shoal.clusters.aws.node_calls import Group, NodeCalls
from shoal.clusters.aws.node_decisions import role_of

FORMED = "formed.json"
SIGNAL_LIMIT_S = 30.0


def signal(url: str, instance: str, *, is_up: bool, why: str) -> None:
    """Tells the stack's wait condition; it takes the first signal alone.

    A signal that it refuses comes too late, after a restart of the agent.

    Args:
        url: Pre-signed address of the wait condition; "" without one.
        instance: Id of the master's instance.
        is_up: Whether the cluster is up.
        why: What came, or why it failed.

    Raises:
        OSError: It cannot be reached.
    """
    if not url:
        return
    told = {
        "Status": "SUCCESS" if is_up else "FAILURE", "UniqueId": instance,
        "Data": why or instance, "Reason": why,
    }  # fmt: skip
    request = urllib.request.Request(
        url, data=json.dumps(told).encode(), method="PUT", headers={"Content-Type": ""}
    )
    try:
        urllib.request.urlopen(request, timeout=SIGNAL_LIMIT_S).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500:
            raise


@final
class Forming:
    """What the agent of the master knows of the cluster that comes up.

    Args:
        calls: Calls of AWS.
        told: What the boot of the master has written.
        now: Returns seconds since 1970.
    """

    def __init__(
        self, calls: NodeCalls, told: Mapping[str, Any], now: Callable[[], float]
    ) -> None:
        self._calls, self._now = calls, now
        self._signal, self._instance = str(told["signal"]), str(told["instance"])
        self._asked = Asked(
            int(told["workers"]), int(told["least"]),
            float(told["settle_s"]), float(told["wait_s"]),
        )  # fmt: skip
        self._groups: dict[str, Group] = {}
        self._ready, self._heard_s = -1, now()
        self.is_done = False

    def turn(
        self, instances: Sequence[Mapping[str, Any]], objects: Mapping[str, Any]
    ) -> str:
        """Decides about the workers that have come; returns what it did, in words.

        Args:
            instances: EC2's descriptions of the cluster's instances.
            objects: Instance -> content of `nodes/INSTANCE.json`.

        Raises:
            Failure: AWS does not answer.
            OSError: The stack's wait condition cannot be reached.
        """
        formed = self._calls.read(FORMED)
        if formed is None:
            formed = self._form(instances, objects)
        if formed is None:
            return ""
        came, asked, why = formed["came"], formed["asked"], str(formed["why"])
        words = f"{came} of {asked} workers" + (f": {why}" if why else "")
        is_up = formed["state"] != "fail"
        signal(self._signal, self._instance, is_up=is_up, why=words)
        self.is_done = True
        return f"{formed['state']}, {words}"

    def _form(
        self, instances: Sequence[Mapping[str, Any]], objects: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Returns what it has decided, and stores it; None to wait."""
        self._groups = self._groups or self._calls.groups()
        workers = self._groups["worker"].name
        refused = failures_of(self._calls.activities(workers))
        came = came_of(instances, objects, refused)
        if came.ready != self._ready:
            self._ready, self._heard_s = came.ready, self._now()
        created = datetime.fromisoformat(self._groups["master"].created)
        found: Formation = decide(
            self._asked, came,
            elapsed_s=self._now() - created.timestamp(),
            quiet_s=self._now() - self._heard_s,
        )  # fmt: skip
        if found.do == "wait":
            return None
        if found.do == "fewer":
            present = [
                one for one in instances
                if role_of(one) == "worker" and one["State"]["Name"] not in GONE
            ]  # fmt: skip
            self._calls.resize(workers, len(present))
        formed = {
            "form": 1, "state": found.do, "asked": self._asked.workers,
            "came": came.ready, "why": found.why,
        }  # fmt: skip
        self._calls.put(FORMED, json.dumps(formed).encode())
        return formed
