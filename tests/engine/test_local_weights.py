"""Where a worker's next steps start after each kind of answer."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.engine.transport.segments import in_turn
from shoal.engine.worker.local_weights import LocalWeights
from shoal.strategies import get
from shoal.vectors import Vector


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def weights(strategy: str, *, is_early: bool = False) -> LocalWeights:
    return LocalWeights(
        get(strategy), vector(1, 1), vector(5), is_early=is_early, spread=in_turn
    )


def test_a_worker_starts_from_the_center() -> None:
    found = weights("downpour")
    assert found.vector.tolist() == [1, 1]
    assert found.statistics.tolist() == [5]


def test_the_message_has_the_change_since_the_start() -> None:
    message = np.empty(2, np.float32)
    weights("downpour").write(message, vector(4, 2), steps=1)
    assert message.tolist() == [3, 1]


def test_a_center_replaces_the_weights() -> None:
    found = weights("downpour")
    found.take("center", vector(7, 8), vector(4, 2))
    assert found.vector.tolist() == [7, 8]


def test_an_answer_without_a_vector_keeps_the_weights() -> None:
    found = weights("aeasgd")
    found.take("none", vector(7, 8), vector(4, 2))
    assert found.vector.tolist() == [4, 2]


def test_results_are_never_written_over_the_weights_that_were_pushed() -> None:
    found = weights("downpour")
    for _ in range(3):
        local = found.vector  # as of a backend that works in place
        before = local.copy()
        found.take("reply", vector(7, 8), local)
        assert not np.may_share_memory(found.vector, local)
        assert (local == before).all()


def test_steps_since_an_early_push_are_added_to_the_center() -> None:
    found = weights("downpour", is_early=True)
    found.remember(vector(4, 2), vector(6))
    found.catch_up("center", vector(7, 8), vector(5, 4), vector(7), is_void=False)
    assert found.vector.tolist() == [8, 10]


def test_void_steps_since_an_early_push_are_left_out() -> None:
    found = weights("downpour", is_early=True)
    found.remember(vector(4, 2), vector(6))
    found.catch_up("center", vector(7, 8), vector(5, 4), vector(7), is_void=True)
    assert found.vector.tolist() == [7, 8]


def test_early_pushes_need_memory_for_them() -> None:
    with pytest.raises(RuntimeError, match="not to push early"):
        weights("downpour").remember(vector(4, 2), vector(6))
