"""Reads the real data sets of $SHOAL_DATA into arrays, the same way for all tests."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]

NOT_FEATURES = {"EventId", "Weight", "Label", "KaggleSet", "KaggleWeight"}
MISSING = -999.0


class Table(NamedTuple):
    """Features and labels."""

    x: Floats
    y: Labels


class Digits(NamedTuple):
    """Images and labels, for training and for testing."""

    x: Floats
    y: Labels
    x_test: Floats
    y_test: Labels


def read_higgs(path: Path) -> Table:
    """Reads the events; columns get mean 0 and deviation 1, missing values 0."""
    with gzip.open(path, "rt", newline="") as lines:
        rows = list(csv.DictReader(lines))
    features = [name for name in rows[0] if name not in NOT_FEATURES]
    raw = np.array([[float(row[name]) for name in features] for row in rows])
    known = np.ma.masked_equal(raw, MISSING)
    x = ((known - known.mean(axis=0)) / known.std(axis=0)).filled(0.0)
    y = np.array([row["Label"] == "s" for row in rows])
    return Table(x.astype(np.float32), y.astype(np.int32))


def read_mnist(path: Path) -> Digits:
    """Reads the images, scaled to [0, 1], shape (n, 28, 28)."""
    with np.load(path) as arrays:
        x, y, x_test, y_test = (
            arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")
        )
    return Digits(
        x.astype(np.float32) / 255.0,
        y.astype(np.int32),
        x_test.astype(np.float32) / 255.0,
        y_test.astype(np.int32),
    )
