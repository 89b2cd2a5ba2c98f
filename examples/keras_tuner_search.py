"""Searches hyperparameters with KerasTuner; the workers stay for all trials.

Run: python examples/keras_tuner_search.py     (needs `pip install keras-tuner`)
"""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import keras_tuner
import numpy as np

import shoal

START = keras.initializers.GlorotUniform(seed=1)  # trials begin alike


def waves(rows: int, seed: int) -> tuple[Any, Any]:
    """Points of a plane, and the side of a wave on which they lie."""
    x = np.random.default_rng(seed).uniform(-1, 1, (rows, 2)).astype("f4")
    return x, (x[:, 1] > 0.5 * np.sin(4 * x[:, 0])).astype("f4")


class WaveModel(keras_tuner.HyperModel):
    """The searched parameters: width and learning rate. A session trains each trial."""

    def __init__(self, session: shoal.Session) -> None:
        super().__init__()
        self.session = session

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(
                    hp.Choice("width", [2, 16, 32]), "tanh", kernel_initializer=START
                ),
                keras.layers.Dense(1, "sigmoid", kernel_initializer=START),
            ]
        )
        rate = hp.Float("rate", 1e-3, 1e-1, sampling="log")
        model.compile(
            keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"]
        )
        return model

    def fit(
        self, hp: keras_tuner.HyperParameters, model: keras.Model, *args, **kwargs
    ) -> Any:
        return self.session.fit(
            model,
            *args,
            strategy="local_sgd:period=5",
            workers=2,
            seed=1,
            run=False,
            **kwargs,
        )


def main() -> None:
    validation = waves(512, seed=2)
    with tempfile.TemporaryDirectory() as folder, shoal.Session() as session:
        tuner = keras_tuner.RandomSearch(
            WaveModel(session),
            objective="val_accuracy",
            max_trials=3,
            seed=1,
            directory=folder,
            project_name="waves",
        )
        tuner.search(
            *waves(2048, seed=1),
            validation_data=validation,
            epochs=3,
            batch_size=32,
            verbose=0,
        )
        [best] = tuner.oracle.get_best_trials(1)
        found = ", ".join(f"{k}={v:g}" for k, v in best.hyperparameters.values.items())
        print(f"best of {len(tuner.oracle.trials)} trials: {found}")
        print(f"val_accuracy={best.score:.3f}")
        [model] = tuner.get_best_models(1)  # with the weights of its best epoch
        print(f"of the best model: {model.evaluate(*validation, verbose=0)[1]:.3f}")


if __name__ == "__main__":
    main()
