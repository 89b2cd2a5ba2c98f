"""Data that comes batch by batch is refused but as x; with advice that works."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.data.sources import ArraySource
from shoal.data.streams import refuse_streams
from shoal.data.training import training_data
from shoal.errors import DataError

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6.0)


class Digits(keras.utils.PyDataset):
    """Two rows a batch, as users of Keras write them."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(2 * index, 2 * index + 2)
        return X[rows], Y[rows]


class Batches:
    """Iterable more than once, as tf.data and DataLoader are."""

    def __iter__(self) -> Iterator[Any]:
        return ((X[n : n + 2], Y[n : n + 2]) for n in (0, 2, 4))


class Samples:
    """One row for each number, as a Dataset of torch."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return X[index], Y[index]


def foreign(module: str, name: str, base: type) -> Any:
    """An object of the user's class, derived from one of a library not installed."""
    library = type(name, (base,), {"__module__": module})
    return type("Mine", (library,), {"__module__": "__main__"})()


def endless() -> Iterator[Any]:
    return (batch for _ in itertools.count() for batch in Batches())


STREAMS = {
    "a generator": endless,
    "an iterator": lambda: zip(X[None], Y[None], strict=True),
    "a keras PyDataset": Digits,
    "a tf.data.Dataset": lambda: foreign(
        "tensorflow.python.data.ops.dataset_ops", "DatasetV2", Batches
    ),
    "a torch DataLoader": lambda: foreign(
        "torch.utils.data.dataloader", "DataLoader", Batches
    ),
    "a torch IterableDataset": lambda: foreign(
        "torch.utils.data.dataset", "IterableDataset", type("Rows", (), {
            "__iter__": lambda _: iter(zip(X, Y, strict=True))})
    ),
    "a torch Dataset": lambda: foreign("torch.utils.data.dataset", "Dataset", Samples),
}  # fmt: skip


def refusal(*data: Any, **more: Any) -> str:
    with pytest.raises(DataError) as caught:
        training_data(*data, **more)
    return str(caught.value)


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_are_refused_with_advice_that_works(kind: str) -> None:
    stream = STREAMS[kind]()
    with pytest.raises(DataError) as caught:
        refuse_streams(stream, "x", "data of fit")
    said = str(caught.value)
    assert said.startswith(f"x is {kind} (data of fit), which can only be x, and x ")
    assert "Expected arrays: NumPy, JAX, pandas" in said
    found = re.search(r"NumPy: (.*), then pass (.*) as x and (.*) as y\.", said)
    assert found
    scope = {"x": stream, "np": np, "itertools": itertools, "batches": 3}
    exec(found[1], scope)
    source = ArraySource(eval(found[2], scope), eval(found[3], scope))
    np.testing.assert_array_equal(source.take(slice(None))[0], X)
    np.testing.assert_array_equal(source.take(slice(None))[1], Y)


@pytest.mark.parametrize(
    ("arguments", "beginning"),
    [
        ({"x": X, "y": iter(Y)}, "y is an iterator (data of fit)"),
        ({"x": [X, endless()], "y": Y}, "x[1] is a generator (data of fit)"),
        (
            {"x": X, "y": Y, "validation_data": (X, Digits())},
            "y is a keras PyDataset (validation_data of fit)",
        ),
    ],
)
def test_streams_are_found_wherever_they_are(
    arguments: dict[str, Any], beginning: str
) -> None:
    assert refusal(**arguments).startswith(beginning)


def test_targets_of_their_own_are_collected_alone() -> None:
    assert refusal(X, Digits()).endswith(
        "as np.concatenate(list((y[i] for i in range(len(y)))))."
    )


def test_verbs_refuse_streams() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for verb in (shoal.fit, shoal.plan, shoal.evaluate, shoal.predict):
        with pytest.raises(DataError, match="which can only be x, and x alone"):
            verb(model, [endless()])


def test_other_objects_get_the_other_advice() -> None:
    assert "np.asarray(x)" in refusal(object())
