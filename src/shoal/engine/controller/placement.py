"""Decides on which nodes servers run, and waits until they can be reached there.

The server that orders events is on the machine of the controller. The others go to
nodes that have fewest servers, beside the agents of workers: each brings a network link
of its own (decision 30).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from shoal.engine.controller.endpoints import ServerEndpoints
from shoal.errors import ClusterError
from shoal.interruption import check, pause
from shoal.launchers.base import Launcher, NodeSocket

HERE = ""
"""The machine of the controller, among ids of nodes."""
LISTEN_S = 60.0  # for an agent to open a socket: it may be writing data meanwhile
LOOK_S = 0.02
MOST_ATTEMPTS = 3

_Asked: TypeAlias = list[tuple[ServerEndpoints, list[NodeSocket]]]
"""Servers, and the sockets that were requested for each."""


def choose(nodes: Sequence[str], used: Counter[str], count: int) -> list[str]:
    """Returns the places with the fewest servers, `HERE` last among equals.

    Args:
        nodes: Ids of other nodes.
        used: Number of servers at each place.
        count: Number of different places, if there are so many.

    Example:
        >>> choose(["a", "b"], Counter({HERE: 1, "a": 1}), 2)
        ['b', 'a']
    """
    return sorted([*nodes, HERE], key=lambda place: used[place])[:count]


def place_servers(
    pairs: Sequence[ServerEndpoints],
    launcher: Launcher,
    host: str,
    *,
    has_standby: bool,
    look: Callable[[], None],
    clock: Callable[[], float],
) -> None:
    """Gives each server without a place its sockets; returns when all can be called.

    It waits for workers to get their room, which the launcher limits.

    Args:
        pairs: Servers that share the vector with the one that orders events.
        launcher: Launcher of workers.
        host: Address of this machine for the nodes.
        has_standby: Each server has a standby, on another place.
        look: Lets the launcher handle what has come.
        clock: Seconds of a monotonic clock.

    Raises:
        ClusterError: A node opens no socket, and does not get lost either.
    """
    if all(pair.has_place for pair in pairs):
        return
    while not launcher.is_settled:
        _wait(look)
    why = ""
    for _ in range(MOST_ATTEMPTS):
        asked = _ask(pairs, launcher, host, 1 + has_standby)
        _await(asked, look, clock)
        for pair, sockets in asked:
            lost = [f"node {one.node} {one.lost}" for one in sockets if one.lost]
            if not lost:
                pair.place(sockets, has_standby=has_standby)
            why = next(iter(lost), why)
        if all(pair.has_place for pair in pairs):
            return
    raise ClusterError(
        f"no node has a place for a server of the run: {why}. Expected an address of "
        "each node that the others reach. See the network of the nodes, or leave out "
        "servers=."
    )


def _ask(
    pairs: Sequence[ServerEndpoints], launcher: Launcher, host: str, places_each: int
) -> _Asked:
    """Requests sockets for all pairs without a place."""
    used = Counter([HERE])
    used.update(_place_of(pair) for pair in pairs if pair.has_place)
    asked: _Asked = []
    for pair in pairs:
        if pair.has_place:
            continue
        places = choose(launcher.nodes(), used, places_each)
        used.update(places[:1])
        # A server that leads on this machine has its standby here as well.
        there = [] if places[0] == HERE else [p for p in places if p != HERE]
        asked.append((pair, [launcher.listen(place, host) for place in there]))
    return asked


def _await(asked: _Asked, look: Callable[[], None], clock: Callable[[], float]) -> None:
    """Waits until all sockets are open or lost.

    Raises:
        ClusterError: A node does neither in time.
    """
    until = clock() + LISTEN_S
    for pair, sockets in asked:
        for one in sockets:
            while not one.is_settled:
                if clock() > until:
                    raise ClusterError(
                        f"node {one.node} has not opened a socket for {pair.name} "
                        f"within {LISTEN_S:g} s. Expected its agent to answer. See "
                        "whether the node is overloaded, or leave out servers=."
                    )
                _wait(look)


def _place_of(pair: ServerEndpoints) -> str:
    leader = pair.leader
    return leader.node_id if isinstance(leader, NodeSocket) else HERE


def _wait(look: Callable[[], None]) -> None:
    check()
    look()
    pause(LOOK_S)
