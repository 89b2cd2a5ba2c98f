"""Trainers by the names of dist-keras: a class is a strategy, `train(df)` is `fit`."""

from shoal.spark.shuffling import shuffle
from shoal.spark.trainers import (
    ADAG,
    AEASGD,
    DOWNPOUR,
    EAMSGD,
    EASGD,
    AllReduce,
    AsyncDiLoCo,
    AsynchronousEAMSGD,
    AsynchronousEASGD,
    AveragingTrainer,
    DiLoCo,
    DistributedTrainer,
    DynSGD,
    LocalSGD,
    SingleTrainer,
    Trainer,
)

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
    "LocalSGD",
    "SingleTrainer",
    "Trainer",
    "shuffle",
]
