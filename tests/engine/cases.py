"""A server that trains two epochs of a small problem, and what strangers hear of it."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from shoal.strategies import get
from shoal.testing.inline import Cluster, Setup
from shoal.testing.problems import LeastSquares

PROBLEM = LeastSquares.seeded(rows=64)


def setup(name: str = "aeasgd", **fields: Any) -> Setup:
    """Two epochs with two workers, where nothing else is said."""
    fields = {"workers": 2, "epochs": 2, **fields}
    return Setup.linear(PROBLEM, get(name), **fields)


def runs_well(cluster: Cluster) -> list[dict[str, Any]]:
    """Trains on this server to the end; returns what it said beside."""
    outcome = cluster.run()
    assert [end.rows for end in outcome.epochs] == [64, 64]
    assert [end.metrics[1] for end in outcome.epochs] == [64, 64]
    return outcome.events


def shut_out(connection: socket.socket) -> bytes:
    """Reads until the server hangs up; returns what it said."""
    connection.settimeout(20)
    heard = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            heard += part
    return heard
