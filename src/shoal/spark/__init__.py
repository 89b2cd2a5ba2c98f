"""Training and predictions on DataFrames: what dist-keras had, and stages of Spark ML.

Names are loaded when they are first used, so that `import shoal.spark` imports neither
PySpark nor Keras: executors import this package before they know their backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.spark.emperor import Emperor as Emperor
    from shoal.spark.estimator import KerasEstimator as KerasEstimator
    from shoal.spark.history import (
        history_executors_average as history_executors_average,
    )
    from shoal.spark.model import KerasModel as KerasModel
    from shoal.spark.precaching import precache as precache
    from shoal.spark.predictor import ModelPredictor as ModelPredictor
    from shoal.spark.serialization import deserialize_trainer as deserialize_trainer
    from shoal.spark.shuffling import shuffle as shuffle
    from shoal.spark.trainer import (
        AsynchronousDistributedTrainer as AsynchronousDistributedTrainer,
    )
    from shoal.spark.trainer import DistributedTrainer as DistributedTrainer
    from shoal.spark.trainer import Trainer as Trainer
    from shoal.spark.trainers import ADAG as ADAG
    from shoal.spark.trainers import AEASGD as AEASGD
    from shoal.spark.trainers import DOWNPOUR as DOWNPOUR
    from shoal.spark.trainers import EAMSGD as EAMSGD
    from shoal.spark.trainers import EASGD as EASGD
    from shoal.spark.trainers import AllReduce as AllReduce
    from shoal.spark.trainers import AsyncDiLoCo as AsyncDiLoCo
    from shoal.spark.trainers import AsynchronousEAMSGD as AsynchronousEAMSGD
    from shoal.spark.trainers import AsynchronousEASGD as AsynchronousEASGD
    from shoal.spark.trainers import AveragingTrainer as AveragingTrainer
    from shoal.spark.trainers import DiLoCo as DiLoCo
    from shoal.spark.trainers import DynSGD as DynSGD
    from shoal.spark.trainers import EnsembleTrainer as EnsembleTrainer
    from shoal.spark.trainers import LocalSGD as LocalSGD
    from shoal.spark.trainers import SingleTrainer as SingleTrainer

__all__ = [
    "ADAG",
    "AEASGD",
    "DOWNPOUR",
    "EAMSGD",
    "EASGD",
    "AllReduce",
    "AsyncDiLoCo",
    "AsynchronousDistributedTrainer",
    "AsynchronousEAMSGD",
    "AsynchronousEASGD",
    "AveragingTrainer",
    "DiLoCo",
    "DistributedTrainer",
    "DynSGD",
    "Emperor",
    "EnsembleTrainer",
    "KerasEstimator",
    "KerasModel",
    "LocalSGD",
    "ModelPredictor",
    "SingleTrainer",
    "Trainer",
    "deserialize_trainer",
    "history_executors_average",
    "precache",
    "shuffle",
]

_PLACES = {
    "AsynchronousDistributedTrainer": "trainer",
    "DistributedTrainer": "trainer",
    "Emperor": "emperor",
    "KerasEstimator": "estimator",
    "KerasModel": "model",
    "ModelPredictor": "predictor",
    "Trainer": "trainer",
    "deserialize_trainer": "serialization",
    "history_executors_average": "history",
    "precache": "precaching",
    "shuffle": "shuffling",
}
"""Modules of names that are not in `trainers`."""


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_PLACES.get(name, 'trainers')}")
    found: Any = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return [*__all__]
