"""Part 4 of the tutorial, word for word but for user and addresses, on three hosts."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import shoal
from shoal.runs.catalogue import list_runs
from tests.hosts import hosts_with_sshd, skip_or_fail
from tests.support.tutorial import TUTORIAL, Reader

pytestmark = [
    pytest.mark.process,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]


def test_your_own_machines(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        skip_or_fail("Ray: pip install 'shoal[ray]'")
    places = {name: tmp_path / name for name in ("sshd", "bin", "shared", "here")}
    for place in places.values():
        place.mkdir()
    variables = {"PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    with hosts_with_sshd(3, places["sshd"], variables) as (_, server):
        ssh = places["bin"] / "ssh"  # in place of the keys that a reader has
        ssh.write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {server.client} "$@"\n'
        )
        ssh.chmod(0o755)
        here = {
            "PATH": f"{ssh.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SHOAL_CLUSTERS": str(tmp_path / "known"),
        }
        own = (
            f"user: root\nshared: {places['shared']}\nobject_store_mib: 80\n"
            f"environment: {{python: {sys.executable}}}"
        )
        replaced = {"user: ann": own, "ann@": "root@"} | {
            f"192.168.1.{11 + at}": address
            for at, address in enumerate(server.addresses)
        }
        with Reader(places["here"], here, replaced) as reader:
            reader.save(TUTORIAL / "1-laptop.md")
            try:
                reader.read(TUTORIAL / "4-machines.md")
            except BaseException:
                terminal = reader.terminal()
                terminal.type("shoal cluster down lab")
                terminal.finish()
                raise
            assert reader.failures() == []
            assert "lab: 3 of 3 hosts run" in reader.shown()
    [run] = list_runs(str(places["here"] / "shoal-runs"))
    assert run.samples_committed == 4 * 250_000
