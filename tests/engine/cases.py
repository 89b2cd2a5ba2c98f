"""Shared set-up of tests of the engine: rules, and a server that trains."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from tests.support.inline import Cluster, Setup

PROBLEM = LeastSquares.seeded(rows=64)
ROUNDS: dict[str, Any] = {
    "epoch_rows": (400,),
    "first_epoch": 0,
    "epochs": 1,
    "workers": 4,
    "batch": 4,
    "window": 2,
    "is_rounds": True,
    "exchanges_gradients": False,
    "is_elastic": False,
    "quorum": 3,
}
"""Rules of four workers, of which three are enough for a round."""


def setup(name: str = "aeasgd", **fields: Any) -> Setup:
    """Rules of two epochs with two workers, unless told otherwise."""
    fields = {"workers": 2, "epochs": 2, **fields}
    return Setup.linear(PROBLEM, get(name), **fields)


def runs_well(cluster: Cluster) -> list[dict[str, Any]]:
    """Trains on this server to the end; returns what it answered to other callers."""
    outcome = cluster.run()
    assert [end.rows for end in outcome.epochs] == [64, 64]
    assert [end.metrics[1] for end in outcome.epochs] == [64, 64]
    return outcome.events


def shut_out(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection; returns what it sent."""
    connection.settimeout(20)
    heard = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            heard += part
    return heard
