"""When a node counts as lost, for a driver that looks seldom."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, final

import pytest

from shoal.errors import ClusterError
from shoal.launchers import remote
from shoal.launchers.base import Exit, Role
from shoal.launchers.carrier import CallResult, Carrier, RequestedAgent
from shoal.launchers.node_agent import AgentReport, Arrival, Memory
from shoal.launchers.shared import SharedBlob
from shoal.launchers.versions import versions
from tests.support.environments import SettableClock

ARRIVAL = Arrival(
    node="10.0.0.3", node_id="other", versions=versions("", ""),
    memory=Memory(pid=1, descriptor=3, mark=(0, 0)),
)  # fmt: skip


@final
class OneAgent(Carrier):
    """A carrier whose only agent arrives, and answers while `is_there`."""

    def __init__(self, arrival: Arrival = ARRIVAL, *, has_room: bool = False) -> None:
        self.is_there, self._count, self._arrival = True, 0, arrival
        self._has_room = has_room

    @property
    def node_id(self) -> str:
        return "here"

    @property
    def room(self) -> str:
        return "a task"

    def request_agents(
        self, avoided: Collection[str], *, is_patient: bool
    ) -> Sequence[RequestedAgent]:
        there = ("arrive", 0)
        return [
            RequestedAgent(
                agent="a", arrival=there, limit_s=60.0, has_room=self._has_room
            )
        ]

    def call(self, agent: Any, method: str, *arguments: Any) -> Any:
        self._count += 1
        return method, self._count

    def ready(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, CallResult]:
        values = {"arrive": self._arrival, "report": AgentReport()}
        if not self.is_there:
            return {}
        return {call: CallResult(value=values.get(call[0])) for call in calls}

    def put(self, piece: Any) -> Any:
        return piece

    def release(self, agent: Any) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SettableClock:
    found = SettableClock(1000.0)
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=found))
    return found


@pytest.fixture
def driver(clock: SettableClock) -> Iterator[Any]:
    """A launcher that has an agent, and whose turns a test times."""
    blob, carrier = SharedBlob(), OneAgent()
    launcher = remote.RemoteLauncher(carrier, blob, "", {})
    launcher.start(Role(target="builtins:exec", name="worker-0"))

    def look(times: int, *, every_s: float) -> list[Exit]:
        found: list[Exit] = []
        for _ in range(times):
            clock.now += every_s
            found += launcher.poll().values()
        return found

    look(2, every_s=0.1)
    yield SimpleNamespace(carrier=carrier, look=look)
    launcher.close()
    blob.close()


def test_a_driver_whose_callbacks_are_slow_notices_a_node_that_is_gone(
    driver: Any,
) -> None:
    """Each turn takes longer than a pause of this process."""
    assert driver.look(9, every_s=2.0) == []
    driver.carrier.is_there = False
    [end] = driver.look(9, every_s=2.0)
    assert end.is_lost
    assert end.reason.startswith("node 10.0.0.3 is gone: it has said nothing for")


def test_a_pause_of_the_driver_loses_no_node(driver: Any) -> None:
    driver.carrier.is_there = False
    assert driver.look(1, every_s=3600.0) == []
    assert driver.look(9, every_s=0.1) == []
    driver.carrier.is_there = True
    assert driver.look(99, every_s=0.1) == []


def test_a_node_with_another_keras_is_an_error() -> None:
    blob = SharedBlob()
    other = replace(ARRIVAL, versions={**ARRIVAL.versions, "keras": "3.0.0"})
    launcher = remote.RemoteLauncher(OneAgent(other), blob, "", {})
    launcher.start(Role(target="builtins:exec", name="worker-0"))
    with pytest.raises(ClusterError, match=r"node 10\.0\.0\.3 has keras 3\.0\.0"):
        launcher.poll()
    launcher.close()
    blob.close()


@pytest.mark.parametrize(
    ("has_room", "words"),
    [
        (False, "found no room on the cluster within 60 s, for a task"),
        (True, "did not start within 60 s, though a task is reserved for it: look at"),
    ],
)
def test_an_agent_that_does_not_arrive_is_given_up(
    clock: SettableClock, has_room: bool, words: str
) -> None:
    blob, carrier = SharedBlob(), OneAgent(has_room=has_room)
    carrier.is_there = False
    launcher = remote.RemoteLauncher(carrier, blob, "", {})
    launcher.start(Role(target="builtins:exec", name="worker-0"))
    clock.now += 59.0
    assert launcher.poll() == {}
    clock.now += 2.0
    [end] = launcher.poll().values()
    assert words in end.reason
    launcher.close()
    blob.close()
