"""A run that a host sends back: its id and its archive name files of this machine."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Generator, Sequence
from pathlib import Path

import keras
import pytest

from shoal.clusters.remote_jobs import SENT_RUN, Job, Tell, unheard
from shoal.errors import ClusterError, DataError
from shoal.runs.store import create
from shoal.training.remote_fit import Sent, finish

JOB = Job(id="2026-11-21-shoal-fit-a3f", state="done", script="shoal_fit.py")


class Host:
    """Sends an archive that the test has made."""

    def __init__(self, archive: bytes) -> None:
        self.archive = archive

    @property
    def name(self) -> str:
        return "lab"

    @property
    def head(self) -> str:
        return "lab"

    @property
    def runs(self) -> str | None:
        return None

    def submit(
        self,
        script: Path,
        arguments: Sequence[str],
        beside: Sequence[Path] = (),
        tell: Tell = unheard,
    ) -> str:
        raise NotImplementedError

    def find(self, said: str) -> Job:
        return JOB

    def read(self, job: Job) -> Generator[bytes]:
        yield b""

    def fetch(self, job: Job, folder: str, target: Path) -> None:
        target.write_bytes(self.archive)

    def settle(self, job: Job) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """Returns the archive of a run."""
    with create(tmp_path / "there", "higgs") as run:
        run.finish("finished")
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as packed:
        packed.add(run.url, SENT_RUN)
    return held.getvalue()


def test_a_run_is_fetched(archive: bytes, tmp_path: Path):
    sent = Sent(jobs=Host(archive), id=JOB.id)
    record = sent.run_of(JOB, tmp_path / "runs")
    assert record.summary().status == "finished"
    assert [p.name for p in (tmp_path / "runs").iterdir()] == [JOB.id]
    assert sent.run_of(JOB, tmp_path / "runs").url == record.url


@pytest.mark.parametrize("name", ["../else", "/tmp/shoal-else", "a/b", "..", "", "a\0"])
def test_an_id_of_the_host_cannot_address_another_folder(
    name: str, archive: bytes, tmp_path: Path
):
    before = {*tmp_path.iterdir()}
    with pytest.raises(DataError, match="cannot be a path in"):
        Sent(jobs=Host(archive), id=name).run_of(JOB, tmp_path / "runs")
    assert {*tmp_path.iterdir()} == {*before, tmp_path / "runs"}
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_archive_of_something_else_is_refused(tmp_path: Path):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as packed:
        link = tarfile.TarInfo(SENT_RUN)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        packed.addfile(link)
    with pytest.raises(ClusterError, match="is not its run"):
        Sent(jobs=Host(held.getvalue()), id=JOB.id).run_of(JOB, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"{}", None])
def test_an_incomplete_model_is_an_error(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with create(tmp_path / "there", "higgs") as run:
        run.finish("finished")
    if content is not None:
        (Path(run.url) / "models").mkdir(exist_ok=True)
        (Path(run.url) / "models" / "last.keras").write_bytes(content)
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as packed:
        packed.add(run.url, SENT_RUN)
    sent = Sent(jobs=Host(held.getvalue()), id=JOB.id)
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path / "runs"))
    with pytest.raises(ClusterError, match=r"last\.keras cannot be read"):
        finish(sent, JOB, model)
