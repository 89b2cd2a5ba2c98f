"""What params of an estimator ask of `shoal.fit`, and what is wrong with them.

No session is needed here: all is refused before a row is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

from shoal import strategies
from shoal.api import fit
from shoal.clusters import Spark
from shoal.data.files.selection import Names
from shoal.errors import ConfigError, DataError, a_kind
from shoal.registry import did_you_mean
from shoal.spark.model_shapes import input_names
from shoal.spark.params import NUMBERS
from shoal.spark.predicting import output_names
from shoal.strategies.base import Strategy

WAIT_S = 600.0
"""Seconds to wait for slots, which a search needs for scoring at the same time."""
OWN: Mapping[str, str] = {
    "model": "model",
    "x": "fit(df)",
    "y": "labelCol",
    "features": "featuresCol",
    "label": "labelCol",
    "sample_weight": "weightCol",
    "validation_split": "validationSplit",
    "validation_data": "validationIndicatorCol",
    "strategy": "strategy",
    "workers": "numWorkers",
    "cluster": "cluster",
    "epochs": "epochs",
    "batch_size": "batchSize",
    "seed": "seed",
}
"""Arguments of `fit` that params give, and the params."""


@final
@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """A training on a DataFrame.

    Args:
        features: Columns of x, as for `fit`.
        label: Columns of y, as for `fit`.
        weight: Column of weights, None for none.
        indicator: Column that is true for rows to validate on, None for none.
        split: Share of the rows to validate on, 0 for none.
        arguments: Other arguments of `fit`.
    """

    features: Names
    label: Names
    weight: str | None
    indicator: str | None
    split: float
    arguments: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        """All columns that are read, each once."""
        single = [one for one in (self.weight, self.indicator) if one]
        return list(dict.fromkeys([*_flat(self.features), *_flat(self.label), *single]))


def read_request(values: Mapping[str, Any], given: Collection[str]) -> FitRequest:
    """Reads params of `KerasEstimator`.

    Args:
        values: Values of all params by name, None for undefined ones.
        given: Names of those that were set.

    Raises:
        ConfigError: Two of them cannot go together, or a name is unknown.
    """
    label = _one_of(values, given, ("labelCol", "labelCols"))
    indicator, split = values["validationIndicatorCol"], values["validationSplit"]
    if indicator and split:
        raise ConfigError(
            f"validationIndicatorCol={indicator!r} and validationSplit={split} were "
            "both set. Expected one way to choose rows to validate on. Clear one."
        )
    workers = values["numWorkers"]
    return FitRequest(
        features=features_of(values, given),
        label=label,
        weight=values["weightCol"],
        indicator=indicator,
        split=split,
        arguments={
            "strategy": _strategy(values),
            "workers": tuple(workers) if isinstance(workers, list) else workers,
            "cluster": _cluster(values["cluster"], values["store"]),
            "epochs": values["epochs"],
            "batch_size": values["batchSize"],
            "seed": values["seed"],
            **_others(values["fitParams"] or {}),
        },
    )


def features_of(values: Mapping[str, Any], given: Collection[str]) -> Names:
    """Returns the columns of x.

    Raises:
        ConfigError: They are given in two ways.

    Example:
        >>> asked = {"featuresCol": "x", "featuresCols": ["a", "b"], "inputCols": None}
        >>> features_of(asked, {"featuresCols"})
        ['a', 'b']
    """
    return _one_of(values, given, ("featuresCol", "featuresCols", "inputCols"))


def _one_of(
    values: Mapping[str, Any], given: Collection[str], ways: Sequence[str]
) -> Names:
    """Returns the value of the param that was set, of the first one if none was."""
    chosen = [way for way in ways if way in given and values[way] is not None]
    if len(chosen) > 1:
        both = " and ".join(f"{way}={values[way]!r}" for way in chosen)
        raise ConfigError(
            f"{both} were both set. Expected one of {', '.join(ways)}. Clear the "
            "others."
        )
    return values[chosen[0] if chosen else ways[0]]


def _strategy(values: Mapping[str, Any]) -> Strategy:
    """Returns the strategy with the numbers that were set."""
    found = strategies.get(values["strategy"])
    numbers = {way: values[way] for way in NUMBERS if values[way] is not None}
    own = {field.name for field in fields(found)}
    known = [way for way, name in NUMBERS.items() if name in own]
    for way in numbers:
        if way not in known:
            raise ConfigError(
                f"{way}={numbers[way]} was set, and strategy {found.name!r} has no "
                f"such number. Expected one of {', '.join(known)}. Clear it, or choose "
                "another strategy."
            )
    if found.is_independent:
        raise ConfigError(
            f"strategy={found.name!r} trains several models. Expected one that gives "
            "a single model. Choose another one, or call shoal.fit."
        )
    return strategies.get(found, **{NUMBERS[way]: n for way, n in numbers.items()})


def _cluster(cluster: Any, store: str | None) -> Any:
    if cluster == "spark":
        return Spark(wait_s=WAIT_S, store=store)
    if store is None:
        return cluster
    if isinstance(cluster, Spark):
        return replace(cluster, store=store)
    raise ConfigError(
        f"store={store!r} was set with cluster={cluster!r}. Expected store only where "
        "executors of Spark train. Clear store, or leave cluster out."
    )


def _others(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Checks the names of fitParams."""
    known = set(inspect.signature(fit).parameters)
    for name in given:
        if name in OWN:
            raise ConfigError(
                f"fitParams has {name!r}, for which there is a param. Expected "
                f"arguments of shoal.fit without a param. Use {OWN[name]}."
            )
        if name not in known:
            others = known - set(OWN)
            raise ConfigError(
                did_you_mean("argument of fit in fitParams", name, others)
            )
    return given


