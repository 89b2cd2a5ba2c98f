"""A model to be sent: as an archive, whole, or as the callable that makes it.

This file decides the content of each form, and how it becomes a model again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from shoal.models.archive import Archive
from shoal.models.fingerprint import fingerprint
from shoal.models.inspection import build
from shoal.models.pickling import dumps, loads
from shoal.models.settings import KerasSettings
from shoal.models.state import (
    Array,
    ModelState,
    arrays_of,
    layout_digest,
    other_layout,
)
from shoal.optimizers import optimizer_variables, optimizers_of, own_variables


class Values(NamedTuple):
    """Initial values of all variables, in their order.

    Args:
        model: Values of the model's variables.
        optimizer: Values of its optimizers' variables.
    """

    model: list[Array]
    optimizer: list[Array]


@final
@dataclass(frozen=True, kw_only=True)
class Whole:
    """A model pickled with all its objects, compile arguments included."""

    pickled: bytes

    def open(self) -> Any:
        """Reads the model."""
        return loads(self.pickled)


@final
@dataclass(frozen=True, kw_only=True)
class Compiled:
    """An archive with, pickled, the arguments of `compile` and the live optimizer.

    Args:
        archive: Archive of the model.
        arguments: Arguments of `compile`.
        make: `fingerprint` of the model; empty if it is unique.
    """

    archive: Archive
    arguments: bytes | None
    make: str = ""

    @classmethod
    def of(cls, model: Any, archive: Archive) -> Compiled:
        """Reads the compile arguments of a model."""
        if not model.compiled:
            return cls(archive=archive, arguments=None)
        arguments = dict(model._compile_config.config)
        # the live one: wrapped for loss scaling, loaded, or set after compile
        arguments["optimizer"] = model.optimizer
        anchors = _anchors(model)
        blob = dumps(arguments, anchors=anchors, variables=model.variables)
        make = fingerprint(model, archive, arguments, anchors)
        return cls(archive=archive, arguments=blob, make=make)

    def open(self) -> Any:
        """Makes and compiles the model."""
        model = self.archive.open()
        if self.arguments is not None:
            arguments = loads(self.arguments, anchors=_anchors(model))
            _reset_metrics(
                [arguments.get("metrics"), arguments.get("weighted_metrics")]
            )
            model.compile(**arguments, auto_scale_loss=False)
        return model

    def values(self, model: Any) -> Values:
        """Returns the values for the variables of a model with the same fingerprint.

        Args:
            model: Model to which the sent optimizer refers.
        """
        arguments = loads(self.arguments or b"", anchors=_anchors(model))
        return Values(
            model=self.archive.state.values,
            optimizer=arrays_of(own_variables(arguments["optimizer"])),
        )


@final
@dataclass(frozen=True, kw_only=True)
class Made:
    """The user's callable and the state of its model in the driver.

    Args:
        make: Returns the model, which may be unbuilt if it has no input layer.
        state: State of the built model.
        optimizer: Values of the variables of its optimizers.
        trained: For each optimizer, indices of the variables it was built for; None if
            it was not built.
        sample: Rows to build it with, as `train_step` gets them; None for none.
    """

    make: Callable[[], Any]
    state: ModelState
    optimizer: list[Array]
    trained: tuple[tuple[int, ...] | None, ...] = ()
    sample: Any = None

    @classmethod
    def of(cls, model: Any, make: Callable[[], Any], sample: Any) -> Made:
        """Reads the state of a model that `make` returned."""
        return cls(
            make=make,
            state=ModelState.of(model),
            optimizer=arrays_of(optimizer_variables(model)),
            trained=tuple(_trained(model)),
            sample=None if sample is None else _zeros(sample),
        )

    def open(self) -> Any:
        """Makes the model and sets its state."""
        model = self.make()
        if self.sample is not None:
            build(model, self.sample)
        self.state.restore(model)
        known = model.variables
        for optimizer, places in zip(optimizers_of(model), self.trained, strict=False):
            if places is not None and not optimizer.built:
                optimizer.build([known[place] for place in places])
        if len(self.optimizer) > len(optimizer_variables(model)):
            model.optimizer.build(model.trainable_variables)
        variables = optimizer_variables(model)[: len(self.optimizer)]
        for variable, value in zip(variables, self.optimizer, strict=True):
            variable.assign(value)
        return model


Body: TypeAlias = Compiled | Whole | Made


@final
@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A model to be sent, with the digest that its layout must have on arrival."""

    digest: str
    variables: int
    body: Body
    settings: KerasSettings = field(default_factory=KerasSettings.read)

    @property
    def make(self) -> str:
        """Equal for models that the same programs train; empty if unique."""
        body = self.body
        own = body.make if isinstance(body, Compiled) else ""
        return f"{own} {self.settings}" if own else ""

    def values(self, model: Any) -> Values:
        """Returns the values for the variables of a model with the same fingerprint."""
        if not isinstance(self.body, Compiled):
            raise TypeError("only a parcel with a make has values")
        return self.body.values(model)

    def open(self) -> Any:
        """Returns the model, made under the Keras settings of its origin.

        Raises:
            PlanError: Its layout differs from that of the packed model.
        """
        self.settings.apply()
        model = self.body.open()
        if layout_digest(model) != self.digest:
            raise other_layout(model, self.variables)
        return model


def _trained(model: Any) -> Iterator[tuple[int, ...] | None]:
    """Yields, for each optimizer, indices of the variables that it was built for."""
    places = {id(v): place for place, v in enumerate(model.variables)}
    for optimizer in optimizers_of(model):
        variables = optimizer._trainable_variables
        known = tuple(places[id(v)] for v in variables if id(v) in places)
        yield known if optimizer.built else None


def _zeros(sample: Any) -> tuple[Any]:
    """Returns rows of zeros: shapes are enough to build with."""
    keras = import_module("keras")
    x, _, _ = keras.utils.unpack_x_y_sample_weight(sample)
    return (keras.tree.map_structure(np.zeros_like, x),)


def _anchors(model: Any) -> list[Any]:
    """Returns the model's parts, to which loss, metrics and optimizer may refer."""
    return [*model._flatten_layers(), *model.variables]


def _reset_metrics(metrics: Sequence[Any]) -> None:
    """Zeroes metric objects: counts of the driver stay with the driver."""
    keras = import_module("keras")
    for metric in keras.tree.flatten(metrics):
        if isinstance(metric, keras.Metric):
            metric.reset_state()
