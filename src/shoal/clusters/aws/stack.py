"""The stack of a cluster: makes it, follows it, deletes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.clusters.aws.calls import CallRefused, Calls
from shoal.errors import ClusterError, ProvisionError

PAUSE_S = 5.0
DELETE_LIMIT_S = 3600.0
MOST_DELETES = 3
FAILED = ("CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
BUSY = ("CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS", "UPDATE_IN_PROGRESS")
CANCELLED = ("Resource creation cancelled", "The following resource(s) failed")


@final
@dataclass(frozen=True, kw_only=True)
class Clock:
    """Time for waits; tests have one of their own.

    Args:
        now: Returns seconds that only grow.
        sleep: Sleeps for so many seconds.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@final
@dataclass(frozen=True, kw_only=True)
class StackState:
    """A stack, as AWS describes it.

    Args:
        id: Its ARN.
        status: Its status.
        reason: The service's reason for it.
        tags: Its tags.
        outputs: Its outputs.
        parameters: Its parameters.
    """

    id: str
    status: str
    reason: str
    tags: Mapping[str, str]
    outputs: Mapping[str, str]
    parameters: Mapping[str, str]


def _pairs(found: Sequence[Mapping[str, Any]], key: str, value: str) -> dict[str, str]:
    return {str(one.get(key)): str(one.get(value, "")) for one in found}


@final
class Stack:
    """A stack by name or id.

    Args:
        calls: Calls of AWS.
        name: Name, or ARN: after a delete only that is found.
        clock: Time for waits.
    """

    def __init__(self, calls: Calls, name: str, clock: Clock | None = None) -> None:
        self._calls, self.name = calls, name
        self._clock = clock or Clock()
        self._seen: set[str] = set()
        self.made: dict[str, str] = {}
        """Resource -> its id in AWS, of those that `news` has told about."""

    def state(self) -> StackState | None:
        """Returns its state; None if there is no such stack."""
        try:
            found = self._calls.ask(
                "cloudformation", "DescribeStacks", StackName=self.name
            )
        except CallRefused as error:
            if "does not exist" in error.said or "not exist" in error.said:
                return None
            raise
        told = found["Stacks"][0]
        if told["StackStatus"] == "DELETE_COMPLETE":
            return None
        return StackState(
            id=told["StackId"],
            status=told["StackStatus"],
            reason=str(told.get("StackStatusReason") or ""),
            tags=_pairs(told.get("Tags", ()), "Key", "Value"),
            outputs=_pairs(told.get("Outputs", ()), "OutputKey", "OutputValue"),
            parameters=_pairs(
                told.get("Parameters", ()), "ParameterKey", "ParameterValue"
            ),
        )

    def create(
        self,
        text: str,
        parameters: Mapping[str, str],
        tags: Mapping[str, str],
        *,
        keeps_failed: bool,
    ) -> str:
        """Asks for the stack; returns its ARN.

        Raises:
            ProvisionError: AWS refuses it.
        """
        try:
            found = self._calls.ask(
                "cloudformation", "CreateStack", StackName=self.name,
                TemplateBody=text, Capabilities=["CAPABILITY_IAM"],
                OnFailure="DO_NOTHING" if keeps_failed else "ROLLBACK",
                Parameters=[
                    {"ParameterKey": key, "ParameterValue": value}
                    for key, value in parameters.items()
                ],
                Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
            )  # fmt: skip
        except CallRefused as error:
            raise ProvisionError(
                f"AWS refuses to make the stack {self.name}: {error.said}. Expected "
                "values that CloudFormation accepts. Correct the file; nothing was "
                "made."
            ) from error
        return str(found["StackId"])

    def news(self) -> list[tuple[str, str]]:
        """Returns what has changed: resources and their new state, the oldest first."""
        try:
            events = self._events()
        except CallRefused:
            return []
        news: list[tuple[str, str]] = []
        for event in reversed(events):
            if event["EventId"] in self._seen:
                continue
            self._seen.add(event["EventId"])
            if physical := event.get("PhysicalResourceId"):
                self.made[str(event.get("LogicalResourceId"))] = str(physical)
            step = words_of(str(event.get("ResourceStatus", "")))
            if reason := failure_of(event):
                step = f"{step}: {reason}"
            news.append((str(event.get("LogicalResourceId") or self.name), step))
        return news

    def failures(self) -> list[str]:
        """Returns why resources failed, the first one first, in the service's words."""
        try:
            events = self._events()
        except CallRefused:
            return []
        told = [
            f"{event.get('LogicalResourceId')}: {reason}"
            for event in reversed(events)
            if (reason := failure_of(event))
        ]
        return list(dict.fromkeys(told))

    def delete(self, tell: Callable[[str, str], None] | None = None) -> None:
        """Deletes it and waits until it is gone; repeats what fails.

        Raises:
            ClusterError: A part cannot be deleted, or it takes too long.
        """
        until = self._clock.now() + DELETE_LIMIT_S
        tries, reasons = 0, list[str]()
        while (state := self.state()) is not None:
            is_deleting = state.status == "DELETE_IN_PROGRESS"
            if not is_deleting and tries == MOST_DELETES:
                why = "; ".join(reasons or self.failures()) or state.reason
                raise ClusterError(
                    f"the stack {self.name} is {state.status}: {why}. Expected it to "
                    "be deleted. Remove what is named, then repeat."
                )
            if not is_deleting:
                tries += 1
                try:
                    self._calls.ask(
                        "cloudformation", "DeleteStack", StackName=self.name
                    )
                except CallRefused as error:
                    reasons.append(error.said)
                    continue
            for name, step in self.news():
                if tell is not None:
                    tell(name, step)
            if self._clock.now() > until:
                raise ClusterError(
                    f"the stack {self.name} is still {state.status} after "
                    f"{DELETE_LIMIT_S / 60:.0f} minutes. Expected it to be deleted. "
                    "AWS goes on deleting it; run the same command again later."
                )
            self._clock.sleep(PAUSE_S)

    def _events(self) -> list[Mapping[str, Any]]:
        return list(
            self._calls.pages(
                "cloudformation", "DescribeStackEvents", "StackEvents",
                StackName=self.name,
            )
        )  # fmt: skip


def words_of(status: str) -> str:
    """Returns a status of a resource in words.

    Example:
        >>> words_of("CREATE_IN_PROGRESS"), words_of("DELETE_COMPLETE")
        ('is being made', 'is deleted')
    """
    return {
        "CREATE_IN_PROGRESS": "is being made", "CREATE_COMPLETE": "is made",
        "CREATE_FAILED": "failed", "DELETE_IN_PROGRESS": "is being deleted",
        "DELETE_COMPLETE": "is deleted", "DELETE_FAILED": "failed to be deleted",
        "DELETE_SKIPPED": "is kept",
    }.get(status, status.lower().replace("_", " "))  # fmt: skip


def failure_of(event: Mapping[str, Any]) -> str:
    """Returns the reason of an event about a failure; "" for another."""
    if not str(event.get("ResourceStatus", "")).endswith("_FAILED"):
        return ""
    reason = str(event.get("ResourceStatusReason") or "")
    return "" if reason.startswith(CANCELLED) else reason
