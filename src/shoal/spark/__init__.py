"""Training and predictions on DataFrames: what dist-keras had, and stages of Spark ML.

Names are loaded when they are first used, so that `import shoal.spark` imports neither
PySpark nor Keras: executors import this package before they know their backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.spark.estimator import KerasEstimator as KerasEstimator
    from shoal.spark.model import KerasModel as KerasModel
    from shoal.spark.predictor import ModelPredictor as ModelPredictor
    from shoal.spark.shuffling import shuffle as shuffle
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
    from shoal.spark.trainers import DistributedTrainer as DistributedTrainer
    from shoal.spark.trainers import DynSGD as DynSGD
    from shoal.spark.trainers import LocalSGD as LocalSGD
    from shoal.spark.trainers import SingleTrainer as SingleTrainer
    from shoal.spark.trainers import Trainer as Trainer

__all__ = [
    "ADAG",
    "AEASGD",
    "DOWNPOUR",
    "EAMSGD",
    "EASGD",
    "AllReduce",
    "AsyncDiLoCo",
    "AsynchronousEAMSGD",
    "AsynchronousEASGD",
    "AveragingTrainer",
    "DiLoCo",
    "DistributedTrainer",
    "DynSGD",
    "KerasEstimator",
    "KerasModel",
    "LocalSGD",
    "ModelPredictor",
    "SingleTrainer",
    "Trainer",
    "shuffle",
]

_PLACES = {
    "KerasEstimator": "estimator",
    "KerasModel": "model",
    "ModelPredictor": "predictor",
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
