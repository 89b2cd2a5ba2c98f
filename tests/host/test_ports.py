"""Ports that are tried one after the other."""

from __future__ import annotations

import socket

import pytest

from shoal.host.ports import TRIES, listen


def test_the_next_free_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port) as found:
            assert port < found.getsockname()[1] < port + TRIES


def test_port_0_takes_any_free_port() -> None:
    with listen("127.0.0.1") as found:
        assert found.getsockname()[1] > 0


def test_the_address_of_another_machine_is_an_error_at_once() -> None:
    with pytest.raises(OSError, match="assign"):
        listen("192.0.2.1", 5000)
