"""State of workers that is larger than the vectors that are exchanged.

An optimizer with many slots, a model of which little is trained: what a server takes
of a worker follows what the worker has to send, not what is exchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import pytest

from shoal.backends.base import ComputeSpec
from shoal.engine.transport.buffers import SPARE_BYTES, Sizes
from shoal.errors import WorkerFailed
from shoal.strategies import get
from shoal.testing import faults
from tests.engine.cases import PROBLEM
from tests.support.inline import Setup, train
from tests.support.linear import LinearBackend

STATE = 20 << 20  # sixteen times the vectors were 16 MiB once
EPOCHS = 2


@final
class Heavy(LinearBackend):
    """An optimizer with a large state beside the weights."""

    size = STATE

    def snapshot(self) -> bytes:
        return super().snapshot() + bytes(self.size - 8)

    def restore(self, blob: bytes) -> None:
        assert len(blob) == self.size
        super().restore(blob[:8])


def setup(name: str, **given: Any) -> Setup:
    found = Setup.linear(PROBLEM, get(name), epochs=EPOCHS, state=STATE, **given)

    def open_backend(spec: ComputeSpec, _: Any) -> Heavy:
        return Heavy(PROBLEM.size, spec)

    return replace(found, open_backend=open_backend)


@pytest.mark.parametrize("name", ["all_reduce", "aeasgd", "local_sgd"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"has_tls": True, "wants_slot": False},
        {"has_standby": True},
        {"servers": 2},
        {"late": (64,)},
        {"codec": "int8", "wants_slot": False},
    ],
    ids=str,
)
def test_a_large_state_reaches_the_server_and_joining_workers(
    name: str, given: dict[str, Any]
) -> None:
    outcome = train(setup(name, workers=2, **given))
    assert len(outcome.optimizer_state) == STATE
    assert [end.rows for end in outcome.epochs] == [PROBLEM.rows] * EPOCHS


def test_the_replacement_of_a_lost_worker_gets_the_large_state() -> None:
    fault = faults.leave(rank=1, step=3)
    outcome = train(setup("all_reduce", workers=2, watch=fault))
    assert len(outcome.of_kind("joined")) == 3
    assert len(outcome.optimizer_state) == STATE


@pytest.mark.parametrize("name", ["all_reduce", "aeasgd"])
def test_a_state_larger_than_the_model_ends_the_run_with_the_reason(name: str) -> None:
    """The run ends; it does not lose and replace workers again and again."""
    given = setup(name, workers=2)
    given = replace(given, state=STATE - SPARE_BYTES - 1)
    with pytest.raises(WorkerFailed, match="Variables must exist before training"):
        train(given)


def test_the_limit_of_frames_follows_the_size_of_the_state() -> None:
    sizes = Sizes(vector=8, statistics=1000, metrics=7, digest="", state=12345)
    assert sizes.frame_bytes == sizes.up_bytes + 12345 + SPARE_BYTES
