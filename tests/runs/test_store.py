from __future__ import annotations

import json
import threading
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.runs import claim
from shoal.runs.catalogue import read_summary
from shoal.runs.events import exchange_records, read_events
from shoal.runs.folder import Folder
from shoal.runs.store import NullRun, StoredRun, create, model_file, open_run, start

TODAY = date(2026, 11, 21)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    local = request.param == "local"
    return str(tmp_path / "runs") if local else f"memory://{tmp_path.name}"


class Model:
    """What `save_model` needs of a Keras model."""

    def __init__(self, content: bytes = b"weights") -> None:
        self.content = content

    def save(self, path: Path) -> None:
        assert path.suffix == ".keras"
        path.write_bytes(self.content[:3])
        if self.content == b"":
            raise OSError(28, "No space left on device")
        path.write_bytes(self.content)


def files(run: StoredRun) -> list[str]:
    return sorted(
        str(found).removeprefix(run.folder.path).lstrip("/")
        for found in run.folder.fs.find(run.folder.path)
    )


def test_id_and_folder(root: str):
    with create(root, "Higgs 2", today=TODAY) as run:
        assert run.id.startswith("2026-11-21-higgs-2-")
        assert run.name == "Higgs 2"
    assert files(run) == ["events/000000.jsonl"]


def test_an_id_is_never_taken_twice(root: str, monkeypatch: pytest.MonkeyPatch):
    letters = iter(["aaa", "aaa", "aaa", "bbb"])
    monkeypatch.setattr(claim.secrets, "token_hex", lambda n: next(letters))
    ids = [create(root, "x", today=TODAY).id for _ in range(2)]
    assert ids == ["2026-11-21-x-aaa", "2026-11-21-x-bbb"]


def test_ids_used_up(root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claim.secrets, "token_hex", lambda n: "aaa")
    create(root, "x", today=TODAY)
    with pytest.raises(ConfigError, match="no free run id"):
        create(root, "x", today=TODAY)


def test_a_whole_run(root: str, tmp_path: Path):
    with create(root, "higgs", today=TODAY) as run:
        run.write_plan({"strategy": "aeasgd", "path": Path("x")})
        run.event("run_started", strategy="aeasgd", workers=2, epochs=1, rows=96)
        run.exchanges([{"rank": r, "epoch": 0, "samples": 48} for r in (0, 1)])
        run.exchanges([])
        log = run.log_path(1)
        assert log is not None
        log.write_text("hello\n")
        assert run.save_model(Model(), "last")
        assert run.save_model(Model(b"better"), "last")
        run.event("epoch_ended", epoch=0, metrics={"loss": 0.5}, samples=96)
        run.finish("finished", {"startup_s": 1.0})
        run.finish("failed")
    assert run.lost_events == 0
    found = files(run)
    assert {f for f in found if f[:6] != "events"} >= {
        "experiments/worker-1.log", "models/last.keras", "plan.json",
    }  # fmt: skip
    assert not [name for name in found if "/." in name or name.startswith(".")]
    assert run.folder.read("experiments/worker-1.log") == b"hello\n"
    assert run.folder.read("models/last.keras") == b"better"
    assert json.loads(run.folder.read("plan.json"))["path"] == "x"
    events = [e for e in read_events(run.folder) if e["kind"] != "segment"]
    assert [e["kind"] for e in events] == [
        "run_created", "run_started", "exchanges", "epoch_ended", "run_finished",
    ]  # fmt: skip
    assert all({"v", "kind", "time", "t"} <= set(e) for e in events)
    assert sum(r["samples"] for r in exchange_records(events)) == 96
    summary = read_summary(run.folder)
    assert summary == run.summary()
    assert (summary.status, summary.samples_committed) == ("finished", 96)
    assert (run.report["startup_s"], run.report["best"]["value"]) == (1.0, 0.5)


def test_a_run_can_be_opened_and_gone_on_with(root: str):
    with create(root, "higgs") as first:
        first.event("run_started", strategy="adag", workers=1)
        first.finish("interrupted")
    with open_run(first.id[:-1], root) as second:
        assert second.name == "higgs"
        assert second.summary().status == "interrupted"
        second.event("run_started", strategy="adag", workers=3)
        assert second.summary().status == "running"
        second.finish("finished")
    assert open_run(first.url).summary().workers == 3
    times = [e["t"] for e in read_events(first.folder) if e["kind"] != "segment"]
    assert times == sorted(times)


def test_opening_a_run_leaves_no_trace(root: str):
    run = create(root, "x")
    before = files(run)
    with open_run(run.id, root):
        pass
    assert files(run) == before


