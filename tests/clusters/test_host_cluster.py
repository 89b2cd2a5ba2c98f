"""A cluster on three hosts by real OpenSSH and Ray: one `up`, then tests in order."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import keras
import pytest
from typer.testing import CliRunner, Result

import shoal
from shoal.cli.app import app
from shoal.clusters.host_agent.processes import marked
from tests.hosts import hosts_with_sshd, skip_or_fail
from tests.support.hosts import Hosts
from tests.support.sshd import Sshd

pytestmark = [
    pytest.mark.process,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.filterwarnings("default"),
]
NOBODY = "200"  # last number of an address that no host has


@dataclass(frozen=True)
class Bench:
    """Three hosts, and a file that also names one that is not there."""

    folder: Path
    hosts: Hosts
    server: Sshd

    def shoal(self, *words: str) -> Result:
        variables = {"SHOAL_CLUSTERS": str(self.folder / "known")}
        return CliRunner().invoke(app, words, env=variables, prog_name="shoal")

    def write(self, name: str, addresses: list[str], least: int) -> str:
        path = self.folder / name
        path.write_text(
            f"name: lab\nuser: root\nssh: ssh -F {self.server.client}\n"
            f"shared: {self.folder / 'shared'}\nobject_store_mib: 80\n"
            f"min_workers: {least}\nenvironment: {{python: {sys.executable}}}\n"
            f"forward_agent: true\nhosts: [{', '.join(map(self._entry, addresses))}]\n"
        )
        return str(path)

    def _entry(self, address: str) -> str:
        """The last host is reached through the first."""
        first, *_, last = self.server.addresses
        jump = f"{{address: {address}, jump: root@{first}}}"
        return jump if address == last else address

    @property
    def nobody(self) -> str:
        return f"{self.hosts.address.rpartition('.')[0]}.{NOBODY}"

    def mark_of(self, number: int) -> str:
        known = json.loads((self.folder / "known" / "lab.json").read_text())
        return f"{known['id']}-{number}"

    def raylets(self) -> list[list[int]]:
        marks = [self.mark_of(number) for number in range(3)]
        return [
            marked(f"SHOAL_NODE={mark}", f"/tmp/shoal-{mark}", "raylet")
            for mark in marks
        ]

    def processes(self, number: int) -> list[str]:
        """Commands that run on a host, sshd's own left out."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.hosts.names[number]],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        found: list[str] = []
        for pid in listed:
            try:
                found.append(Path(f"/proc/{pid}/cmdline").read_text())
            except OSError:
                continue
        return [words for words in found if words and not words.startswith("sshd")]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Generator[Bench]:
    if find_spec("ray") is None:
        skip_or_fail("Ray: pip install 'shoal[ray]'")
    folder = tmp_path_factory.mktemp("bench")
    (folder / "shared").mkdir()
    (folder / "sshd").mkdir()
    variables = {"PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    with hosts_with_sshd(3, folder / "sshd", variables) as (hosts, server):
        found = Bench(folder, hosts, server)
        path = found.write("hosts.yaml", [*server.addresses, found.nobody], 3)
        try:
            done = found.shoal("cluster", "up", path)
            assert done.exit_code == 0, done.output
            assert "lab: 3 of 4 hosts run" in done.output
            assert f"not {found.nobody}: not reached" in done.output
            yield found
        finally:
            found.shoal("cluster", "down", "lab")


def test_status_and_list(bench: Bench) -> None:
    done = bench.shoal("cluster", "status", "lab", "--json")
    assert done.exit_code == 0, done.output
    nodes = json.loads(done.stdout)
    assert [node["address"] for node in nodes] == bench.server.addresses
    assert [node["state"] for node in nodes] == ["runs"] * 3
    assert [node["is_head"] for node in nodes] == [True, False, False]
    assert "lab" in bench.shoal("cluster", "list").stdout


def test_a_dry_run_asks_the_hosts_and_changes_nothing(bench: Bench) -> None:
    first, *_ = bench.server.addresses
    before = bench.raylets()
    known = (bench.folder / "known" / "lab.json").read_text()
    path = bench.write("dry.yaml", [*bench.server.addresses, bench.nobody], 3)
    done = bench.shoal("cluster", "up", path, "--dry-run")
    assert done.exit_code == 0, done.output
    assert f"start Ray on 3 of 4 hosts, the head on {first}." in done.stdout
    assert f"not {bench.nobody}: not reached" in done.stderr
    path = bench.write("four.yaml", [*bench.server.addresses, bench.nobody], 4)
    done = bench.shoal("cluster", "up", path, "--dry-run", "--json")
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    assert [one["address"] for one in told["reports"]] == bench.server.addresses
    assert all(one["is_ready"] and one["cores"] for one in told["reports"])
    assert [*told["failed"]] == [bench.nobody]
    assert bench.raylets() == before
    assert (bench.folder / "known" / "lab.json").read_text() == known


def test_secrets_are_private(bench: Bench) -> None:
    paths = [bench.folder / "known" / "lab.json"]
    for home in bench.server.homes:
        paths += (home / ".shoal" / "nodes").glob("*/token")
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600] * 4
    rays = [Path(f"/tmp/shoal-{bench.mark_of(number)}") for number in range(3)]
    assert [path.stat().st_mode & 0o777 for path in rays] == [0o700] * 3


