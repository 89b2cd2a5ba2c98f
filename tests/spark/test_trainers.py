"""Trainers on DataFrames of a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal import spark as trainers
from tests.habits.cases import data, make_model

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    x, y = data(320)
    listed = [(one.tolist(), int(label)) for one, label in zip(x, y, strict=True)]
    return spark.createDataFrame(listed, "features array<float>, label long")


@pytest.mark.parametrize("name", ["SingleTrainer", "DOWNPOUR", "EASGD"])
def test_a_trained_copy_is_returned(frame: Any, name: str) -> None:
    model = make_model()
    before = [weight.copy() for weight in model.get_weights()]
    trainer: Any = getattr(trainers, name)(
        model, "adagrad", "sparse_categorical_crossentropy", batch_size=16,
        num_epoch=2, run=False, verbose=0,
    )  # fmt: skip
    trained = trainer.train(frame, shuffle=True)
    assert trained is not model
    for mine, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert not np.array_equal(trained.get_weights()[0], before[0])
    x, y = data(320)
    loss, accuracy = trained.evaluate(x, y, verbose=0)
    assert loss == pytest.approx(trainer.history.history["loss"][-1], abs=0.5)
    assert 0.4 < accuracy <= 1
    assert trainer.run.summary().samples_committed == 640
    assert trainer.get_training_time() > 0
