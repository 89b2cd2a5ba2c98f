"""Searches hyperparameters with Optuna and prunes; the workers stay for all trials.

Run: python examples/optuna_search.py      (needs `pip install optuna`)
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import optuna

import shoal

START = keras.initializers.GlorotUniform(seed=1)  # trials begin alike


def waves(rows: int, seed: int) -> tuple[Any, Any]:
    """Points of a plane, and the side of a wave on which they lie."""
    x = np.random.default_rng(seed).uniform(-1, 1, (rows, 2)).astype("f4")
    return x, (x[:, 1] > 0.5 * np.sin(4 * x[:, 0])).astype("f4")


class Pruning(keras.callbacks.Callback):
    """Reports the progress of a trial to Optuna, and stops one that is not promising.

    It stops the training in Keras' way, which keeps the workers; an exception from
    here would end them.
    """

    def __init__(self, trial: optuna.Trial, monitor: str) -> None:
        super().__init__()
        self.trial, self.monitor = trial, monitor
        self.is_pruned = False

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.trial.report((logs or {})[self.monitor], epoch)
        if self.trial.should_prune():
            self.is_pruned = self.model.stop_training = True


def make_model(width: int, rate: float) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(width, "tanh", kernel_initializer=START),
            keras.layers.Dense(1, "sigmoid", kernel_initializer=START),
        ]
    )
    model.compile(
        keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"]
    )
    return model


def main() -> None:
    train, validation = waves(2048, seed=1), waves(512, seed=2)

    with shoal.Session() as session:

        def objective(trial: optuna.Trial) -> float:
            width = trial.suggest_categorical("width", [2, 16, 32])
            rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
            pruning = Pruning(trial, "val_accuracy")
            history = session.fit(
                make_model(width, rate),
                *train,
                validation_data=validation,
                epochs=4,
                strategy="local_sgd:period=5",
                workers=2,
                callbacks=[pruning],
                seed=1,
                run=False,
                verbose=0,
            )
            if pruning.is_pruned:
                raise optuna.TrialPruned
            return history.history["val_accuracy"][-1]

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=1),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0),
        )
        study.optimize(objective, n_trials=6)

    pruned = sum(t.state is optuna.trial.TrialState.PRUNED for t in study.trials)
    found = ", ".join(f"{name}={value:g}" for name, value in study.best_params.items())
    print(f"best of {len(study.trials)} trials, {pruned} of them pruned: {found}")
    print(f"val_accuracy={study.best_value:.3f}")


if __name__ == "__main__":
    main()
