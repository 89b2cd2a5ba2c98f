"""`fit` on data that is read in chunks: the same samples, each counted once."""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.data import training
from shoal.errors import ConfigError, DataError
from shoal.testing import faults
from shoal.training.start_run import rules

ROWS = 400


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Any, Any]:
    """A folder of two uneven Parquet files in row groups of 64, and its arrays."""
    random = np.random.default_rng(3)
    x = random.standard_normal((ROWS, 3)).astype("f4")
    y = (x @ np.array([[1.0], [-2.0], [0.5]], "f4")).astype("f4")
    folder = tmp_path / "table"
    folder.mkdir()
    for name, rows in {"a": slice(0, 250), "b": slice(250, ROWS)}.items():
        columns = {f"x{i}": x[rows, i] for i in range(3)} | {"y": y[rows, 0]}
        file = folder / f"{name}.parquet"
        pq.write_table(pa.table(columns), file, row_group_size=64)
    return folder, x, y


def line() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def fit(model: Any, *data: Any, **given: Any) -> Any:
    usual: dict[str, Any] = {
        "cluster": "inline", "run": False, "verbose": 0, "workers": 2, "seed": 1
    }  # fmt: skip
    return shoal.fit(model, *data, **{**usual, **given})


@pytest.mark.parametrize("strategy", ["all_reduce", "downpour", "local_sgd"])
def test_fit_on_files_equals_fit_on_their_arrays(
    table: tuple[Path, Any, Any], strategy: str
) -> None:
    folder, x, y = table
    told: dict[str, Any] = {"shuffle": False, "batch_size": 32, "epochs": 2}
    ours, theirs = line(), line()
    names = ["x0", "x1", "x2"]
    found = fit(ours, folder, features=names, label="y", strategy=strategy, **told)
    kept = fit(theirs, x, y[:, 0], strategy=strategy, **told)
    assert found.history["loss"] == pytest.approx(kept.history["loss"], rel=1e-5)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"class_weight": {0: 2.0}}])
def test_a_plan_runs_preprocess_once(tmp_path: Path, more: dict[str, Any]) -> None:
    np.save(tmp_path / "a.npy", np.zeros((9, 3), "f4"))
    runs: list[int] = []

    def preprocess(keys: list[str], objects: list[Any]) -> Any:
        runs.append(len(keys))
        x = np.concatenate([np.load(stream) for stream in objects])
        return x, np.zeros(len(x), "int32"), len(x)

    shoal.plan(line(), tmp_path, preprocess=preprocess, validation_data=None, **more)
    assert runs == [1]


def test_fit_on_shuffled_files_learns_the_same_line(
    table: tuple[Path, Any, Any],
) -> None:
    folder, _, _ = table
    model = line()
    fit(model, str(folder), label="y", epochs=25, batch_size=16, validation_data=folder)
    assert model.history.history["val_loss"][-1] < 1e-3


def test_file_arguments_are_refused_for_arrays() -> None:
    with pytest.raises(ConfigError, match="label='y' was passed, but x is not a path"):
        fit(line(), np.ones((4, 3)), np.ones((4, 1)), label="y")


def test_targets_beside_files_are_refused(table: tuple[Path, Any, Any]) -> None:
    with pytest.raises(DataError, match="name its column with label="):
        fit(line(), table[0], np.ones(ROWS))


def test_a_split_needs_arrays(table: tuple[Path, Any, Any]) -> None:
    with pytest.raises(ConfigError, match="Pass validation_data"):
        fit(line(), table[0], label="y", validation_split=0.1)


def test_the_plan_names_the_files(table: tuple[Path, Any, Any]) -> None:
    plan = shoal.plan(line(), table[0], label="y", workers=2)
    assert "of Parquet files; each committed exactly once" in plan.explain()
    assert plan.to_json()["data"]["chunking"]["rows"] == 7
    assert plan.rows == ROWS


