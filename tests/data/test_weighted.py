"""`class_weight` beside data in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.data.adapting import source_of
from shoal.data.chunks import ChunkedSource
from shoal.data.reading import Reading
from shoal.data.shards import Shard
from shoal.data.weighted import ClassWeighted
from shoal.errors import ConfigError
from tests.data.adapter_laws import check_laws


def source_like(x: Any, *targets: Any) -> ChunkedSource:
    def dataset_fn(shard: Shard) -> Iterator[Any]:
        yield (x, *targets) if targets else x

    found = source_of(dataset_fn, reading=Reading(shards=1))
    assert found is not None
    return found


X, Y = np.ones((4, 1), "f4"), np.array([0, 1, 2, 1])


def test_keeps_the_laws() -> None:
    source = ClassWeighted(source_like(X, Y), {1: 3.0})
    assert (source.kind, source.mixing) == ("dataset_fn", "chunks")
    assert not source.is_exactly_once
    check_laws(source, (X, Y, np.array([1, 3, 1, 3], "f4")))


def test_a_weighted_source_serves_the_source_within() -> None:
    batches = iter([(X, Y)] * 2)
    inner = source_of(batches, reading=Reading(steps_per_epoch=2))
    assert inner is not None
    source = ClassWeighted(inner, {2: 5.0})
    with source.serving():
        assert source.read(1, 0).take(np.array([2, 0]))[2].tolist() == [5.0, 1.0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((X,), "given with no targets"),
        (((X,),), "given with no targets"),
        ((X, [Y, Y]), "given with targets"),
        ((X, Y, Y), "both given"),
    ],
)
def test_class_weights_that_keras_refuses_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClassWeighted(source_like(*parts), {1: 3.0})
