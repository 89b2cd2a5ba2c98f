"""Questions to hosts: what is sent, what comes back, and what an environment gets.

The way to the "host" is a shell of this machine: all but the connection is real.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest

import shoal
from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.host_agent import processes
from shoal.clusters.host_setup import HostSetup
from shoal.clusters.hosts import OwnHosts
from shoal.clusters.hosts_file import HostsFile, parse_hosts
from shoal.clusters.lifecycle import Examination, ManagedCluster
from shoal.clusters.pins import Pins, differences, pins_here
from shoal.clusters.providers import ClusterFile
from shoal.clusters.remote_call import PART_BYTES, PARTS, answer_in, ask, text_for
from shoal.clusters.ssh import Way
from shoal.clusters.wheel import build_wheel, wheel_name
from shoal.errors import ClusterError, ConfigError

HERE = Way(address="here", ssh=("sh", "-c", 'eval "$1"'))
BACKEND = os.environ.get("KERAS_BACKEND", "jax")


def test_the_request_is_one_script_that_needs_no_shoal() -> None:
    tree = ast.parse(text_for("facts"))
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not any((module or "").startswith("shoal") for module in modules)
    assert len(PARTS) == 6


def test_facts_of_this_machine_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(shoal.__file__).parents[1]))
    pins = pins_here(BACKEND)
    found = ask(
        HERE, [sys.executable], "facts",
        {"environment": None, "packages": list(pins.packages)}, limit_s=60,
    )  # fmt: skip
    assert differences(pins, found) == []
    found["code"] = "other"
    assert differences(pins, found) == [
        "shoal has the same version there, but other code than here"
    ]


def test_error_of_a_failed_request_has_its_cause() -> None:
    with pytest.raises(ClusterError, match="it has no nopython or nopython3"):
        ask(HERE, ["nopython", "nopython3"], "facts", {}, limit_s=60)
    with pytest.raises(ClusterError, match="KeyError: 'environment'"):
        ask(HERE, [sys.executable], "facts", {}, limit_s=60)
    nobody = Way(address="x", ssh=("sh", "-c", "echo no such host >&2; exit 255"))
    with pytest.raises(ClusterError, match="not reached: no such host"):
        ask(nobody, ["python3"], "facts", {}, limit_s=60)
    slow = Way(address="x", ssh=("sh", "-c", "exec sleep 60"))
    with pytest.raises(ClusterError, match=r"no answer within 0\.1 s"):
        ask(slow, ["python3"], "facts", {}, limit_s=0.1)


def test_the_progress_of_an_upload_is_reported() -> None:
    payload, gone = bytes(3 * PART_BYTES + 5), list[tuple[int, int]]()
    there = Way(address="x", ssh=("sh", "-c", "wc -c; echo SHOAL: {}; :"))

    def tell(part: int, whole: int) -> None:
        gone.append((part, whole))

    assert ask(
        there, ["python3"], "facts", {}, limit_s=60, payload=payload, tell=tell
    ) == {}  # fmt: skip
    assert [part for part, _ in gone] == [
        PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES, len(payload)
    ]  # fmt: skip
    assert {whole for _, whole in gone} == {len(payload)}


def test_a_connection_closed_midway_is_reported() -> None:
    payload = bytes(8 * PART_BYTES)
    gone = Way(
        address="x", ssh=("sh", "-c", "head -c 9 >/dev/null; echo full >&2; exit 1")
    )
    with pytest.raises(ClusterError, match="did not answer: full"):
        ask(gone, ["python3"], "submit", {}, limit_s=60, payload=payload)
    deaf = Way(address="x", ssh=("sh", "-c", "exec sleep 60"))
    with pytest.raises(ClusterError, match=r"no answer within 0\.2 s"):
        ask(deaf, ["python3"], "submit", {}, limit_s=0.2, payload=payload)


def test_no_process_stays_when_a_call_is_interrupted() -> None:
    def tell(_gone: int, _all: int) -> None:
        raise KeyboardInterrupt

    there = Way(address="x", ssh=("sh", "-c", "cat >/dev/null"))
    with pytest.raises(KeyboardInterrupt):
        ask(there, ["python3"], "submit", {}, limit_s=60, payload=b"1", tell=tell)


def test_requirements_of_the_user_override_those_of_shoal() -> None:
    have = {"shoal": "1", "jax": "0.10.2", "ray": "2.60.0", "tensorflow-cpu": "2.21.0"}
    pins = Pins(python="3.11", packages=have, code="c", more=("jax[cuda12]==0.10.2",))
    assert pins.requirements == [
        "ray[default]==2.60.0", "tensorflow-cpu==2.21.0", "jax[cuda12]==0.10.2"
    ]  # fmt: skip
    # tensorflow is the same, for GPUs
    got = {"shoal": "1", "jax": "0.10.2", "ray": "2.59.0", "tensorflow": "2.21.0"}
    there = {"version": "3.11", "code": "c", "packages": got}
    assert differences(pins, there) == ["ray is 2.59.0 there, 2.60.0 here"]
    assert pins.digest != Pins(python="3.12", packages=have, code="c").digest


def test_a_backend_that_is_not_installed_here() -> None:
    with pytest.raises(ConfigError, match="pip install 'shoal"):
        pins_here("mxnet")


def test_the_wheel_has_the_code_that_runs_here() -> None:
    data = build_wheel()
    assert data == build_wheel()
    with zipfile.ZipFile(BytesIO(data)) as archive:
        names = archive.namelist()
        assert archive.read("shoal/__init__.py") == Path(shoal.__file__).read_bytes()
    assert "shoal/clusters/host_agent/nodes.py" in names
    assert f"shoal-{shoal.__version__}.dist-info/METADATA" in names


def test_hosts_are_examined_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(Path(shoal.__file__).parents[1]))
    here = {"hosts": ["here"], "ssh": shlex.join(HERE.ssh), "name": "lab"}

    def examined(**environment: str) -> Examination:
        hosts = HostsFile.model_validate({**here, "environment": environment})
        store = ClusterStore(str(tmp_path / "known"))
        return ManagedCluster("lab", store).examine_hosts(hosts, BACKEND)

    [own] = examined(python=sys.executable).reports
    assert own.is_ready
    assert min(own.cores, own.memory, own.disk) > 0
    new = examined(base=sys.executable)
    assert [one.is_ready for one in new.reports] == [False]
    assert new.environment == pins_here(BACKEND).digest
    assert any(line.startswith("keras==") for line in new.requirements)
    absent = examined(base="/no/python")
    assert absent.failed == {"here": "it has no " + new_python(new, "/no/python")}
    assert not [*(tmp_path / "home").iterdir()]
    assert not (tmp_path / "known").exists()


def new_python(found: Examination, base: str) -> str:
    return f".shoal/environments/{found.environment}/bin/python or {base}"


@pytest.mark.ray
@pytest.mark.slow
def test_an_environment_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pins = pins_here(BACKEND)
    hosts = parse_hosts("hosts: [here]", "hosts.yaml")
    preparer = HostSetup(hosts, pins, lambda address, step: None)
    request = {
        "environment": pins.digest, "size": len(preparer.payload), "limit_s": 100.0,
        "options": ["--no-index", "--no-deps"], "requirements": [],
        "files": [wheel_name()],
    }  # fmt: skip
    first, found = [
        ask(
            HERE, [sys.executable], "install", request,
            limit_s=110.0, payload=preparer.payload,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert first == found
    ours = tmp_path / ".shoal" / "environments" / pins.digest
    assert found["python"] == str(ours / "bin" / "python")
    asked = {"environment": pins.digest, "packages": list(pins.packages)}
    facts = ask(HERE, [f".shoal/environments/{pins.digest}/bin/python"], "facts",
                asked, limit_s=60)  # fmt: skip
    assert facts["is_ready"]
    assert (facts["packages"]["shoal"], facts["code"]) == (shoal.__version__, pins.code)
    assert "ray is not there" in "; ".join(differences(pins, facts))
    with pytest.raises(ClusterError, match="No matching distribution"):
        ask(
            HERE, [sys.executable], "install",
            {**request, "environment": "other", "requirements": ["nowhere==1"]},
            limit_s=110.0, payload=preparer.payload,
        )  # fmt: skip


def test_only_processes_with_the_mark_are_ended(tmp_path: Path) -> None:
    mark, code = f"SHOAL_NODE={os.urandom(4).hex()}", "import time; time.sleep(600)"
    words = [sys.executable, "-c", code]
    name, value = mark.split("=")
    other = subprocess.Popen(words)
    ours = subprocess.Popen(words, env={**os.environ, name: value})
    with (tmp_path / "out").open("w") as out:
        writing = subprocess.Popen(words, stdout=out)
    deaf = subprocess.Popen(words)
    try:
        noted = {str(deaf.pid): processes.began(deaf.pid), str(other.pid): "1"}
        found = processes.sweep(mark, str(tmp_path), noted)
        assert found == 3
        assert [p.wait(30) for p in (ours, writing, deaf)] == [-15, -15, -15]
        assert other.poll() is None
        assert processes.sweep(mark, str(tmp_path), {}) == 0
    finally:
        for process in (other, ours, writing, deaf):
            process.kill()
            process.wait()


def test_a_reused_pid_after_a_reboot_is_not_ended() -> None:
    here, when = str(os.getpid()), processes.began(os.getpid())
    ticks, _, boot = when.partition(" ")
    assert processes.still_there({here: when}) == [os.getpid()]
    assert processes.still_there({here: ticks}) == [os.getpid()]  # an older note
    assert processes.still_there({here: f"{ticks} {boot[::-1]}"}) == []
    assert processes.still_there({here: ""}) == []


def test_an_environment_is_removed_without_the_cluster_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(HostsFile, "way_to", lambda *_: HERE)
    hosts = parse_hosts("hosts: [here]", "lab.yaml")
    folder = tmp_path / ".shoal" / "environments" / pins_here(BACKEND).digest
    folder.mkdir(parents=True)
    cluster = ManagedCluster("lab", ClusterStore(str(tmp_path / "known")))
    asked = ClusterFile(provider=OwnHosts(), spec=hosts)
    ended = cluster.down(asked, backend=BACKEND)
    assert (ended.failed, folder.is_dir()) == ({}, True)
    ended = cluster.down(asked, removes_environment=True, backend=BACKEND)
    assert (ended.failed, folder.exists()) == ({}, False)


def test_nothing_is_left_of_an_unknown_name(tmp_path: Path) -> None:
    known = tmp_path / "known"
    assert ManagedCluster("nix", ClusterStore(str(known))).down().failed == {}
    assert not known.exists() or list(known.iterdir()) == []


ODD = [b"[1]", b"{", b"7", b"\xff", b"[" * 200_000, b""]


@pytest.mark.parametrize("said", ODD, ids=range(len(ODD)))
def test_an_invalid_answer(said: bytes) -> None:
    with pytest.raises(ClusterError, match="does not come from Shoal"):
        answer_in(b"SHOAL: " + said + b"\n", 0, b"", [])
