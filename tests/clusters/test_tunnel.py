"""What goes wrong at a tunnel; that it leads somewhere, `tests/foreign/test_ssh.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.clusters.ssh import Way
from shoal.clusters.tunnel import Tunnel
from shoal.errors import ClusterError

SSH = """#!/bin/sh
case "$*" in *" -O forward "*) echo "cannot listen to port" >&2; exit 255; esac
{body}
"""
"""Stands for ssh: refuses to forward, else does what a test says."""


def tunnel(folder: Path, body: str) -> Tunnel:
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(body=body))
    ssh.chmod(0o755)
    return Tunnel(Way(address="node-c", ssh=(str(ssh),)), ["date"], beat_s=0.01)


def test_a_port_that_cannot_be_forwarded(tmp_path: Path) -> None:
    with tunnel(tmp_path, "echo noise; echo at 7; cat >/dev/null") as found:
        assert found.find(r"at (\d+)", 30.0) == "7"
        with pytest.raises(ClusterError, match=r"port 80 .* node-c: cannot listen"):
            found.forward(80, 7)


def test_a_program_without_output_in_time(tmp_path: Path) -> None:
    with (
        tunnel(tmp_path, "exec cat >/dev/null") as found,
        pytest.raises(ClusterError, match=r"did not say in 0\.01 s"),
    ):
        found.find(r"at (\d+)", 0.01)


@pytest.mark.parametrize(("body", "code"), [("echo more; exit 3", 3), ("exit 0", 0)])
def test_how_a_program_ends(tmp_path: Path, body: str, code: int) -> None:
    with tunnel(tmp_path, body) as found:
        assert found.wait() == code


def test_a_connection_that_is_lost(tmp_path: Path) -> None:
    with (
        tunnel(tmp_path, "exit 255") as found,
        pytest.raises(ClusterError, match="the connection to node-c was lost"),
    ):
        found.wait()


def test_a_program_that_does_not_end_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.clusters.tunnel.END_LIMIT_S", 0.0)
    tunnel(tmp_path, "exec sleep 1000").close()


def test_a_machine_without_ssh(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="Install openssh-client"):
        Tunnel(Way(address="a", ssh=(str(tmp_path / "ssh"),)), ["date"], beat_s=1.0)
