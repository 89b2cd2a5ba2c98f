"""Nodes for servers, and nodes that do not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from shoal.engine.controller.endpoints import OwnSocket, ServerEndpoints, ServerSocket
from shoal.engine.controller.placement import place_servers
from shoal.errors import ClusterError
from shoal.launchers.base import NodeSocket

HOST = "127.0.0.1"


class FakeNodes:
    """The part of a launcher that opens sockets.

    Args:
        names: Nodes with an agent.
        answer: Called with each requested socket at the next look.
    """

    def __init__(
        self, names: Sequence[str], answer: Callable[[NodeSocket], None]
    ) -> None:
        self.names, self.answer = list(names), answer
        self.asked: list[NodeSocket] = []
        self.is_settled = False

    def nodes(self) -> Sequence[str]:
        return list(self.names)

    def listen(self, node_id: str, host: str) -> NodeSocket:
        self.asked.append(NodeSocket(node=node_id, node_id=node_id, host=host))
        return self.asked[-1]

    def look(self) -> None:
        self.is_settled = True
        for one in self.asked:
            if not one.is_settled:
                self.answer(one)


ports = count(1000)


def opens(one: NodeSocket) -> None:
    one.port, one.descriptor = next(ports), 7


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def pairs_of(stack: ExitStack, number: int) -> list[ServerEndpoints]:
    def start(name: str, at: ServerSocket) -> str:
        return name

    found = [
        ServerEndpoints(f"server-{n}", (HOST, 0), start, is_here=False)
        for n in range(1, number + 1)
    ]
    for pair in found:
        stack.callback(pair.close)
    return found


def place(
    pairs: Sequence[ServerEndpoints], nodes: FakeNodes, *, has_standby: bool = False
) -> list[str]:
    """Returns the node of each leader."""
    seconds, launcher = count(), nodes
    given: Any = launcher
    place_servers(
        pairs, given, HOST, has_standby=has_standby, look=nodes.look,
        clock=lambda: float(next(seconds)),
    )  # fmt: skip
    return [pair.leader.node for pair in pairs]


def test_servers_go_to_the_nodes_with_the_fewest(stack: ExitStack) -> None:
    assert place(pairs_of(stack, 2), FakeNodes("ab", opens)) == ["a", "b"]
    assert place(pairs_of(stack, 4), FakeNodes("a", opens)) == ["a", "a", "", "a"]
    assert place(pairs_of(stack, 2), FakeNodes("", opens)) == ["", ""]


def test_a_server_with_a_standby_has_places_that_no_node_takes_away(
    stack: ExitStack,
) -> None:
    [pair] = pairs_of(stack, 1)
    nodes = FakeNodes("ab", opens)
    assert place([pair], nodes, has_standby=True) == ["a"]
    told = pair.addresses(has_standby=True)
    assert len(told) == 4
    pair.start_server()
    pair.start_standby()
    assert pair.follower.node == "b"
    seen = [pair.address]
    for one in nodes.asked:
        one.lost = "is gone"
        pair.promote()
        seen.append(pair.address)
        pair.start_standby()
    assert isinstance(pair.leader, OwnSocket)
    assert isinstance(pair.follower, OwnSocket)
    for _ in range(3):
        pair.promote()
        seen.append(pair.address)
        pair.start_standby()
    assert set(seen) == set(told)  # workers were told each of them


def test_a_node_that_is_lost_meanwhile_is_left_for_another(stack: ExitStack) -> None:
    def answer(one: NodeSocket) -> None:
        if one.node == "a":
            one.lost = "hung up"
            nodes.names.remove("a")
        else:
            opens(one)

    nodes = FakeNodes("ab", answer)
    assert place(pairs_of(stack, 1), nodes) == ["b"]


def test_a_node_without_an_address_is_named(stack: ExitStack) -> None:
    def refuse(one: NodeSocket) -> None:
        one.lost = "could not open a socket: no such address"

    nodes = FakeNodes("a", refuse)
    with pytest.raises(ClusterError, match="node a could not open a socket"):
        place(pairs_of(stack, 1), nodes)


def test_a_node_that_says_nothing_is_not_waited_for_without_a_limit(
    stack: ExitStack,
) -> None:
    nodes = FakeNodes("a", lambda one: None)
    with pytest.raises(ClusterError, match=r"has not opened a socket .* within 60 s"):
        place(pairs_of(stack, 1), nodes)
