"""What a run that goes on has behind it, and what its callbacks remember."""

from __future__ import annotations

import copy
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.coordination.skipped import Skipped
from shoal.engine.server.checkpoint import OptimizerSnapshot, ServerCheckpoint
from shoal.errors import CheckpointError, ConfigError
from shoal.plan.often import Often, read_often
from shoal.runs.checkpoints import Checkpoint, CheckpointStore
from shoal.runs.folder import Folder
from shoal.training.callback_state import (
    CallbackStates,
    FixedVariables,
    checks_of,
    give_back,
    pack_callbacks,
    unpack_callbacks,
)
from shoal.training.resume_state import Diary, ResumeState


def test_a_resume_state_is_restored_from_a_storage(tmp_path: Path) -> None:
    checkpoint = ServerCheckpoint(
        sequencer={"lineage": 2, "epochs": {"allowed": 1}},
        arrays={"vector": np.arange(4, dtype="f4"), "statistics": np.zeros(0, "f4"),
                "sums/3": np.ones(2)},
        blob=b"optimizer",
        left_out=Skipped(((0, 8, 16),), (3, 77)),
        snapshots={
            0: OptimizerSnapshot(1, 12, b"of rank 0"),
            3: OptimizerSnapshot(2, 7, b"of rank 3"),
        },
    )  # fmt: skip
    diary = Diary(
        epoch=3, history={"loss": [np.float32(0.5), 0.25, float("nan")]},
        epochs=[0, 1, 2], best=-0.25, learning_rate=0.1, is_stopped=False,
        callbacks=b"states", unscored=[2], kept=[0.1, 3.0],
    )  # fmt: skip
    store = CheckpointStore(Folder.at(tmp_path)).open()
    store.save(ResumeState(server=checkpoint, diary=diary).to_checkpoint())
    found = store.latest(print)
    assert found is not None
    resume_state = ResumeState.of(found)
    assert resume_state.server.sequencer == checkpoint.sequencer
    assert resume_state.server.blob == checkpoint.blob
    assert resume_state.server.left_out == checkpoint.left_out
    assert resume_state.server.snapshots == checkpoint.snapshots
    assert resume_state.diary.unscored == [2]
    for name, array in checkpoint.arrays.items():
        np.testing.assert_array_equal(resume_state.server.arrays[name], array)
        assert resume_state.server.arrays[name].dtype == array.dtype
    np.testing.assert_equal(
        resume_state.diary.history, {"loss": [0.5, 0.25, float("nan")]}
    )
    assert resume_state.diary.epochs == [0, 1, 2]
    assert resume_state.diary.kept == [0.1, 3.0]
    assert (resume_state.diary.best, resume_state.diary.learning_rate) == (-0.25, 0.1)


WHOLE: dict[str, Any] = {
    "sequencer": {"lineage": 2}, "left_out": {"ranges": [[0, 8, 16]], "rows": [3]},
    "snapshots": [[0, 1, 12]], "changes": 0,
    "diary": {"epoch": 3, "history": {"loss": [0.5]}, "epochs": [0], "best": None,
              "learning_rate": 0.1, "is_stopped": False, "unscored": []},
}  # fmt: skip
BLOBS = {"optimizer": b"", "callbacks": b"", "optimizer-0": b""}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    "path", [*((name,) for name in WHOLE), ("diary", "epoch"), ("diary", "history"),
             ("left_out", "ranges"), ("left_out", "rows")],
)  # fmt: skip
@settings(max_examples=40)
@given(value=anything)
def test_a_document_of_another_kind_is_an_error_that_says_so(
    path: tuple[str, ...], value: Any
) -> None:
    """Its checksums are right: another version of Shoal may have written it."""
    document = copy.deepcopy(WHOLE)
    inner = document if len(path) == 1 else document[path[0]]
    inner[path[-1]] = value
    checkpoint = Checkpoint(number=4, document=document, arrays={}, blobs=BLOBS)
    with suppress(CheckpointError):
        assert ResumeState.of(checkpoint).diary.epoch >= 0


@pytest.mark.parametrize("name", sorted(set(WHOLE) - {"changes"}))
def test_a_document_that_lacks_something_is_an_error_that_says_so(name: str) -> None:
    document = {key: value for key, value in WHOLE.items() if key != name}
    checkpoint = Checkpoint(number=4, document=document, arrays={}, blobs=BLOBS)
    with pytest.raises(CheckpointError, match="checkpoint 4 does not hold"):
        ResumeState.of(checkpoint)


class Own(keras.callbacks.Callback):
    """A callback of a user, with an attribute that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.lock = threading.Lock()

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts to count again."""
        self.seen = []