def test_all_is_well(bench: Bench) -> None:
    done = bench.shoal("cluster", "health", "lab", "--json")
    assert done.exit_code == 0, done.output
    for node in json.loads(done.stdout):
        names = {finding["name"] for finding in node["findings"]}
        assert names >= {"ssh", "ray", "ports", "shared", "disk", "memory"}
    assert list((bench.folder / "shared").iterdir()) == []
    assert "Mbit/s" in bench.shoal("cluster", "health", "lab").stdout


def test_ssh_runs_a_command(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    done = bench.shoal("cluster", "ssh", "lab", "1", "--", "hostname -I; exit 3")
    assert done.exit_code == 3
    assert capfd.readouterr().out.strip() == bench.server.addresses[1]
    assert bench.shoal("cluster", "ssh", "lab", "--", "true").exit_code == 0
    assert bench.shoal("cluster", "ssh", "lab", "9", "--", "true").exit_code == 2


def test_a_shell_that_reads_the_profile_uses_all_nodes(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import os, ray; "
        "ray.init(log_to_driver=False, logging_level=40); "
        "print(len(ray.nodes()), os.environ['SHOAL_CLUSTER'])"
    )
    read = ". ~/.shoal/nodes/*/profile.sh; " * 2  # the second changes nothing
    words = f'{read} echo ${{PATH%%:*}}; python -c "{code}"'
    capfd.readouterr()
    done = bench.shoal("cluster", "ssh", "lab", "1", "--", words)
    assert done.exit_code == 0
    assert capfd.readouterr().out.split() == [
        str(Path(sys.executable).parent),
        "3",
        "ray",
    ]


def test_programs_there_have_the_ssh_agent(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    socket = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()  # it listens
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSH_AUTH_SOCK", socket)
            done = bench.shoal("cluster", "ssh", "lab", "2", "--", "ssh-add -l")
        assert done.exit_code == 1  # 2 where there is no agent
        assert "has no identities" in capfd.readouterr().out
    finally:
        agent.kill()
        agent.communicate()


def test_launch_on_its_hosts(bench: Bench) -> None:
    code = (
        "import sys, os; "
        "print(sys.executable, os.environ['EFS_MOUNT'], os.environ['KERAS_BACKEND'])"
    )
    done = bench.shoal(
        "launch", "--cluster", "lab", "--folder", "/", "--logs",
        str(bench.folder / "logs"), "--", "python", "-c", code,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = f"{sys.executable} {bench.folder / 'shared'} {keras.backend.backend()}"
    assert sorted(done.stdout.splitlines()) == [
        f"[worker-{rank}] {told}" for rank in range(3)
    ]


def test_a_job_runs_on_the_head_and_reports_its_end(
    bench: Bench, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, ray\n"
        "ray.init(log_to_driver=False, logging_level=40)\n"
        "alive = sum(node['Alive'] for node in ray.nodes())\n"
        "said = open('data/hello').read()\n"
        "print(alive, sys.argv[1:], said, os.environ['SHOAL_RUNS'],\n"
        "      os.environ['SHOAL_CLUSTER'])\n"
        "sys.exit(3)\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hello").write_text("hello")
    data = str(tmp_path / "data")
    words = ("submit", str(script), "--with", data, "--", "--epochs", "3")
    done = bench.shoal(*words)
    assert done.exit_code == 0, done.output
    job = done.stdout.strip()
    done = bench.shoal("jobs", "logs", job, "-f")
    runs = bench.folder / "shared" / "shoal-runs"
    assert f"3 ['--epochs', '3'] hello {runs} ray" in done.stdout
    assert f"{job}: failed (3)" in done.output
    assert bench.shoal("jobs", "stop", job).stdout.strip() == f"{job}: failed (3)"
    assert bench.shoal("jobs", "rm", job).exit_code == 0
    assert "No jobs" in bench.shoal("jobs", "--cluster", "lab").stdout
    assert list((bench.folder / "shared").iterdir()) == []


def test_stop_ends_a_job_and_what_it_started_and_nothing_else(
    bench: Bench, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('there', flush=True)\n"
        "time.sleep(600)\n"
    )
    before = bench.raylets()
    job = bench.shoal("submit", str(script), "--cluster", "lab").stdout.strip()
    log = bench.folder / "shared" / f".shoal-{os.getuid()}" / "jobs" / job / "log"
    while log.read_text() != "there\n":
        pass
    assert "running" in bench.shoal("jobs").stdout
    assert bench.shoal("jobs", "rm", job).exit_code == 1
    done = bench.shoal("jobs", "stop", job, "--grace", "0.2")
    # The job, what it started, and the shell around it, which may just start another.
    assert re.fullmatch(rf"{job}: [34] processes ended\n", done.stdout)
    assert not [words for words in bench.processes(0) if "600" in words.split("\0")]
    assert bench.raylets() == before
    [told] = json.loads(bench.shoal("jobs", "--json").stdout)
    assert told["state"] == "stopped"
    done = bench.shoal("jobs", "logs", job, "-f")
    assert done.exit_code == 0
    assert done.stdout.startswith("there\n")
    assert bench.shoal("jobs", "rm", job).exit_code == 0


def test_a_second_up_starts_lost_nodes(bench: Bench) -> None:
    before = bench.raylets()
    os.kill(before[1][0], signal.SIGKILL)
    path = bench.write("hosts.yaml", bench.server.addresses, 3)
    while bench.raylets()[1]:
        pass
    assert bench.shoal("cluster", "status", "lab").exit_code == 1
    done = bench.shoal("cluster", "up", path)
    assert done.exit_code == 0, done.output
    after = bench.raylets()
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != before[1]
    assert len(after[1]) == 1


def test_another_environment_is_refused_while_it_runs(bench: Bench) -> None:
    path = Path(bench.write("other.yaml", bench.server.addresses, 3))
    path.write_text(path.read_text().replace(sys.executable, "/usr/bin/python3"))
    done = bench.shoal("cluster", "up", str(path))
    assert done.exit_code == 2
    assert "use the Python environment" in done.output
    assert bench.shoal("cluster", "status", "lab").exit_code == 0


def test_a_head_that_only_this_machine_cannot_reach_runs_on(bench: Bench) -> None:
    before = bench.raylets()
    path = bench.write("hosts.yaml", bench.server.addresses, 1)
    bench.server.hold(0)
    try:
        done = bench.shoal("cluster", "up", path)
        assert done.exit_code == 0, done.output
        # The last host is reached through the first.
        assert "lab: 2 of 3 hosts run" in done.output
        assert bench.raylets() == before
    finally:
        bench.server.go_on(0)
    assert bench.shoal("cluster", "status", "lab").exit_code == 0


def test_too_few_hosts_start_nothing(bench: Bench) -> None:
    path = bench.write("few.yaml", [bench.nobody], 1)
    done = bench.shoal("cluster", "up", path, "--name", "few")
    assert done.exit_code == 1
    assert "0 of 1 hosts of the cluster few are there" in done.output
    assert not (bench.folder / "known" / "few.json").exists()


def test_a_host_that_is_cut_off_is_named(bench: Bench) -> None:
    bench.hosts.cut(2)
    try:
        done = bench.shoal("cluster", "health", "lab")
        assert done.exit_code == 1
        assert f"{bench.server.addresses[2]}: ssh: not reached" in done.stdout
        assert f"{bench.server.addresses[1]}: " not in done.stdout
    finally:
        bench.hosts.mend(2)


def test_down_leaves_nothing(bench: Bench) -> None:
    marks = [bench.mark_of(number) for number in range(3)]
    known = bench.folder / "known" / "lab.json"
    # A session that has forgotten the cluster ends it by what the hosts know.
    shutil.move(known, bench.folder / "kept.json")
    assert "not known here" in bench.shoal("cluster", "down", "lab").output
    path = bench.write("last.yaml", bench.server.addresses[2:], 1)
    done = bench.shoal("cluster", "down", "lab", "--hosts", path)
    assert done.exit_code == 0, done.output
    assert bench.processes(2) == []
    assert bench.processes(1) != []
    shutil.move(bench.folder / "kept.json", known)
    done = bench.shoal("cluster", "down", "lab")
    assert done.exit_code == 0, done.output
    assert not known.exists()
    for number, mark in enumerate(marks):
        assert bench.processes(number) == []
        assert not Path(f"/tmp/shoal-{mark}").exists()
        assert not (bench.server.homes[number] / ".shoal").exists()
    assert bench.shoal("cluster", "down", "lab").exit_code == 0
