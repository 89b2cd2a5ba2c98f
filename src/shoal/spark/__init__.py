"""Training and prediction on DataFrames: dist-keras' API, and stages of Spark ML.

Names are loaded when they are first used, so that `import shoal.spark` imports neither
PySpark nor Keras: executors import this package before they know their backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.spark.comparing import compare as compare
    from shoal.spark.deserialization import deserialize_trainer as deserialize_trainer
    from shoal.spark.emperor import Emperor as Emperor
    from shoal.spark.estimator import KerasEstimator as KerasEstimator
    from shoal.spark.evaluating import evaluate as evaluate
    from shoal.spark.evaluators import AccuracyEvaluator as AccuracyEvaluator
    from shoal.spark.history import (
        history_executors_average as history_executors_average,
    )
    from shoal.spark.job import Job as Job
    from shoal.spark.keras_models import (
        deserialize_keras_model as deserialize_keras_model,
    )
    from shoal.spark.keras_models import serialize_keras_model as serialize_keras_model
    from shoal.spark.keras_models import (
        to_one_hot_encoded_dense as to_one_hot_encoded_dense,
    )
    from shoal.spark.keras_models import uniform_weights as uniform_weights
    from shoal.spark.model import KerasModel as KerasModel
    from shoal.spark.precaching import precache as precache
    from shoal.spark.predictor import ModelPredictor as ModelPredictor
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
    from shoal.spark.transformers import (
        BinaryLabelTransformer as BinaryLabelTransformer,
    )
    from shoal.spark.transformers import DenseTransformer as DenseTransformer
    from shoal.spark.transformers import LabelIndexTransformer as LabelIndexTransformer
    from shoal.spark.transformers import (
        LabelVectorTransformer as LabelVectorTransformer,
    )
    from shoal.spark.transformers import MinMaxTransformer as MinMaxTransformer
    from shoal.spark.transformers import OneHotTransformer as OneHotTransformer
    from shoal.spark.transformers import ReshapeTransformer as ReshapeTransformer
    from shoal.spark.transformers import StandardTransformer as StandardTransformer

__all__ = [
    "ADAG",
    "AEASGD",
    "DOWNPOUR",
    "EAMSGD",
    "EASGD",
    "AccuracyEvaluator",
    "AllReduce",
    "AsyncDiLoCo",
    "AsynchronousDistributedTrainer",
    "AsynchronousEAMSGD",
    "AsynchronousEASGD",
    "AveragingTrainer",
    "BinaryLabelTransformer",
    "DenseTransformer",
    "DiLoCo",
    "DistributedTrainer",
    "DynSGD",
    "Emperor",
    "EnsembleTrainer",
    "Job",
    "KerasEstimator",
    "KerasModel",
    "LabelIndexTransformer",
    "LabelVectorTransformer",
    "LocalSGD",
    "MinMaxTransformer",
    "ModelPredictor",
    "OneHotTransformer",
    "ReshapeTransformer",
    "SingleTrainer",
    "StandardTransformer",
    "Trainer",
    "compare",
    "deserialize_keras_model",
    "deserialize_trainer",
    "evaluate",
    "history_executors_average",
    "precache",
    "serialize_keras_model",
    "shuffle",
    "to_one_hot_encoded_dense",
    "uniform_weights",
]

_PLACES = {
    "AccuracyEvaluator": "evaluators",
    "AsynchronousDistributedTrainer": "trainer",
    "BinaryLabelTransformer": "transformers",
    "DenseTransformer": "transformers",
    "DistributedTrainer": "trainer",
    "Emperor": "emperor",
    "Job": "job",
    "KerasEstimator": "estimator",
    "KerasModel": "model",
    "LabelIndexTransformer": "transformers",
    "LabelVectorTransformer": "transformers",
    "MinMaxTransformer": "transformers",
    "ModelPredictor": "predictor",
    "OneHotTransformer": "transformers",
    "ReshapeTransformer": "transformers",
    "StandardTransformer": "transformers",
    "Trainer": "trainer",
    "compare": "comparing",
    "deserialize_keras_model": "keras_models",
    "deserialize_trainer": "deserialization",
    "evaluate": "evaluating",
    "history_executors_average": "history",
    "precache": "precaching",
    "serialize_keras_model": "keras_models",
    "shuffle": "shuffling",
    "to_one_hot_encoded_dense": "keras_models",
    "uniform_weights": "keras_models",
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