def test_callbacks_restore_the_state_of_earlier_ones() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    before = [keras.callbacks.EarlyStopping(patience=3), Own()]
    for callback in before:
        callback.set_model(model)
        callback.on_train_begin()
    before[0].wait, before[0].best = 2, 0.5
    before[1].seen += [4, 5]
    blob = CallbackStates(pytest.fail).take(before)
    after = [keras.callbacks.EarlyStopping(patience=3), Own()]
    for callback in after:
        callback.on_train_begin()
    lock = after[1].lock
    give_back(after, blob)
    assert (after[0].wait, after[0].best) == (2, 0.5)
    assert after[1].seen == [4, 5]
    assert after[1].lock is lock
    assert after[0]._model is None


def test_other_callbacks_stay_as_they_are() -> None:
    other = keras.callbacks.EarlyStopping(patience=9)
    give_back([other], CallbackStates(pytest.fail).take([Own()]))
    assert other.patience == 9
    assert not hasattr(other, "seen")


def test_frozen_weights_that_a_callback_holds_are_named_and_not_written() -> None:
    """Unless they were changed since the run began, or are not frozen at all."""
    began = [np.zeros(3, "f4"), np.arange(50_000.0), np.arange(60_000.0)]
    values = [value.copy() for value in began]
    callback = Own()
    callback.seen = [values[1].copy(), values[2] + 1, values[0].copy()]
    frozen = FixedVariables(values, checks_of(began))
    states = CallbackStates(pytest.fail)
    blob = states.take([callback], frozen)
    assert len(blob) < 60_000 * 8 + 4096
    after = Own()
    give_back([after], blob, FixedVariables(began, {}))
    for mine, other in zip(after.seen, callback.seen, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert after.seen[0] is not began[1]
    values[1] += 1  # by a callback: the run began with something else
    callback.seen = [values[1].copy()]
    give_back([after], states.take([callback], frozen), FixedVariables(began, {}))
    np.testing.assert_array_equal(after.seen[0], values[1])


def test_large_state_and_state_of_keras_are_left_out_with_one_warning() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    callback = Own()
    callback.set_model(model)
    callback.same = model  # the one that is trained is nobody's state
    callback.seen, callback.best_weights = [4], [np.zeros(200, "f4")]
    callback.teachers = {"old": keras.Sequential([keras.layers.Dense(1)])}
    callback.slow = keras.optimizers.SGD()
    callback.outputs = [np.zeros(900, "f4"), np.zeros(900, "f4")]
    callback.words = ["a number of words"] * 10 + [str(n) for n in range(9999)]
    told: list[str] = []
    states = CallbackStates(told.append, most_bytes=4096)
    states.take([callback])
    after = Own()
    give_back([after], states.take([callback]))
    assert after.seen == [4]
    assert after.best_weights[0].size == 200
    left_out = {"teachers", "slow", "outputs", "words"}
    assert not (left_out | {"same"}) & set(vars(after))
    assert {text.split("'")[1] for text in told} == left_out
    assert len(told) == 4
    assert all("of the callback Own: it " in text for text in told)
    assert "Sequential of Keras" in told[0]


def test_callbacks_travel_without_their_model() -> None:
    callback = keras.callbacks.EarlyStopping(patience=4)
    callback.set_model(keras.Sequential([keras.layers.Dense(1)]))
    blob = pack_callbacks([callback])
    assert blob is not None
    [found] = unpack_callbacks(blob)
    assert found.patience == 4
    assert found._model is None
    assert callback._model is not None
    assert pack_callbacks([Own()]) is None  # a lock


@pytest.mark.parametrize(
    ("given", "often"),
    [
        (None, Often()),
        (False, None),
        (5, Often(seconds=5.0)),
        (0.5, Often(seconds=0.5)),
        ("1,000 samples", Often(seconds=None, samples=1000)),
    ],
)
def test_checkpoint_every(given: Any, often: Often | None) -> None:
    assert read_often(given) == often


@pytest.mark.parametrize("given", [True, 0, -1, "x", "5", "0 samples", [], 2j])
def test_checkpoint_every_that_means_nothing(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_every=.* Expected seconds"):
        read_often(given)


def test_when_a_checkpoint_is_due() -> None:
    assert Often(seconds=None, samples=10).is_due(10, 0.0)
    assert not Often(seconds=None, samples=10).is_due(9, 0.0)
    assert Often(seconds=1.0).is_due(0, float("-inf"))
    assert not Often(seconds=1.0).is_due(10**9, float("inf"))
