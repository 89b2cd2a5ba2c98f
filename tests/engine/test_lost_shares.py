"""A step whose loss is a sum loses a worker: no sample gets another weight.

The judge is a model of which the answer is known: a weight for each sample, a loss that
is the negative sum over the batch of its samples' weights, and SGD with a rate of 1.
Plain Keras ends with the number of epochs in each weight, whatever the batches were.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from shoal.backends.torch_group import open_group
from shoal.engine.coordination.instructions import Merge, PushMetadata, Respond, Rules
from shoal.engine.coordination.rounds import Round
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.worker.native_allreduce import NativeAllReduceSpec
from shoal.engine.worker.shared_memory_allreduce import SharedMemoryAllReduceSpec
from shoal.strategies import AllReduce, get
from shoal.testing import faults
from tests.engine.test_keras import engine
from tests.simulation.failover.counting import EmbeddingBackend
from tests.simulation.failover.processes import one_hot
from tests.support.inline import Outcome, Setup, train

pytestmark = pytest.mark.usefixtures("unhurried")

ROWS, EPOCHS, BATCH = 40, 3, 7  # shares of 4 and 3; five steps, and one of 5


def setup(**changes: Any) -> Setup:
    given: dict[str, Any] = {
        "workers": 2, "epochs": EPOCHS, "batch_size": BATCH,
        "compute": {"is_summed": True}, "watch": faults.leave(rank=1, step=4),
        **changes,
    }  # fmt: skip
    linear = Setup.linear(one_hot(ROWS), AllReduce(), **given)
    return replace(linear, open_backend=lambda spec, _: EmbeddingBackend(ROWS, spec))


def check(found: Outcome, losses: int = 1) -> None:
    assert len(found.of_kind("left")) == losses
    for epoch, end in enumerate(found.epochs, start=1):
        assert end.rows == ROWS
        assert end.metrics[1] == ROWS
        np.testing.assert_allclose(end.vector, epoch, rtol=1e-5)


def collectives(folder: Path) -> dict[str, dict[str, Any]]:
    native = NativeAllReduceSpec(open_group=open_group, folder=folder, library="gloo")
    return {
        "server": {},
        "socket": {"wants_slot": False},
        "several servers": {"servers": 2},
        "standby": {"has_standby": True},
        "shared": {"collective": SharedMemoryAllReduceSpec(folder=folder)},
        "native": {"collective": native},
    }


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("collective", list(collectives(Path())))
def test_the_rest_of_a_step_weighs_as_a_step_of_its_own(
    collective: str, workers: int, rank: int, tmp_path: Path
) -> None:
    watch = faults.leave(rank=rank, step=4)
    check(
        train(setup(workers=workers, watch=watch, **collectives(tmp_path)[collective]))
    )


@pytest.mark.parametrize("collective", ["server", "shared", "native"])
def test_two_workers_of_one_step_are_lost(collective: str, tmp_path: Path) -> None:
    """One worker after the other: the rest is computed for a smaller step each time."""
    watch = faults.leave(rank=1, step=5).leave(rank=2, step=5)
    check(
        train(setup(workers=3, watch=watch, **collectives(tmp_path)[collective])),
        losses=2,
    )


def test_a_step_is_computed_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only steps that the lost worker had a share in: the present one, and the next."""
    told: list[tuple[float, ...]] = []
    before = Round.outdated

    def outdated(self: Round) -> list[int]:
        found = before(self)
        told.extend(self.sums for _ in found)
        return found

    monkeypatch.setattr(Round, "outdated", outdated)
    check(train(setup(watch=None)), losses=0)
    assert not told
    check(train(setup()))
    assert told == [(4.0,), (4.0,)]


def test_a_mean_is_not_computed_anew() -> None:
    """It is divided by the rows of the messages that arrived."""
    found = train(Setup.linear(
        one_hot(ROWS), AllReduce(), workers=2, batch_size=BATCH, epochs=1,
        watch=faults.leave(rank=1, step=2),
    ))  # fmt: skip
    assert len(found.of_kind("left")) == 1
    assert found.epochs[0].rows == ROWS


