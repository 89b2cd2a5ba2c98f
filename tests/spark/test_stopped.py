"""A session that is stopped while a run lasts."""

from __future__ import annotations

from typing import Any

import keras
import pytest

import shoal
from shoal.errors import ClusterError, PlanError
from tests.habits.cases import data, make_model
from tests.spark.processes import training_processes

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]


class Stop(keras.callbacks.Callback):
    """Stops the session in the second epoch."""

    def __init__(self, spark: Any) -> None:
        super().__init__()
        self.spark = spark

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.spark.stop()


def test_a_stopped_session_ends_the_run_with_a_sentence(spark: Any) -> None:
    with pytest.raises(ClusterError, match="the Spark session was stopped"):
        shoal.fit(
            make_model(), *data(320), batch_size=16, epochs=99999, strategy="aeasgd",
            workers=2, run=False, verbose=0, cluster="spark", callbacks=[Stop(spark)],
        )  # fmt: skip
    assert training_processes() == []
    with pytest.raises(PlanError, match="no active Spark session"):
        shoal.plan(make_model(), *data(96), cluster="spark")
