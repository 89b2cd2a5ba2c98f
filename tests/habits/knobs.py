"""Models with knobs that callbacks turn, and what plain Keras makes of them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

ROWS, BATCH = 96, 32


@keras.saving.register_keras_serializable("shoal-tests")
class Knob(keras.layers.Layer):
    """Adds `beta` times the mean square of its input to the loss, and `level`."""

    def build(self, input_shape: Any) -> None:
        del input_shape

        def weight(name: str, dtype: str = "float32") -> Any:
            return self.add_weight(
                shape=(), initializer="zeros", trainable=False, name=name, dtype=dtype
            )

        self.beta = weight("beta")
        self.level = weight("level", "int32")

    def call(self, inputs: Any) -> Any:
        self.add_loss(self.beta * keras.ops.mean(keras.ops.square(inputs)))
        self.add_loss(keras.ops.cast(self.level, "float32"))
        return inputs


def knob_model(rate: float = 0.1, *, loss: Any = "mse") -> Any:
    """One knob in a layer that is trained, one in a layer that is frozen."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    inputs = keras.Input((4,))
    warm = Knob(name="warm")(layers.Dense(8, "tanh")(inputs))
    cold = Knob(name="cold", trainable=False)(warm)
    model = keras.Model(inputs, layers.Dense(1)(cold))
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
    return model


def knob_data() -> tuple[Any, Any]:
    x = np.random.default_rng(1).normal(size=(ROWS, 4)).astype("float32")
    return x, x.sum(1)


class Turn(keras.callbacks.Callback):
    """Turns all knobs, each in another hook, and clears the optimizer's momentum."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.knob("cold").level.assign(1)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.knob("warm").beta.assign(0.5 * epoch)
        self.knob("warm").level.assign(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.knob("cold").beta.assign(0.25 * (epoch + 1))
        if epoch == 1:
            for momentum in self.model.optimizer.momentums:
                momentum.assign(0 * momentum)

    def knob(self, name: str) -> Any:
        return self.model.get_layer(name)


def trained(model: Any, callbacks: list[Any], by: Any = None, **given: Any) -> Any:
    """The history of plain Keras, or of what `by` is."""
    full: dict[str, Any] = {
        "batch_size": BATCH, "epochs": 4, "shuffle": False, "verbose": 0,
        "callbacks": callbacks, **given,
    }  # fmt: skip
    if by is None:
        return model.fit(*knob_data(), **full)
    return by(model, *knob_data(), **{"run": False, **full})


def knobs_of(model: Any) -> list[float]:
    """What all knobs stand at."""
    layers = [model.get_layer(name) for name in ("warm", "cold")]
    return [float(v.numpy()) for layer in layers for v in (layer.beta, layer.level)]
