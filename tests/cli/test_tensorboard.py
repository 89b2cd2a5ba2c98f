"""`shoal tensorboard`: TensorBoard itself shows scalars of a run on S3."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from shoal.cli import tensorboard
from shoal.cli.head import on_head
from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.jobs import Jobs
from shoal.clusters.providers import read_cluster_file
from shoal.clusters.remote_jobs import Job
from shoal.errors import ClusterError
from shoal.runs.folder import Folder
from shoal.runs.local_copy import LocalCopy
from shoal.runs.store import create
from tests.s3 import Bucket

Shoal = Callable[..., Result]


def record(url: str) -> str:
    """Makes a run of one epoch; returns its id."""
    with create(url, "higgs", today=date(2026, 11, 21)) as run:
        run.event("run_started", strategy="adag", workers=1, rows=1, epochs=1)
        run.event("epoch_ended", epoch=0, metrics={"loss": 0.5}, samples=1)
        run.finish("finished")
    return run.id


def shown(url: str) -> dict[str, Any]:
    """What TensorBoard shows, as soon as it has loaded something."""
    while True:
        address = f"{url}data/plugin/scalars/tags"
        with urllib.request.urlopen(address, timeout=20) as answer:
            found = json.load(answer)
        if found:
            return found


@pytest.mark.process
def test_a_run_on_s3(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tensorboard")
    run = record(f"{s3.url}/runs")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "shoal", "tensorboard", run, "--port", "0"]
    with subprocess.Popen(
        [*command, "--root", f"{s3.url}/runs"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = (process.stdout or sys.stdin).readline()
            assert set(shown(line.split()[0])["train"]) == {"epoch_loss"}
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.glob("shoal-*")) == []


def test_a_copy_follows_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = Folder.at(f"memory://{tmp_path.name}")
    copy = LocalCopy(source, tmp_path / "copy")
    assert copy.update() == 0
    source.write("train/a", b"one")
    assert copy.update() == 3
    assert copy.update() == 0
    monkeypatch.setattr(tensorboard, "RELOAD_S", 0.001)
    grown = tmp_path / "copy" / "train" / "a"
    with grown.open("rb") as reader, tensorboard._following(copy, source.url):
        source.write("train/a", b"one and two")
        source.write("validation/b", b"new")
        while not (tmp_path / "copy" / "validation" / "b").exists():
            pass
        assert reader.read() == b"one and two"


def test_a_storage_that_fails_for_a_while_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    copy = LocalCopy(Folder.at(tmp_path / "gone"), tmp_path)
    answers = iter([OSError("away"), OSError("away"), None])

    def update(_self: LocalCopy) -> int:
        answer = next(answers, None)
        if answer is not None:
            raise answer
        is_back.set()
        return 0

    is_back = threading.Event()
    monkeypatch.setattr(LocalCopy, "update", update)
    monkeypatch.setattr(tensorboard, "RELOAD_S", 0.001)
    with tensorboard._following(copy, "s3://bucket"):
        assert is_back.wait(30)
    assert capsys.readouterr().err.count("s3://bucket cannot be read now") == 1


def test_wrong_arguments_and_a_missing_tensorboard_are_errors(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = record(str(tmp_path / "shoal-runs"))
    both = shoal("tensorboard", run, "--ssh", "a", "--cluster", "b")
    assert both.exit_code == 2
    assert "Leave the other out" in both.stderr
    assert "The nearest" in shoal("tensorboard", run[:-1] + "zz").stderr
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    assert "pip install 'shoal[tensorboard]'" in shoal("tensorboard", run).stderr


def test_the_command_for_the_head_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "clusters"))
    (tmp_path / "clusters").mkdir()
    listed = tmp_path / "lab.yaml"
    listed.write_text(
        json.dumps({"name": "lab", "hosts": ["node-a", "node-b"], "shared": "/mnt/all"})
    )
    hosts = read_cluster_file(listed).spec
    state = ClusterState.new("hosts", hosts, "jax")
    head = NodeState(number=0, address="node-a", python="/envs/python")
    ClusterStore(str(tmp_path / "clusters")).write(
        state.model_copy(update={"nodes": (head,), "hosts": hosts})
    )
    way, command = on_head("lab", ["runs", "status"], "2026-11-21-a", "/all")
    words = ["/envs/python", "-m", "shoal", "runs", "status"]
    assert way.address == "node-a"
    assert command == [*words, "2026-11-21-a", "--root", "/all"]
    sent = Job(
        id="2026-11-21-shoal-fit-b7",
        state="running",
        script="shoal_fit.py",
        log="/jobs/7/log",
    )
    other = replace(sent, id="2026-11-21-train-c1", script="train.py")
    monkeypatch.setattr(Jobs, "list", lambda _: [sent, other])
    _, command = on_head("lab", ["runs", "status"], "2026-11-21-shoal", None)
    assert command == [*words, "/jobs/7/files/run"]
    _, command = on_head("lab", ["runs", "status"], "2026-11-21-train", None)
    assert command == [*words, "2026-11-21-train", "--root", "/mnt/all/shoal-runs"]
    url = "s3://bucket/runs/2026-11-21-higgs-d4"
    monkeypatch.setattr(Jobs, "list", lambda _: [replace(sent, arguments=(url,))])
    _, command = on_head("lab", ["runs", "status"], "2026-11-21-shoal", None)
    assert command == [*words, url]


def test_an_error_on_the_host_is_reported_at_once(monkeypatch: pytest.MonkeyPatch):
    """Not ssh, but what ssh is told to run fails, and nobody waits for it."""
    monkeypatch.setattr(tensorboard, "SSH", ("sh", "-c", "exit 3", "ssh"))
    way = tensorboard._way("-p 22 node-c")
    assert way is not None
    assert way.address == "node-c"
    with pytest.raises(ClusterError, match="before it ended with status 3"):
        tensorboard._show_there(way, ["date"], None)


def hostile_names(victim: Path) -> list[str]:
    return [
        f"../../../../../../../../../../..{victim}", str(victim), "../PWNED",
        "train/../../PWNED", "..", "train/..\\..\\PWNED", "~/PWNED", "C:/PWNED",
        "train/\x1b[2Jx", "x" * 300,
    ]  # fmt: skip


def test_keys_with_paths_outside_of_the_copy_are_ignored(s3: Bucket, tmp_path: Path):
    """Also a folder of the same name as a file: storage has both, a disk has not."""
    victim = tmp_path / "home" / ".bashrc"
    victim.parent.mkdir()
    victim.write_text("# mine\n")
    place = "runs/r1/tensorboard/"
    good = {"train/a": b"fish", "clash": b"1", "clash/b": b"2"}
    s3.put_quickly({place + name: data for name, data in good.items()})
    names = hostile_names(victim)
    s3.put_quickly({place + name: b"# mine\nevil\n" for name in names})
    target = tmp_path / "copy" / "deep" / "er"
    target.mkdir(parents=True)
    said: list[str] = []
    copy = LocalCopy(Folder.at(f"{s3.url}/{place}"), target, said.append)
    assert copy.update() >= 4
    assert copy.update() == 0
    assert (target / "train" / "a").read_bytes() == b"fish"
    assert victim.read_text() == "# mine\n"
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert files <= {
        "home/.bashrc", *(f"copy/deep/er/{name}" for name in good),
    }  # fmt: skip
    assert len(said) == len(set(said)) >= len(names)
    assert all(text.startswith("a file of s3://") for text in said)


def test_a_link_in_the_copy_is_not_followed(tmp_path: Path):
    source = Folder.at(f"memory://{tmp_path.name}")
    source.write("train/a", b"evil")
    (tmp_path / "home").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "train").symlink_to(tmp_path / "home")
    said: list[str] = []
    assert LocalCopy(source, tmp_path / "copy", said.append).update() == 0
    assert "is a link" in said[0]
    assert list((tmp_path / "home").iterdir()) == []