def test_bad_files_can_be_left_out(table: tuple[Path, Any, Any]) -> None:
    (table[0] / "c.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"c\.parquet"):
        shoal.plan(line(), table[0], label="y")
    plan = shoal.plan(line(), table[0], label="y", on_bad_file="skip")
    assert plan.rows == ROWS
    assert any("1 file(s) are left out" in text for text in plan.warnings)
    assert any("c.parquet" in text for text in plan.warnings)


class Batches(keras.utils.PyDataset):
    """20 batches of 20 rows."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        x = np.random.default_rng(index).standard_normal((20, 3)).astype("f4")
        return x, x.sum(1, keepdims=True)


def endless() -> Iterator[Any]:
    while True:
        yield from (Batches()[i] for i in range(20))


def test_batch_size_beside_batches_is_refused() -> None:
    with pytest.raises(ConfigError, match="in batches of 20"):
        fit(line(), Batches(), batch_size=64)


def test_batches_are_those_of_keras() -> None:
    ours, theirs = line(), line()
    fit(ours, Batches(), strategy="all_reduce", shuffle=False, epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras: super().__init__ was not called
        theirs.fit(Batches(), shuffle=False, epochs=2, verbose=0)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_evaluate_and_predict_read_batches() -> None:
    model = line()
    found = shoal.evaluate(model, Batches())
    assert found == pytest.approx(model.evaluate(Batches(), verbose=0), rel=1e-5)
    assert shoal.predict(model, Batches()).shape == (400, 1)


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data in chunks is scored as if it were large."""
    monkeypatch.setattr(training, "WHOLE_BYTES", 0)


NAMES = ["x0", "x1", "x2"]


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("steps", [None, 5])
def test_files_are_scored_as_their_arrays_are(
    table: tuple[Path, Any, Any], steps: int | None
) -> None:
    folder, x, y = table
    # On TensorFlow Keras evaluates no model with targets of another rank later.
    model, plain = line(), line()
    plain.set_weights(model.get_weights())
    rows = ROWS if steps is None else 24 * steps
    told: dict[str, Any] = {"features": NAMES, "label": "y", "batch_size": 24}
    found = shoal.evaluate(model, folder, steps=steps, workers=1, **told)
    wanted = plain.evaluate(x[:rows], y[:rows], batch_size=24, verbose=0)
    assert found == pytest.approx(wanted, rel=1e-6)
    found = shoal.predict(model, folder, steps=steps, workers=1, **told)
    wanted = plain.predict(x[:rows], batch_size=24, verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.usefixtures("streamed")
def test_validation_on_files_equals_validation_on_their_arrays(
    table: tuple[Path, Any, Any],
) -> None:
    folder, x, y = table
    told: dict[str, Any] = {
        "features": NAMES, "label": "y", "epochs": 2, "strategy": "all_reduce",
        "validation_batch_size": 48, "validation_steps": 7,
    }  # fmt: skip
    found = fit(line(), folder, validation_data=folder, **told)
    kept = fit(line(), folder, validation_data=(x, y), **told)
    assert found.history["val_loss"] == pytest.approx(kept.history["val_loss"], 1e-6)


@pytest.mark.usefixtures("streamed")
def test_batches_are_scored_as_keras_scores_them() -> None:
    model = line()
    wanted = model.evaluate(Batches(), verbose=0)
    assert shoal.evaluate(model, Batches()) == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(ConfigError, match="in batches of 20"):
        shoal.predict(model, Batches(), batch_size=64)


@pytest.mark.usefixtures("streamed")
def test_a_generator_is_scored_batch_by_batch() -> None:
    model = line()
    wanted = model.evaluate(endless(), steps=30, verbose=0)
    told: dict[str, Any] = {"steps": 30, "workers": 1, "verbose": 0}
    assert shoal.evaluate(model, endless(), **told) == pytest.approx(wanted, rel=1e-6)
    found = shoal.predict(model, endless(), **told)
    wanted = model.predict(endless(), steps=30, verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.skipif(
    keras.backend.backend() == "torch",
    reason="Keras leaves threads of its callbacks behind where evaluate fails",
)
@pytest.mark.usefixtures("streamed")
def test_error_of_a_generator_that_ends_early_counts_steps() -> None:
    short = (Batches()[i] for i in range(3))
    with pytest.raises(DataError, match=r"ended after 3 batches.*Pass fewer steps or"):
        shoal.evaluate(line(), short, steps=5, verbose=0)

    def fails() -> Iterator[Any]:
        yield Batches()[0]
        raise KeyError("color")

    with pytest.raises(DataError, match=r"data of predict\): KeyError") as caught:
        shoal.predict(line(), fails(), steps=5, verbose=0)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.usefixtures("streamed")
def test_validation_data_of_a_generator_is_stored_on_disk(
    table: tuple[Path, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told: dict[str, Any] = {"label": "y", "epochs": 2, "strategy": "all_reduce"}
    found = fit(line(), table[0], validation_data=endless(), validation_steps=6, **told)
    whole = [Batches()[i] for i in range(6)]
    x, y = (np.concatenate(parts) for parts in zip(*whole, strict=True))
    kept = fit(
        line(), table[0], validation_data=(x, y), validation_batch_size=20, **told
    )
    assert found.history["val_loss"] == pytest.approx(kept.history["val_loss"], 1e-6)
    gc.collect()
    assert not list(tmp_path.glob("shoal-spool-*"))


def test_scoring_prints_the_output_of_keras(capsys: pytest.CaptureFixture[str]) -> None:
    model, (x, y) = line(), Batches()[0]
    for score in (lambda **v: shoal.evaluate(model, x, y, **v),
                  lambda **v: shoal.predict(model, x, **v)):  # fmt: skip
        score(verbose=0)
        assert capsys.readouterr().out == ""
        for verbose in (1, 2, "auto"):
            score(verbose=verbose)
            assert "1/1" in capsys.readouterr().out
        with pytest.raises(ConfigError, match="verbose=3 cannot be used"):
            score(verbose=3)


def test_a_stream_without_an_end_is_not_scored_without_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It is read to its end; the free disk is the limit, which is made small here.
    free = SimpleNamespace(free=100_000)
    monkeypatch.setattr("shoal.data.spooled.shutil.disk_usage", lambda _: free)
    with pytest.raises(DataError, match=r"has not ended after .* pass steps=N"):
        shoal.evaluate(line(), endless())
    with pytest.raises(DataError, match=r"has not ended after .*validation_steps"):
        shoal.plan(line(), Batches(), validation_data=endless())


def test_workers_read_different_chunks(table: tuple[Path, Any, Any]) -> None:
    told: dict[str, Any] = {"label": "y", "workers": 2, "strategy": "downpour"}
    plan = shoal.plan(line(), table[0], **told)
    assert (
        rules(plan).borders is not None
    )  # what follows: tests/engine/test_locality.py
    in_order = shoal.plan(line(), table[0], shuffle=False, **told)
    assert rules(in_order).borders is None


@pytest.mark.process
class TestOnProcesses:
    """Workers that open chunks themselves, and some that die."""

    @pytest.mark.usefixtures("streamed")
    def test_several_processes_score_files(self, table: tuple[Path, Any, Any]) -> None:
        folder, x, y = table
        model = line()
        told: dict[str, Any] = {"features": NAMES, "label": "y", "workers": 2}
        found = shoal.evaluate(model, folder, **told)
        assert found == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-5)
        found = shoal.predict(model, folder, **told)
        np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=1e-5)

    @pytest.mark.usefixtures("streamed")
    def test_several_processes_score_a_generator(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = line()
        told: dict[str, Any] = {"steps": 30, "workers": 2, "verbose": 2}
        found = shoal.predict(model, endless(), **told)
        assert capsys.readouterr().out.startswith("30/30")
        wanted = model.predict(endless(), steps=30, verbose=0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)

    def test_every_sample_is_counted_once_though_a_worker_dies(
        self, table: tuple[Path, Any, Any], tmp_path: Path
    ) -> None:
        # Where messages are applied as they arrive, one of two might do it all.
        for strategy, workers in (("all_reduce", 2), ("downpour", 1)):
            with faults.kill(rank=workers - 1, step=6):
                found = fit(
                    line(), table[0], label="y", epochs=2, batch_size=16,
                    strategy=strategy, workers=workers, cluster="local",
                    run=str(tmp_path / strategy),
                )  # fmt: skip
            summary = found.run.summary()
            assert summary.samples_committed == summary.samples_expected == 2 * ROWS
            assert summary.workers_lost == 1

    def test_a_generator_is_read_by_the_driver(self) -> None:
        model = line()
        with faults.kill(rank=0, step=4):
            found = fit(
                model, endless(), steps_per_epoch=20, epochs=3, strategy="downpour",
                cluster="local", run="generator",
            )  # fmt: skip
        assert found.run.summary().samples_committed == 3 * 400
        assert found.history["loss"][-1] < found.history["loss"][0]

    def test_error_names_a_file_that_disappears(
        self, table: tuple[Path, Any, Any]
    ) -> None:
        folder, _, _ = table
        source = shoal.data.open_files(folder, label="y")
        (folder / "b.parquet").unlink()
        with pytest.raises(DataError, match=r"b\.parquet") as caught:
            fit(line(), source, cluster="local", batch_size=16)
        assert "cannot be read" in str(caught.value)

    @pytest.mark.usefixtures("streamed")
    def test_a_run_on_files_is_resumed(
        self, table: tuple[Path, Any, Any], tmp_path: Path
    ) -> None:
        class CtrlC(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    raise KeyboardInterrupt

        place = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            fit(
                line(), table[0], label="y", epochs=4, batch_size=16, cluster="local",
                run=str(place), callbacks=[CtrlC()], validation_data=table[0],
                validation="async",
            )  # fmt: skip
        found = shoal.resume(str(next(place.iterdir())), callbacks=[], verbose=0)
        summary = found.run.summary()
        assert summary.samples_committed == summary.samples_expected == 4 * ROWS
        assert len(found.history["loss"]) == len(found.history["val_loss"]) == 4
        assert np.isfinite(found.history["val_loss"][2:]).all()


def finite(*rows: int) -> Iterator[Any]:
    """Batches of so many rows each, once."""
    for number, count in enumerate(rows):
        x = np.random.default_rng(number).standard_normal((count, 3)).astype("f4")
        yield x, x.sum(1, keepdims=True)


@pytest.mark.parametrize("strategy", ["all_reduce", "single"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_generator_that_ends_trains_as_in_keras(strategy: str, epochs: int) -> None:
    ours, theirs = line(), line()
    workers = 1 if strategy == "single" else 2
    rows = (8, 8, 8, 8, 4)
    held = {"validation_data": finite(8, 8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras: your input ran out of data
        given = {"strategy": strategy, "epochs": epochs, "workers": workers}
        found = fit(ours, finite(*rows), **given, **held)
        held = {"validation_data": finite(8, 8)}
        told = theirs.fit(finite(*rows), epochs=epochs, verbose=0, **held)
    gc.collect()  # a validation's batches go with what validates
    if keras.backend.backend() == "tensorflow":
        return  # its generators give the first batches a second time
    for name in ("loss", "val_loss"):
        assert found.history[name] == pytest.approx(told.history[name], rel=1e-5)
    assert int(ours.optimizer.iterations) == int(theirs.optimizer.iterations)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_generator_that_ends_is_scored_without_steps() -> None:
    model = line()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = model.evaluate(finite(8, 8, 4), verbose=0)
        outputs = model.predict(finite(8, 8, 4), verbose=0)
    assert shoal.evaluate(model, finite(8, 8, 4), verbose=0) == pytest.approx(theirs)
    np.testing.assert_allclose(
        shoal.predict(model, finite(8, 8, 4), verbose=0), outputs, rtol=1e-5
    )