def check_columns(request: FitRequest, columns: Sequence[str]) -> None:
    """Refuses columns that a frame does not have.

    Raises:
        DataError: The first one, with the nearest that there is.
    """
    for name in request.columns:
        if name not in columns:
            raise DataError(did_you_mean("column of the DataFrame", name, columns))


def check_model(model: Any, request: FitRequest, rate: float | None) -> None:
    """Refuses what cannot be trained.

    Args:
        model: The model, or a function.
        request: Names of inputs and outputs.
        rate: Wished learning rate.

    Raises:
        ConfigError: There is no compiled model, or it has no such input or output.
    """
    if model is None:
        raise ConfigError(
            "KerasEstimator has no model. Expected a compiled Keras model, or a "
            "function without arguments that returns one. Pass model=."
        )
    if not is_model(model):
        if callable(model):
            return
        raise ConfigError(
            f"model is {a_kind(model)}. Expected a compiled Keras model, or a function "
            "without arguments that returns one. Pass one of these."
        )
    if not model.compiled or model.optimizer is None:
        raise ConfigError(
            f"model {model.name!r} is not compiled. Expected an optimizer and a loss. "
            "Call model.compile(optimizer, loss, metrics=[...]) first."
        )
    if rate is not None:
        _check_rate(model)
    for what, asked, known in (
        ("input", request.features, input_names(model)),
        ("output", request.label, output_names(model)),
    ):
        for name in asked if isinstance(asked, Mapping) and known else ():
            if name not in known:
                raise ConfigError(did_you_mean(f"{what} of the model", name, known))


def is_model(model: Any) -> bool:
    """Whether it is a Keras model, and not a function that makes one."""
    import keras

    return isinstance(model, keras.Model)


def set_rate(model: Any, rate: float) -> None:
    """Sets the learning rate of a model's optimizer.

    Raises:
        ConfigError: A schedule or a function decides it.
    """
    _check_rate(model)
    model.optimizer.learning_rate = rate


def _check_rate(model: Any) -> None:
    import keras

    held = getattr(model.optimizer, "_learning_rate", None)
    if not isinstance(held, keras.Variable):
        raise ConfigError(
            f"learningRate was set, and {a_kind(held)} decides the rate of model "
            f"{model.name!r}. Expected an optimizer whose learning rate is a number. "
            "Clear learningRate, or compile the model with a number."
        )


def _flat(asked: Names) -> list[str]:
    if isinstance(asked, str):
        return [asked]
    if isinstance(asked, Mapping):
        return [name for one in asked.values() for name in _flat(one)]
    return list(asked)
