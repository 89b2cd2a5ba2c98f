"""`fit` on a Ray cluster from outside, by Ray Client: sent, followed, brought back."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import psutil
import pytest

import shoal
from shoal.clusters import Ray
from shoal.clusters.jobs import pack
from shoal.clusters.ray_jobs import RayJobs
from shoal.clusters.remote_jobs import pick
from shoal.errors import ClusterError, ConfigError, PlanError
from shoal.launchers.ray_job_actor import JobActor
from shoal.training import remote_fit
from shoal.training.fit_call import FitCall
from tests.clusters.test_ray import ROWS, data, model
from tests.ray_nodes import RayNode, free_port, imported, own_address
from tests.s3 import Bucket, s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]

GIVEN: dict[str, Any] = {"workers": 2, "strategy": "aeasgd", "batch_size": 8,
                         "threads": 1, "verbose": 2}  # fmt: skip


# ------------------------------------------------------------------ one job actor


def sent(folder: Path, code: str) -> tuple[JobActor, str]:
    """A job actor that was given a script and a folder beside it."""
    script, beside = folder / "shoal_fit.py", folder / "run"
    script.write_text(code)
    beside.mkdir()
    (beside / "plan.json").write_text("{}")
    payload = pack([script, beside])
    job_actor = JobActor()
    for offset in range(0, len(payload), 100):
        job_actor.write(offset, payload[offset : offset + 100])
    return job_actor, script.name


def test_a_job_actor_keeps_output_and_results(tmp_path: Path) -> None:
    code = "import os; print('here', os.environ['MARK'], flush=True); 1 / 0"
    job_actor, script = sent(tmp_path, code)
    assert job_actor.state()[0] == "not started"
    job_actor.start(script, ["s3://b/r"], {"MARK": "a"})
    assert job_actor._process is not None
    job_actor._process.wait()
    assert job_actor.state()[:3] == ("failed (1)", "shoal_fit.py", ("s3://b/r",))
    assert job_actor.read(0, 7) == b"here a\n"
    assert b"ZeroDivisionError" in job_actor.read(7, 1 << 20)
    size = job_actor.pack("run")
    packed = b"".join(job_actor.packed(n, 64) for n in range(0, size, 64))
    assert len(packed) == size
    assert job_actor.stop(1.0) == 0
    folder = job_actor._folder
    assert folder.stat().st_mode & 0o077 == 0
    job_actor.close()
    assert not folder.exists()


def test_a_job_actor_ends_a_job_and_its_processes(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    job_actor, script = sent(tmp_path, code)
    job_actor.start(script, [], {})
    while not (said := job_actor.read(0, 100)).endswith(b"\n"):
        pass
    child = psutil.Process(int(said))
    assert job_actor.stop(0.1) == 1
    assert job_actor.state()[0] == "stopped"
    assert not psutil.wait_procs([child], timeout=20)[1]
    job_actor.close()


def test_jobs_are_found_by_the_beginning_of_their_id() -> None:
    listed = ["2026-11-23-shoal-fit-a3", "2026-11-23-shoal-fit-b7"]
    with pytest.raises(ConfigError, match="the beginning of several jobs"):
        pick(listed, "2026", "lab")
    with pytest.raises(ConfigError, match="shoal jobs --cluster lab"):
        pick(listed, "2027", "lab")


# ------------------------------------------------------------------ outside


def test_addresses_of_ray_client_are_recognised() -> None:
    assert remote_fit.is_away("ray://head:10001")
    assert remote_fit.is_away(Ray(address="ray://head:10001", gpus=1))
    assert not remote_fit.is_away("10.0.0.7:6379")
    assert not remote_fit.is_away(Ray())
    own = Ray(address="ray://head:10001", gpus=1, working_dir="mine").inside()
    assert own == Ray(gpus=1, working_dir=".")


def test_only_fit_is_sent() -> None:
    with pytest.raises(PlanError, match=r"Expected shoal\.fit"):
        shoal.plan(model(), *data(), cluster="ray://head:10001")
    with pytest.raises(ConfigError, match="run=False"):
        shoal.fit(model(), *data(), cluster="ray://head:10001", run=False)


def test_without_ray_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Install it: pip install 'shoal\[ray\]'"):
        shoal.fit(model(), *data(), workers=1, cluster="ray://localhost:1")
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_no_client_server_listens(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"ray://127.0.0.1:{port}"
    with pytest.raises(ClusterError, match=f"no answer from 127.0.0.1:{port}"):
        shoal.fit(model(), *data(), cluster=address, run=str(tmp_path))


class Busy:
    """A head whose process for a caller is not there in time, but for the last call.

    Args:
        refusals: Number of calls that are refused.
        takes_s: Time that each of them takes.
        says: Error that the head tells.
    """

    def __init__(
        self,
        refusals: int,
        takes_s: float = 0.0,
        says: str = "Starting Ray client server failed.",
    ) -> None:
        self.left, self.takes_s, self.says = refusals, takes_s, says
        self.now = 0.0

    def init(self, address: str, **options: Any) -> str:
        if not self.left:
            return address
        self.left -= 1
        self.now += self.takes_s
        raise ConnectionAbortedError(
            f"Initialization failure from server:\nTraceback:\n  ...\n{self.says}\n"
        )

    def monotonic(self) -> float:
        return self.now

    def sleep(self, length_s: float) -> None:
        self.now += length_s


@pytest.mark.parametrize("needs", [None, {"pip": ["present"]}])
def test_a_busy_head_is_called_again(
    needs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        jobs = RayJobs(Ray(address=address))
        # Ray tells half a minute later that its process died at its start.
        busy = Busy(4, takes_s=45.0)
        monkeypatch.setattr("shoal.clusters.ray_jobs.time", busy)
        assert jobs._connect(busy, needs) == address
        assert capsys.readouterr().err.count("calling again") == 1
        never = Busy(9999, takes_s=45.0)
        monkeypatch.setattr("shoal.clusters.ray_jobs.time", never)
        expected = r": Starting Ray client.*failed\. E.*GRPC_ENABLE_FORK_SUPPORT=0"
        with pytest.raises(ClusterError, match=expected):
            jobs._connect(never, needs)
        assert never.left > 9980


def test_requirements_that_cannot_be_installed_are_refused_at_once() -> None:
    failed = Busy(
        1, says="RuntimeError: Failed to create runtime_env for Ray client server"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        jobs = RayJobs(Ray(address=f"ray://127.0.0.1:{server.getsockname()[1]}"))
        with pytest.raises(ClusterError, match=r"cannot join .*runtime_env"):
            jobs._connect(failed, {"pip": ["absent"]})


def listens(host: str, port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((host, port)) == 0


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[RayNode, str]]:
    """A cluster of one node, and its address for Ray Client."""
    pytest.importorskip("ray")
    host, port = own_address(), free_port("127.0.0.1")
    with imported():
        node = RayNode(host, cpus=4, more=[f"--ray-client-server-port={port}"])
        until = time.monotonic() + 60
        while not listens(host, port) and time.monotonic() < until:
            time.sleep(0.05)  # `ray start` is done before that
        yield node, f"ray://{host}:{port}"
        node.close()


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path / "runs"))
    for name in ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def stewards(address: str) -> list[str]:
    """Jobs that are still there; Ray may take a while to forget what was ended."""
    jobs = remote_fit.jobs_of(address)
    until = time.monotonic() + 30
    with jobs._connected() as ray:  # type: ignore[attr-defined]
        while True:
            listed = ray.util.list_named_actors(all_namespaces=True)
            found = [one["name"] for one in listed if one["namespace"] == "shoal"]
            if not found or time.monotonic() > until:
                break
    jobs.close()
    return found


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_run_from_outside(
    head: tuple[RayNode, str], capfd: pytest.CaptureFixture[str]
) -> None:
    node, address = head
    net, (x, y) = model(), data()
    before = [value.copy() for value in net.get_weights()]
    history = shoal.fit(net, x, y, epochs=3, cluster=address, **GIVEN)
    assert history.run.summary().samples_committed == 3 * ROWS
    assert len(history.history["loss"]) == 3
    assert any((a != b).any() for a, b in zip(before, net.get_weights(), strict=True))
    said = capfd.readouterr()
    assert "Epoch 3/3" in said.out
    assert f"--cluster {address}" in said.err
    assert stewards(address) == []
    assert not psutil.wait_procs(node.workers(), timeout=30)[1]


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_run_on_s3_from_outside(
    head: tuple[RayNode, str], s3: Bucket, tmp_path: Path
) -> None:
    """It is made at the URL, trained by the job, and read from there: no copy."""
    _, address = head
    net, (x, y) = model(), data()
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    keys = {name: os.environ[name] for name in names}
    cluster = Ray(address=address, variables=keys)
    history = shoal.fit(
        net, x, y, epochs=2, cluster=cluster, run=f"{s3.url}/runs", **GIVEN
    )
    assert history.run.url.startswith(f"{s3.url}/runs/")
    assert history.run.summary().samples_committed == 2 * ROWS
    assert not (tmp_path / "runs").exists()
    assert stewards(address) == []


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_user_who_leaves_can_attach_again(head: tuple[RayNode, str]) -> None:
    _, address = head
    x, y = data()
    call = FitCall.of(model=model(), x=x, y=y, epochs=3, cluster=address, **GIVEN)
    job = remote_fit.send(call)

    def leave(data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.follow(leave)
    job.jobs.close()
    net = model()
    history = shoal.attach(job.id[:-2], net, cluster=Ray(address=address))
    assert history.run.id == job.id
    assert history.run.summary().samples_committed == 3 * ROWS
    assert stewards(address) == []
    with pytest.raises(ConfigError, match="unknown job"):
        shoal.attach(job.id, net, cluster=address)


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_failing_job_raises_its_error(
    head: tuple[RayNode, str], capfd: pytest.CaptureFixture[str]
) -> None:
    class Breaks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise ValueError("of the user")

    _, address = head
    x, y = data()
    with pytest.raises(ClusterError, match=r"failed \(1\)"):
        shoal.fit(model(), x, y, cluster=address, callbacks=[Breaks()], **GIVEN)
    assert "ValueError: of the user" in capfd.readouterr().out
    assert stewards(address) == []
