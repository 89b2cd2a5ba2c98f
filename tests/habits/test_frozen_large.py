"""Hundreds of megabytes that are not trained, in runs that lose what they can lose."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.engine.controller import controller
from shoal.strategies import get, registry
from shoal.testing import faults
from tests.engine.test_faults import servers_of_this_process

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS, BATCH, EPOCHS = 256, 32, 2
WORDS, WIDTH = 780_000, 100  # 312 MB
LIMIT = 100_000  # bytes of the largest report of a worker's state or a center
NAMES = [name for name in registry.names() if not get(name).is_independent]


def embedding() -> Any:
    """A frozen table of 312 MB and a small head."""
    keras.utils.set_random_seed(3)
    words = keras.Input((8,), dtype="int32")
    table = keras.layers.Embedding(
        WORDS, WIDTH, trainable=False, embeddings_initializer="zeros", name="frozen"
    )
    x = keras.layers.GlobalAveragePooling1D()(table(words))
    x = keras.layers.Dense(8, "relu")(x)
    model = keras.Model(words, keras.layers.Dense(1, "sigmoid")(x))
    values = np.random.default_rng(1).random((WORDS, WIDTH), np.float32) - 0.5
    table.set_weights([values])
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


def convolutions() -> Any:
    """A frozen convolutional base of 100 MB, with batch normalization."""
    keras.utils.set_random_seed(3)
    base = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            keras.layers.Conv2D(1670, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(1670, 3, strides=4, padding="same"),
            keras.layers.GlobalAveragePooling2D(),
        ],
        name="frozen",
    )
    base.trainable = False
    start = keras.Input((4, 4, 3))
    x = keras.layers.Dropout(0.0)(base(start, training=False))
    model = keras.Model(start, keras.layers.Dense(1, "sigmoid")(x))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


def data(make: Any, rows: int = ROWS) -> tuple[Any, Any]:
    random = np.random.default_rng(2)
    if make is embedding:
        x = random.integers(0, WORDS, (rows, 8))
        return x, (x[:, 0] % 2).astype("f4")
    x = random.normal(size=(rows, 4, 4, 3)).astype("f4")
    return x, (x[:, 0, 0, 0] > 0).astype("f4")


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what the driver is told of states, centers and checkpoints."""
    found = list[int]()
    for name in ("read_checkpoint", "read_epoch"):
        read = getattr(controller, name)

        def reading(head: Any, body: Any, *more: Any, read: Any = read) -> Any:
            found.append(len(body) + sum(map(len, filter(None, more))))
            return read(head, body, *more)

        monkeypatch.setattr(controller, name, reading)
    return found


def check(make: Any, sizes: list[int], *, is_exact: bool, **given: Any) -> None:
    """Trains, and compares with plain Keras where that is the judge."""
    x, y = data(make)
    usual: dict[str, Any] = {
        "batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0
    }  # fmt: skip
    usual["epochs"] = epochs = given.pop("epochs", EPOCHS)
    model = make()
    frozen = [v.numpy().copy() for v in model.non_trainable_variables]
    told: dict[str, Any] = {**usual, "workers": 2, "run": False, **given}
    history = shoal.fit(model, x, y, **told)
    for variable, value in zip(model.non_trainable_variables, frozen, strict=True):
        if "seed" not in variable.path:
            np.testing.assert_array_equal(variable.numpy(), value)
    assert len(history.history["loss"]) == epochs
    assert sizes
    assert max(sizes) < LIMIT
    if is_exact:
        plain = make()
        kept = plain.fit(x, y, **usual)
        np.testing.assert_allclose(
            history.history["loss"], kept.history["loss"], rtol=1e-3
        )
        for mine, other in zip(
            model.trainable_variables, plain.trainable_variables, strict=True
        ):
            np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [embedding, convolutions])
def test_under_every_strategy(make: Any, name: str, sizes: list[int]) -> None:
    most = get(name).max_workers or 2
    is_exact = name in ("all_reduce", "single")
    check(make, sizes, is_exact=is_exact, strategy=name, workers=min(2, most))


@pytest.mark.parametrize("name", ["all_reduce", "aeasgd"])
@pytest.mark.parametrize(
    "given", [{"standby": 1}, {"servers": 2}, {"collective": "server"}], ids=str
)
def test_with_other_servers(name: str, given: dict[str, Any], sizes: list[int]) -> None:
    if "collective" in given and name != "all_reduce":
        pytest.skip("only where gradients are exchanged")
    check(embedding, sizes, is_exact=name == "all_reduce", strategy=name, **given)


@pytest.mark.parametrize("name", ["all_reduce", "aeasgd"])
def test_a_worker_is_killed_and_replaced(name: str, sizes: list[int]) -> None:
    # Rows of the lost share are trained on in another step than Keras': not exact.
    with faults.kill(rank=1, step=3):
        check(embedding, sizes, is_exact=False, strategy=name)


@pytest.mark.parametrize("standby", [0, 1])
def test_the_server_is_killed(standby: int, sizes: list[int]) -> None:
    kill = Kill(needs_standby=bool(standby))
    check(
        embedding, sizes, is_exact=True, standby=standby, callbacks=[kill],
        checkpoint_every="32 samples", epochs=4,
    )  # fmt: skip
    assert kill.killed


class Kill(keras.callbacks.Callback):
    """Kills the run's server in a later epoch, once its standby is there."""

    def __init__(self, *, needs_standby: bool) -> None:
        super().__init__()
        self.killed, self.needs_standby = False, needs_standby

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        servers = servers_of_this_process()
        is_late = len(servers) > 1 if self.needs_standby else self.epoch > 0
        if is_late and not self.killed:
            self.killed = True
            servers[0].kill()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
