"""What workers print reaches the console, when asked, after their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import shoal
from tests.habits.cases import data
from tests.ray_nodes import EVERYWHERE, Place

pytestmark = pytest.mark.process


@keras.saving.register_keras_serializable("echo")
class Talking(keras.layers.Layer):
    """Says what it is called with when it is traced."""

    def call(self, inputs: Any) -> Any:
        print(f"traced with {inputs.shape[0]} rows")
        return inputs


@EVERYWHERE
@pytest.mark.parametrize("echo", [True, False])
def test_output_of_workers(
    place: Place, echo: bool, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    x, y = data(64)
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), Talking(), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    history = shoal.fit(
        model, x, y, workers=2, batch_size=32, strategy="local_sgd", verbose=0,
        echo=echo, run=tmp_path, cluster=place.cluster,
    )  # fmt: skip
    lines = capfd.readouterr().out.splitlines()
    for rank in range(2):
        log = Path(history.run.url, "experiments", f"worker-{rank}.log").read_text()
        assert "traced with 32 rows" in log
        assert (f"[worker-{rank}] traced with 32 rows" in lines) == echo
