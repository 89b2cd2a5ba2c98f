"""Servers that share a vector run on nodes of a cluster, beside its workers.

The toy engine of `test_carriers.py`: each task says that it is on a node of its own.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from shoal.launchers.base import Exit, Role
from shoal.launchers.node_agent import NodeAgent
from tests.contract.test_carriers import Bench, toy
from tests.contract.test_plugin import site

__all__ = ["site", "toy"]

pytestmark = pytest.mark.process

ECHO = """
import os, socket
listener = socket.socket(fileno=os.dup({}))
while True:
    connection, _ = listener.accept()
    connection.sendall(str(os.getppid()).encode())
    connection.close()
"""


def ask(address: tuple[str, int]) -> int:
    """Calls a process of `ECHO`; returns the pid of its agent."""
    with socket.create_connection(address) as connection:
        return int(connection.makefile().read())


def test_a_server_is_started_beside_a_worker_and_again_at_the_same_address(
    toy: Any,
) -> None:
    toy.nodes[:] = ["a", "b"]
    bench = Bench(toy)
    long = "print('there', flush=True); import time; time.sleep(600)"
    workers = [bench.start(long), bench.start(long)]
    assert not bench.launcher.is_settled
    bench.until(lambda: len(bench.lines) == 2)
    assert bench.launcher.is_settled
    assert sorted(bench.launcher.nodes()) == ["a", "b"]
    found = bench.launcher.listen("b", "127.0.0.1")
    bench.until(lambda: found.is_settled)
    assert not found.lost
    role = Role(target="builtins:exec", name="server-1")
    [agent] = [task for task in toy.tasks if task.process.args[-1] == "b"]
    for _ in range(2):
        token = bench.launcher.start_at(found, role)
        bench.launcher.give(token, ECHO.format(found.descriptor))
        assert ask(found.address) == agent.process.pid
        bench.launcher.stop(token)
        assert bench.end_of(token).name == "server-1"
    assert bench.launcher.poll() == {}  # the workers live
    token = bench.launcher.start_at(found, role)
    agent.process.kill()
    ended: dict[str, Exit] = {}
    while len(ended) < 2:
        ended |= bench.launcher.poll()
    assert token in ended
    assert set(workers) & set(ended)
    assert "hung up" in found.lost
    assert bench.launcher.nodes() == ["a"]
    with pytest.raises(ConnectionRefusedError):
        ask(found.address)
    late = bench.launcher.start_at(found, role)
    assert "hung up" in bench.end_of(late).reason
    bench.close()


def test_a_socket_that_cannot_be_opened_is_lost_and_its_agent_works_on(
    toy: Any,
) -> None:
    bench = Bench(toy)
    bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.until(lambda: bench.lines)
    slot = bench.launcher._slots[0]
    assert slot.here is not None
    slot.here = replace(slot.here, node="192.0.2.1")
    found = bench.launcher.listen("elsewhere", "192.0.2.2")
    bench.until(lambda: found.is_settled)
    assert "could not open a socket" in found.lost
    assert bench.launcher.poll() == {}
    bench.close()


def test_the_socket_of_an_agent_never_has_the_number_of_the_data() -> None:
    agent = NodeAgent(-1)
    taken = agent.listen("127.0.0.1").descriptor
    agent.close()
    agent._number = taken  # which is the next one that is free
    numbers = [agent.listen("127.0.0.1").descriptor for _ in range(3)]
    agent.close()
    agent.free()
    assert taken not in numbers


def test_an_agent_without_an_address_opens_no_socket() -> None:
    agent = NodeAgent(-1)
    with pytest.raises(OSError, match="none is known"):
        agent.listen("")  # it would be open to all networks
    agent.free()