def test_many_threads_may_record(root: str):
    with create(root, "x") as run:
        threads = [
            threading.Thread(
                target=lambda: [run.event("warning", text="w") for _ in range(50)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    kinds = [event["kind"] for event in read_events(run.folder)]
    assert kinds.count("warning") == 200


def test_events_after_close_are_counted_as_lost(root: str):
    run = create(root, "x")
    run.close()
    run.close()
    run.event("warning", text="late")
    assert run.lost_events == 1
    assert run.summary().warnings == ("late",)


@pytest.mark.parametrize("where", ["file/runs", "file"])
def test_unwritable_folder(tmp_path: Path, where: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: run='.*'") as caught:
        create(tmp_path / where, "x")
    assert "run=False" in str(caught.value)


def test_storage_that_goes_away_does_not_stop_training(tmp_path: Path):
    said: list[str] = []
    run = create(tmp_path / "runs", "x", complain=said.append)
    run.folder.remove()
    Path(run.folder.path).write_text("a file in the way")
    run.event("run_started", strategy="adag", workers=1)
    run.event("epoch_ended", epoch=0, metrics={"loss": 1.0})
    run.write_plan({})
    run.write_plan({})
    assert run.log_path(0) is None
    assert run.save_model(Model(), "best") is None
    run.finish("finished")
    run.close()
    assert run.lost_events == 3
    assert len(said) == 5
    assert all(run.url in line for line in said)
    assert run.summary().status == "finished"


def test_a_complaint_may_be_recorded_as_a_warning(tmp_path: Path):
    runs: list[StoredRun] = []
    run = create(tmp_path, "x", complain=lambda t: runs[0].event("warning", text=t))
    runs.append(run)
    run.folder.remove()
    Path(run.folder.path).write_text("a file in the way")
    run.event("run_started")
    run.close()
    assert len(run.summary().warnings) == 1


def test_a_model_that_cannot_be_saved_leaves_no_part(root: str):
    said: list[str] = []
    with create(root, "x", complain=said.append) as run:
        assert run.save_model(Model(b"old"), "best")
        assert run.save_model(Model(b""), "best") is None
        assert run.save_model(Model(b""), "best") is None
    assert run.folder.read("models/best.keras") == b"old"
    assert run.folder.names("models") == ["best.keras"]
    assert len(said) == 1
    assert "best model" in said[0]


def test_a_keras_model_is_saved_whole(root: str):
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    with create(root, "x") as run:
        assert (
            run.save_model(model, "best") == run.folder.child("models/best.keras").url
        )
    assert run.folder.read("models/best.keras")[:2] == b"PK"


class _Scaled:
    """An argument that no archive can hold."""


def test_a_model_that_no_archive_holds_leaves_its_weights(root: str, tmp_path: Path):
    import keras

    class Layer(keras.layers.Layer):
        def __init__(self, scale: _Scaled) -> None:
            super().__init__()
            self.scale = scale

        def build(self, input_shape: object) -> None:
            self.gain = self.add_weight(shape=(2,), initializer="ones")

        def call(self, x: object) -> object:
            return keras.ops.multiply(x, self.gain)

    def make() -> keras.Model:
        return keras.Sequential([keras.layers.Input((2,)), Layer(_Scaled())])

    model, said = make(), []
    model.set_weights([np.array([2.0, 3.0])])
    with create(root, "x", complain=said.append) as run:
        url = run.folder.child("models/last.weights.h5").url
        assert run.save_model(model, "last") == url
        assert run.save_model(model, "last") == url
        assert run.model_error is None
    assert run.folder.names("models") == ["last.weights.h5"]
    assert model_file(run.folder) == "models/last.weights.h5"
    assert len(said) == 1
    assert "load_weights" in said[0]
    copy = tmp_path / "copy.weights.h5"
    copy.write_bytes(run.folder.read("models/last.weights.h5"))
    other = make()
    other.load_weights(copy)
    np.testing.assert_array_equal(other.get_weights()[0], [2.0, 3.0])


def test_a_loss_without_source_code_is_no_failure_of_the_storage(root: str):
    """`inspect` raises an OSError of it: typed into Python, or given by -c."""
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", eval("lambda y, p: keras.ops.sum(p, axis=-1)"))
    said: list[str] = []
    with create(root, "x", complain=said.append) as run:
        url = run.folder.child("models/last.weights.h5").url
        assert run.save_model(model, "last") == url
    assert "source code" in said[0]
    assert "load_weights" in said[0]


def test_scalars_are_beside_the_events(root: str):
    with create(root, "x") as run:
        run.event("epoch_ended", epoch=0, metrics={"loss": 1.0, "val_loss": 2.0})
    assert run.folder.names("tensorboard") == ["train", "validation"]


def test_the_null_run_keeps_only_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with start(False, name="higgs") as run:
        assert isinstance(run, NullRun)
        run.event("run_started", strategy="adag", workers=1, rows=10, epochs=1)
        run.exchanges([{"rank": 0, "epoch": 0, "samples": 10}])
        run.write_plan({})
        run.flush()
        assert run.save_model(Model(), "best") is None
        run.finish("finished")
    assert run.summary().samples_committed == 10
    assert repr(run) == "<run higgs in memory>"
    assert run.lost_events == 0
    assert list(tmp_path.iterdir()) == []


def test_the_run_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    usual = start(None, name="model", root=tmp_path / "usual")
    named = start("mine", name="model", root=tmp_path / "usual")
    placed = start("./elsewhere", name="model")
    path = start(tmp_path / "there", name="model")
    assert Path(usual.url).parent == Path(named.url).parent == tmp_path / "usual"
    assert (usual.name, named.name, placed.name) == ("model", "mine", "model")
    assert Path(placed.url).parent == tmp_path / "elsewhere"
    assert Path(path.url).parent == tmp_path / "there"
    assert start(usual, name="model") is usual
    assert Path(start(None, name="m").url).parent == tmp_path / "shoal-runs"


@pytest.mark.parametrize("run", ["", 3, 1.5])
def test_a_wrong_run_argument(run):
    with pytest.raises(ConfigError, match="names no run"):
        start(run, name="m")


def test_folder_is_public(tmp_path: Path):
    assert isinstance(create(tmp_path, "x").folder, Folder)


def test_the_clock_stands_still_without_training(tmp_path: Path):
    with create(str(tmp_path), "higgs") as run:
        run.event("run_started", workers=2)
    for path in Path(run.url, "events").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for event in lines:  # as if it had been an hour ago, for half a minute
            event["time"] -= 3600.0
            if event["kind"] == "run_started":
                event["t"] = 30.0
        path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    with open_run(run.url) as again:
        again.event("run_resumed", workers=2)
        assert 30.0 <= again.summary().seconds < 300.0
    assert again.summary().seconds == read_summary(Folder.at(run.url)).seconds
