"""`fit` on three hosts from outside: sent to the head, followed, brought back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.remote_jobs import RUNNING
from shoal.errors import ClusterError, ConfigError
from shoal.runs.events import read_events, unpack_exchanges
from shoal.runs.folder import Folder
from shoal.training import remote_fit
from shoal.training.fit_call import FitCall
from tests.clusters.test_host_cluster import Bench, bench
from tests.datasets import Digits
from tests.support.watch import PAUSES

pytestmark = [
    pytest.mark.process,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.filterwarnings("default"),
]
__all__ = ["bench"]
LOST = ("worker_left", "worker_lost")


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pictures of ten kinds, as MNIST has them; drawn, as no test may download."""
    random = np.random.default_rng(0)
    kinds = random.standard_normal((10, 28, 28)).astype("float32")
    y = random.integers(0, 10, 1500)
    return kinds[y] + random.standard_normal((1500, 28, 28)).astype("float32"), y


def network() -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return net


@pytest.fixture(autouse=True)
def _home(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_CLUSTERS", str(bench.folder / "known"))
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path / "runs"))


@pytest.mark.data
def test_mnist_on_three_hosts(mnist: Digits, capfd: pytest.CaptureFixture[str]) -> None:
    model, rows = network(), 12_000
    history = shoal.fit(
        model, mnist.x[:rows], mnist.y[:rows], epochs=3, batch_size=32, workers=3,
        strategy="aeasgd", cluster="lab", verbose=2, validation_split=0.2,
    )  # fmt: skip
    assert history.history["val_accuracy"][-1] > 0.85
    held = mnist.x[:rows][-2400:], mnist.y[:rows][-2400:]
    found = model.evaluate(*held, verbose=0, return_dict=True)
    last = history.history["val_accuracy"][-1]
    assert found["accuracy"] == pytest.approx(last, abs=1e-3)
    summary = history.run.summary()
    assert summary.samples_committed == summary.samples_expected == 9600 * 3
    events = list(read_events(Folder.at(history.run.url)))
    nodes = {e["node"] for e in events if e["kind"] == "worker_started"}
    assert len(nodes) == 3
    said = capfd.readouterr()
    assert "Epoch 3/3" in said.out
    assert "attach to it by: shoal attach" in said.err


def ends(path: Path) -> Any:
    """A callback that ends a run on the head when a file is there.

    Its class is sent along: the head does not have this module.

    Args:
        path: The file, in a folder that tests and head share.
    """

    class Ends(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = path.exists()

    return Ends()


class CutHost:
    """Cuts the third host once all three workers train, and ends the run at a loss.

    Args:
        bench: Its hosts.
        job: Id of the run's job; others may have left files beside it.
        is_over: File that ends the run.

    Attributes:
        cut_at: Unix seconds of the cut, 0 before.
    """

    def __init__(self, bench: Bench, job: str, is_over: Path) -> None:
        self.bench, self.job, self.is_over = bench, job, is_over
        self.cut_at = self._next = 0.0

    def write(self, data: bytes) -> None:
        """Looks at the events of the run now and then, as its output comes."""
        began = time.monotonic()
        [jobs] = (self.bench.folder / "shared").glob(".shoal-*/jobs")
        runs = [path.parent for path in (jobs / self.job).rglob("events")]
        if began < self._next or not runs:
            return
        events = list(read_events(Folder.at(str(runs[0]))))
        made = [event for event in events if event["kind"] == "exchanges"]
        ranks = {one["rank"] for event in made for one in unpack_exchanges(event)}
        if self.cut_at:
            if any(event["kind"] in LOST for event in events):
                self.is_over.touch()
        elif len(ranks) == 3:
            self.bench.hosts.cut(2)
            self.cut_at = time.time()
        self._next = time.monotonic() + PAUSES * (time.monotonic() - began)


def test_a_host_that_is_cut_off(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of a run: it goes on, and every sample counts once."""
    x, y = digits()
    given = {"epochs": 9999, "workers": 3, "verbose": 2, "strategy": "aeasgd"}
    over = ends(tmp_path / "over")
    call = FitCall.of(
        model=network(), x=x, y=y, cluster="lab", callbacks=[over], **given
    )
    sent = remote_fit.send(call)
    cut = CutHost(bench, sent.id, tmp_path / "over")
    try:
        history = remote_fit.finish(sent, sent.follow(cut.write))
    finally:
        bench.hosts.mend(2)
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == 1500 * epochs
    events = list(read_events(Folder.at(history.run.url)))
    lost = [e["time"] for e in events if e["kind"] in LOST]
    assert lost
    with capsys.disabled():
        print(f"\na host was cut off: noticed after {lost[0] - cut.cut_at:.1f} s")
    again = bench.shoal("cluster", "up", str(bench.folder / "hosts.yaml"))
    assert "3 of 4 hosts run" in again.output


def test_a_user_who_leaves_can_attach_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the connection is lost while it looks."""
    model, (x, y) = network(), digits()
    given: dict[str, Any] = {"epochs": 60, "workers": 2, "verbose": 2}
    call = FitCall.of(model=model, x=x, y=y, cluster="lab", **given)
    sent = remote_fit.send(call)
    lost = threading.Event()

    def write(data: bytes) -> None:
        if not lost.is_set():
            lost.set()
            raise KeyboardInterrupt  # as Ctrl-C, or a lid that is closed

    with pytest.raises(KeyboardInterrupt):
        sent.follow(write)
    assert sent.jobs.find(sent.id).state == RUNNING  # nobody has waited for it
    standing = bench.shoal("runs", "status", sent.id, "--cluster", "lab")
    assert standing.exit_code == 0, standing.output
    other = network()
    history = shoal.attach(sent.id[:-2], other, cluster="lab")
    assert len(history.history["loss"]) == 60
    assert history.run.id == sent.id
    before, after = network().get_weights(), other.get_weights()
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


def test_a_failing_job_raises_its_error(bench: Bench) -> None:
    class Breaks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise ValueError("of the user")

    x, y = digits()
    with pytest.raises(ClusterError, match=r"failed \(1\)"):
        shoal.fit(network(), x, y, workers=1, cluster="lab", callbacks=[Breaks()])
    with pytest.raises(ConfigError, match="run=False with cluster='lab'"):
        shoal.fit(network(), x, y, workers=1, cluster="lab", run=False)
    assert "lab" in ClusterStore(str(bench.folder / "known")).names()