# ------------------------------------------------------------- the sequencer


def gradient_table(workers: int = 3) -> tuple[Sequencer, dict[int, Any]]:
    """A table whose first step of six rows was dealt, and the share of each worker."""
    rules = Rules(
        epoch_rows=(60,), first_epoch=0, epochs=1, workers=workers, batch=6, window=1,
        is_rounds=True, exchanges_gradients=True, is_elastic=False,
    )  # fmt: skip
    table = Sequencer(rules)
    members = [table.join() for _ in range(workers)]
    table.proceed(0)
    for member in members:
        table.ready(member.rank, member.incarnation)
    return table, {m.rank: table.ledger.held(m.rank)[0] for m in members}


def push(rank: int, piece: Any, assumed: float, sequence: int = 1) -> PushMetadata:
    return PushMetadata(
        rank, 1, 0, sequence, (piece,), 1, float(piece.rows),
        own=(float(piece.rows),), assumed=(assumed,),
    )  # fmt: skip


def test_a_round_closes_only_for_its_actual_sums() -> None:
    table, held = gradient_table()
    assert table.push(push(0, held[0], 6.0)) == []
    assert table.push(push(1, held[1], 6.0)) == []
    told = table.leave(2, 1)
    assert told == [Respond(rank, "again", sums=(4.0,)) for rank in (0, 1)]
    assert table.push(push(0, held[0], 4.0, 2)) == []
    merge, *_ = table.push(push(1, held[1], 4.0, 2))
    assert isinstance(merge, Merge)
    assert [facts.samples for facts in merge.facts.values()] == [2.0, 2.0]


def test_a_second_loss_makes_the_step_smaller_again() -> None:
    table, held = gradient_table()
    table.push(push(0, held[0], 6.0))
    table.push(push(1, held[1], 6.0))
    table.leave(2, 1)
    assert table.push(push(0, held[0], 4.0, 2)) == []
    assert table.leave(1, 1) == [Respond(0, "again", sums=(2.0,))]
    merge, *_ = table.push(push(0, held[0], 2.0, 3))
    assert isinstance(merge, Merge)


def test_a_worker_that_joins_meanwhile_has_no_part_in_it() -> None:
    table, held = gradient_table()
    table.push(push(0, held[0], 6.0))
    table.push(push(1, held[1], 6.0))
    table.leave(2, 1)
    new = table.join()
    table.ready(new.rank, new.incarnation)
    assert not table.ledger.held(new.rank)
    table.push(push(0, held[0], 4.0, 2))
    merge, *_ = table.push(push(1, held[1], 4.0, 2))
    assert isinstance(merge, Merge)
    assert list(merge.facts) == [0, 1]


# --------------------------------------------------------------------- Keras


def embedding() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="int32"),
            keras.layers.Embedding(ROWS, 1, embeddings_initializer="zeros"),
            keras.layers.Flatten(),
        ]
    )
    loss = keras.losses.MeanAbsoluteError(reduction="sum")
    model.compile(keras.optimizers.SGD(1.0), loss)
    return model


def test_keras_counts_every_sample_once() -> None:
    """The target is far away: each gradient is -1, and the loss is the missing sum."""
    x = np.arange(ROWS, dtype="i4")[:, None]
    y = np.full((ROWS, 1), 100.0, "f4")
    given: dict[str, Any] = {"batch_size": BATCH, "epochs": EPOCHS}
    found = engine(
        embedding(), get("all_reduce"), 2, (x, y, None),
        compute={"is_summed": True}, watch=faults.leave(rank=1, step=4), **given,
    )  # fmt: skip
    model = embedding()
    model.fit(x, y, shuffle=False, verbose=0, **given)
    assert len(found.of_kind("left")) == 1
    np.testing.assert_allclose(found.vector, model.get_weights()[0][:, 0], rtol=1e-5)
    np.testing.assert_allclose(found.vector, EPOCHS, rtol=1e-5)
