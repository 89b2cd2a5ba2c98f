"""What a GPU asks of torch: tensors are copied to the host before NumPy reads them."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest

import shoal
from tests.backends.cases import BACKEND, CASES, inputs, make, perceptron, targets
from tests.backends.tensor_device import tensors_on_a_device
from tests.backends.test_every_backend import fit

pytestmark = pytest.mark.skipif(
    BACKEND != "torch", reason="only torch has such tensors"
)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with tensors_on_a_device():
        yield


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    import torch

    tensor = torch.ones(2)
    for read in (np.asarray, lambda t: t.numpy()):
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
            read(tensor)
        assert read(tensor.detach().cpu()).sum() == 2


@pytest.mark.parametrize("name", CASES)
def test_every_case(name: str) -> None:
    for strategy in ("all_reduce", "eamsgd:period=2"):
        model, data = make(name)
        found = fit(model, data, strategy=strategy, workers=2, validation_split=0.2)
        assert np.isfinite(found.history["val_loss"]).all()


def test_metrics_and_scores() -> None:
    metrics = [
        keras.metrics.AUC(),
        keras.metrics.F1Score(average=None),
        keras.metrics.MeanIoU(2),
    ]
    model = perceptron(loss="binary_crossentropy", metrics=metrics)
    data = {"x": inputs(), "y": (targets() > 0).astype("f4")}
    fit(model, data, strategy="all_reduce", workers=2)
    scores = shoal.evaluate(model, **data, verbose=0, return_dict=True)
    assert np.isfinite(scores["loss"])
    assert shoal.predict(model, data["x"], verbose=0).shape == (len(data["x"]), 1)


def test_tensors_as_data() -> None:
    import torch

    model, data = make("arrays")
    tensors = {name: torch.from_numpy(array).bfloat16() for name, array in data.items()}
    fit(model, tensors, strategy="all_reduce", workers=2, validation_split=0.2)
