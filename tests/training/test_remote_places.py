"""A call of `fit` that is sent: where its run is, and how both sides use it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.clusters.remote_jobs import SENT_SCRIPT, Job, Tell, unheard
from shoal.errors import ClusterError, ConfigError
from shoal.runs.null import NullRun
from shoal.training import remote_fit
from shoal.training.fit_call import FitCall
from shoal.training.remote_fit import Place, Sent, attach, place_of, send
from tests.s3 import Bucket, s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]


class Away:
    """Keeps what is sent; the test is the head."""

    def __init__(self, runs: str | None) -> None:
        self._runs = runs
        self.arguments: Sequence[str] = ()
        self.beside: list[str] = []
        self.state = "done"
        self.refuses = self.is_closed = False

    @property
    def name(self) -> str:
        return "lab"

    @property
    def head(self) -> str:
        return "lab"

    @property
    def runs(self) -> str | None:
        return self._runs

    def submit(
        self,
        script: Path,
        arguments: Sequence[str],
        beside: Sequence[Path] = (),
        tell: Tell = unheard,
    ) -> str:
        if self.refuses:
            raise ClusterError("the head refuses")
        assert script.name == SENT_SCRIPT
        self.arguments, self.beside = arguments, [path.name for path in beside]
        return "2026-11-26-shoal-fit-b7c"

    def find(self, said: str) -> Job:
        return Job(
            id="2026-11-26-shoal-fit-b7c", state=self.state, script=SENT_SCRIPT,
            arguments=tuple(self.arguments),
        )  # fmt: skip

    def read(self, job: Job) -> Generator[bytes]:
        yield b"Epoch 1/1\n"

    def fetch(self, job: Job, folder: str, target: Path) -> None:
        raise AssertionError("a run at a URL is not copied")

    def settle(self, job: Job) -> None: ...

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("run", "runs", "expected"),
    [
        (None, None, Place()),
        (True, "/mnt/all/shoal-runs", Place()),
        (None, "s3://b/runs", Place(url="s3://b/runs")),
        ("higgs", "s3://b/runs", Place(url="s3://b/runs", name="higgs")),
        ("higgs", "/mnt/all/shoal-runs", Place(name="higgs")),
        ("s3://mine/runs", "s3://b/runs", Place(url="s3://mine/runs")),
        ("s3://mine/runs", None, Place(url="s3://mine/runs")),
        ("./here", "s3://b/runs", Place(folder="./here")),
        (Path("here"), None, Place(folder="here")),
        ("file:///data/runs", None, Place(folder="/data/runs")),
    ],
)
def test_where_a_run_is(run: Any, runs: str | None, expected: Place) -> None:
    assert place_of(run, Away(runs)) == expected


@pytest.mark.parametrize("run", [False, NullRun(name="a"), 7, ""])
def test_a_run_that_cannot_be_elsewhere_is_refused(run: Any) -> None:
    with pytest.raises(ConfigError, match="run="):
        place_of(run, Away("s3://b/runs"))


def linear() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


@pytest.fixture
def away(s3: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Away:
    """A cluster with runs on S3, which computes in this process."""
    found = Away(f"{s3.url}/runs")
    monkeypatch.setattr(remote_fit, "jobs_of", lambda _given: found)
    monkeypatch.setattr(remote_fit, "there", lambda _given: "local")
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path / "runs"))
    return found


def call(model: Any, run: Any = None) -> FitCall:
    x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
    return FitCall.of(
        model=model, x=x, y=3 * x, epochs=4, workers=1, cluster="lab", run=run,
        verbose=0,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.filterwarnings("default::ResourceWarning")
def test_a_run_on_s3_is_made_here_and_gone_on_with_there(
    away: Away, tmp_path: Path
) -> None:
    model = linear()
    sent = send(call(model, "higgs"))
    [url] = away.arguments
    assert url.startswith(f"{away.runs}/")
    assert "-higgs-" in url
    assert away.beside == []  # nothing of it is in the job
    shoal.resume(url, workers=1, force=True, verbose=0)  # as the job does
    history = attach(sent, model)
    assert history.run.url == url
    assert history.run.summary().samples_committed == 4 * 64
    assert len(history.history["loss"]) == 4
    assert model.get_weights()[0][0, 0] == pytest.approx(3.0, abs=0.5)
    assert not (tmp_path / "runs").exists()
    # In another session, by the job's id alone.
    other = linear()
    attach(Sent(jobs=away, id=sent.id), other)
    assert np.array_equal(other.get_weights()[0], model.get_weights()[0])


def test_a_head_that_refuses_leaves_no_run(away: Away, s3: Bucket) -> None:
    away.refuses = True
    with pytest.raises(ClusterError, match="the head refuses"):
        send(call(linear()))
    assert s3.client.list_objects_v2(Bucket=s3.name).get("KeyCount") == 0


@pytest.mark.parametrize("run", [False, "s3://no-such-bucket-of-mine/runs"])
def test_a_call_that_cannot_be_sent_disconnects(away: Away, run: Any) -> None:
    with pytest.raises(ConfigError):
        send(call(linear(), run))
    assert away.is_closed


def test_a_run_that_is_not_there_is_named(away: Away) -> None:
    sent = send(call(linear()))
    away.arguments = [f"{away.runs}/2026-11-26-gone-a3f"]
    with pytest.raises(ConfigError, match="gone-a3f"):
        attach(sent)
