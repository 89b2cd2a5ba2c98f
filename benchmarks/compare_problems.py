"""What `benchmarks.compare` trains: data sets, and a model for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from benchmarks import compare_data
from benchmarks.works import given_file
from examples.image_folder import make_model as resnet
from shoal.training.comparing import Task
from tests.datasets import read_higgs, read_mnist


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One data set and a model for it.

    Args:
        name: Name of the data.
        recipe: Model and training in words; a result counts for this recipe only.
        task: Learning-rate factor -> what to learn.
        is_long: Whether a training takes so long that only some strategies are
            compared.
    """

    name: str
    recipe: str
    task: Callable[[float], Task]
    is_long: bool = False


def dense(shape: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> Any:
    """A plain multi-layer perceptron, not compiled."""
    layers = keras.layers
    model = keras.Sequential([keras.Input(shape), layers.Flatten()])
    for units in hidden:
        model.add(layers.Dense(units, activation="relu"))
    model.add(layers.Dense(classes, activation="softmax"))
    return model


def _compiled(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def higgs() -> Problem:
    """18,311 events for training, 4,578 for validation; 30 features, two classes."""
    events = read_higgs(given_file("atlas_higgs_22889.csv.gz"))
    order = np.random.default_rng(0).permutation(len(events.x))
    x, y, cut = events.x[order], events.y[order], len(order) * 8 // 10

    def task(factor: float) -> Task:
        def make_model() -> Any:
            optimizer = keras.optimizers.Adagrad(0.03 * factor)
            return _compiled(dense((30,), (64, 64), 2), optimizer)

        return Task(
            make_model=make_model, x=x[:cut], y=y[:cut], f1="binary", epochs=20,
            validation_data=(x[cut:], y[cut:]), batch_size=32, cluster="inline",
            has_curves=False,
        )  # fmt: skip

    recipe = "MLP 30-64-64-2, Adagrad(0.03), batch_size 32, 20 epochs of 18,311 events"
    return Problem(name="Higgs", recipe=recipe, task=task)


def mnist() -> Problem:
    """60,000 digits for training, 10,000 for validation."""
    digits = read_mnist(given_file("mnist.npz"))

    def task(factor: float) -> Task:
        def make_model() -> Any:
            optimizer = keras.optimizers.Adam(0.003 * factor)
            return _compiled(dense((28, 28), (64,), 10), optimizer)

        return Task(
            make_model=make_model, x=digits.x, y=digits.y, f1="macro", epochs=10,
            validation_data=(digits.x_test, digits.y_test), batch_size=64,
            cluster="inline", has_curves=False,
        )  # fmt: skip

    recipe = "MLP 784-64-10, Adam(0.003), batch_size 64, 10 epochs of 60,000 digits"
    return Problem(name="MNIST", recipe=recipe, task=task)


def reuters() -> Problem:
    """5,485 news for training, 2,189 for validation; 8 classes."""
    (x, y), test = compare_data.news()

    def task(factor: float) -> Task:
        def make_model() -> Any:
            layers = keras.layers
            model = keras.Sequential(
                [
                    keras.Input((compare_data.LENGTH,), dtype="int32"),
                    layers.Embedding(compare_data.WORDS, 32),
                    layers.LSTM(32),
                    layers.Dense(8, activation="softmax"),
                ]
            )
            return _compiled(model, keras.optimizers.Adam(0.003 * factor))

        return Task(
            make_model=make_model, x=x, y=y, f1="macro", epochs=30,
            validation_data=test, batch_size=32, cluster="inline", has_curves=False,
        )  # fmt: skip

    recipe = (
        "Embedding 4,000-32, LSTM 32, dense 8, Adam(0.003), batch_size 32, "
        "30 epochs of 5,485 news of 60 words"
    )
    return Problem(name="Reuters R8", recipe=recipe, task=task, is_long=True)


def cifar_sgd() -> Problem:
    """20,000 images for training, 4,000 for validation; 10 classes."""
    return _cifar("SGD(0.05, momentum 0.9)", lambda: keras.optimizers.SGD(0.05, 0.9))


def cifar_adam() -> Problem:
    """The same with Adam."""
    return _cifar("Adam(0.002)", lambda: keras.optimizers.Adam(0.002))


def _cifar(told: str, optimizer: Callable[[], Any]) -> Problem:
    (x, y), test = compare_data.pictures()

    def task(_: float) -> Task:
        return Task(
            make_model=lambda: _compiled(resnet(), optimizer()), x=x, y=y, f1="macro",
            epochs=10, validation_data=test, batch_size=64, cluster="inline",
            has_curves=False,
        )  # fmt: skip

    name = f"CIFAR-10, {told.partition('(')[0]}"
    recipe = (
        f"ResNet of three blocks (79,000 weights), {told}, batch_size 64, 10 epochs of "
        "20,000 images"
    )
    return Problem(name=name, recipe=recipe, task=task, is_long=True)


def shakespeare() -> Problem:
    """270,000 characters for training, 30,000 for validation."""
    (x, y), test, letters = compare_data.plays()
    epochs, batch_size = 5, 16
    steps = epochs * -(-len(x) // batch_size)

    def task(_: float) -> Task:
        def make_model() -> Any:
            rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
            optimizer = keras.optimizers.AdamW(rate)
            return _compiled(transformer(letters), optimizer)

        return Task(
            make_model=make_model, x=x, y=y, epochs=epochs, validation_data=test,
            batch_size=batch_size, cluster="inline", has_curves=False,
        )  # fmt: skip

    recipe = (
        "Transformer of 4 blocks, 144 wide (1.0 M weights), AdamW(0.002) with cosine "
        f"decay, batch_size {batch_size}, {epochs} epochs of {len(x):,} lines of "
        f"{compare_data.CONTEXT} characters"
    )
    return Problem(name="Shakespeare", recipe=recipe, task=task, is_long=True)


def transformer(letters: int, width: int = 144, blocks: int = 4) -> Any:
    """Tells the next character after each of `compare_data.CONTEXT`."""
    layers, length = keras.layers, compare_data.CONTEXT
    characters = keras.Input((length,), dtype="int32")
    places = layers.Embedding(length, width)(keras.ops.arange(length))
    x = layers.Embedding(letters, width)(characters) + places
    for _ in range(blocks):
        beside = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, width // 4)
        x = x + attention(beside, beside, use_causal_mask=True)
        beside = layers.LayerNormalization()(x)
        beside = layers.Dense(4 * width, activation="gelu")(beside)
        x = x + layers.Dense(width)(beside)
    x = layers.LayerNormalization()(x)
    return keras.Model(characters, layers.Dense(letters, activation="softmax")(x))
