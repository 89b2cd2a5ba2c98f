"""Params of Spark ML for `KerasEstimator` and `KerasModel`: names, docs, defaults.

This file decides which value a param takes. A param without a default is undefined
until it is set, and its getter returns None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

from pyspark.ml.param import Param, Params

from shoal.errors import ConfigError
from shoal.registry import did_you_mean
from shoal.spark.param_checks import (
    Check,
    anything,
    by_name,
    mapping,
    names,
    names_or_by_name,
    number,
    share,
    strategy,
    task,
    text,
    whole,
    workers,
)

P = TypeVar("P", bound="KerasParams")


@final
@dataclass(frozen=True)
class Entry:
    """A param.

    Args:
        doc: What it is.
        check: Returns the value to keep, of a name and a value.
        default: None for none.
    """

    doc: str
    check: Check
    default: Any = None


SCORING: Mapping[str, Entry] = {
    "featuresCol": Entry("column of x: vector, array or number", text, "features"),
    "featuresCols": Entry("columns that become one array, instead of one", names),
    "inputCols": Entry(
        "for models with several inputs: name of an input -> column, or columns that "
        "become one array",
        by_name,
    ),
    "predictionCol": Entry(
        "column that is made: the class as a double, or the predicted number; a "
        "vector for several numbers. For a model with several outputs the beginning "
        "of names: the name of the output follows after _",
        text,
        "prediction",
    ),
    "probabilityCol": Entry(
        "column that is made by classification: vector with the probability of each "
        "class",
        text,
        "probability",
    ),
    "rawOutputCol": Entry("column with what the model returns, as a vector", text),
    "task": Entry(
        "kind of the prediction: classification or regression; auto: classification "
        "if the loss is a crossentropy",
        task,
        "auto",
    ),
    "predictBatchSize": Entry("rows that are predicted at once", whole(1), 256),
}
"""Params of `KerasModel`, which `KerasEstimator` has, too."""

NUMBERS: Mapping[str, str] = {
    "period": "period",
    "beta": "beta",
    "movingRate": "moving_rate",
    "rho": "rho",
    "elasticLearningRate": "learning_rate",
    "momentum": "momentum",
    "outerLearningRate": "outer_learning_rate",
    "outerMomentum": "outer_momentum",
}
"""Params that are numbers of strategies, and how strategies call them."""

TRAINING: Mapping[str, Entry] = {
    "model": Entry(
        "compiled Keras model, which is not changed, or a function without arguments "
        "that returns one",
        anything,
    ),
    "labelCol": Entry("column of y", text, "label"),
    "labelCols": Entry(
        "columns of y that become one array, or name of an output -> column or columns",
        names_or_by_name,
    ),
    "weightCol": Entry("column with a weight for each row", text),
    "validationIndicatorCol": Entry(
        "column of booleans: true for rows to validate on, which are not trained on",
        text,
    ),
    "validationSplit": Entry(
        "share of the rows to validate on, chosen by a hash of their values",
        share,
        0.0,
    ),
    "strategy": Entry(
        "how workers agree: a name of shoal strategies, or an object",
        strategy,
        "all_reduce",
    ),
    "period": Entry("steps between two exchanges; 0: an epoch", whole(0)),
    "beta": Entry("pull of all workers on the center, of aeasgd and eamsgd", number),
    "movingRate": Entry("alpha of easgd, aeasgd and eamsgd", number),
    "rho": Entry("alpha is rho * elasticLearningRate", number),
    "elasticLearningRate": Entry("see rho; not the rate of the optimizer", number),
    "momentum": Entry("momentum of eamsgd", number),
    "outerLearningRate": Entry("rate of the outer step of diloco", number),
    "outerMomentum": Entry("momentum of the outer step of diloco", number),
    "numWorkers": Entry(
        "number of workers, [least, most], or auto: one for each slot", workers, "auto"
    ),
    "epochs": Entry("passes over the rows", whole(1), 1),
    "batchSize": Entry(
        "rows of a step: of all workers together for all_reduce, of each otherwise",
        whole(1),
        32,
    ),
    "learningRate": Entry(
        "rate of the model's optimizer; without it that of compile", number
    ),
    "seed": Entry("seed of the order of rows", whole(0)),
    "store": Entry(
        "folder or URL that executors and workers see, for rows while they are "
        "trained on",
        text,
    ),
    "cluster": Entry(
        "where workers run: spark, local for this machine, or an object of "
        "shoal.clusters",
        anything,
        "spark",
    ),
    "fitParams": Entry("other arguments of shoal.fit, by name", mapping, {}),
}
"""Further params of `KerasEstimator`."""


class KerasParams(Params):
    """Params by a table, each with a setter and a getter."""

    table: ClassVar[Mapping[str, Entry]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, entry in vars(cls).get("table", {}).items():
            setattr(cls, name, _param(name, entry))
            word = name[0].upper() + name[1:]
            setattr(cls, f"set{word}", _setter(name, word, entry))
            setattr(cls, f"get{word}", _getter(name, word, entry))
        parameters = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=entry.default)
            for name, entry in cls.table.items()
        ]
        cls.__signature__ = Signature(parameters)  # pyright: ignore

    if TYPE_CHECKING:  # params, setters and getters are made of the table

        def __getattr__(self, name: str) -> Any: ...

    def _begin(self, given: Mapping[str, Any]) -> None:
        """Sets defaults, and what the constructor was given."""
        defaults = {
            n: e.default for n, e in self.table.items() if e.default is not None
        }
        self._setDefault(**defaults)
        self.setParams(**given)

    def setParams(self: P, **given: Any) -> P:
        """Sets params by name; None leaves one as it is.

        Raises:
            ConfigError: A name is unknown, or a value cannot be used.
        """
        for name in given:
            if name not in self.table:
                kind = f"param of {type(self).__name__}"
                raise ConfigError(did_you_mean(kind, name, self.table))
        return self._set(**{n: v for n, v in given.items() if v is not None})

    def value(self, name: str) -> Any:
        """Returns the value of a param, None if it is undefined."""
        return self.getOrDefault(name) if self.isDefined(name) else None

    def values(self) -> dict[str, Any]:
        """Returns all params by name."""
        return {name: self.value(name) for name in self.table}

    def given(self) -> frozenset[str]:
        """Returns the names of params that were set."""
        return frozenset(name for name in self.table if self.isSet(name))


def _param(name: str, entry: Entry) -> Param[Any]:
    def convert(value: Any) -> Any:
        return entry.check(name, value)

    parent: Any = Params._dummy()  # pyright: ignore[reportPrivateUsage]
    return Param(parent, name, entry.doc, convert)


def _setter(name: str, word: str, entry: Entry) -> Any:
    def set_it(self: KerasParams, value: Any) -> KerasParams:
        return self.setParams(**{name: value})

    set_it.__name__ = f"set{word}"
    set_it.__doc__ = f"Sets {name}: {entry.doc}."
    return set_it


def _getter(name: str, word: str, entry: Entry) -> Any:
    def get_it(self: KerasParams) -> Any:
        return self.value(name)

    get_it.__name__ = f"get{word}"
    get_it.__doc__ = f"Returns {name}: {entry.doc}."
    return get_it
