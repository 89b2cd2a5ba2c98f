"""Sends a compiled model to another process.

This file decides the form of a model: a Keras archive if one loses nothing, else
pickled whole, else made by the user's own callable. A model is checked to come back
with the same layout before anything is started; parts that cannot be sent are named.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from shoal.errors import PlanError
from shoal.models.archive import Archive
from shoal.models.culprit import describe_culprit
from shoal.models.parcel import Body, Compiled, Made, Parcel, Whole
from shoal.models.pickling import CannotPickle, dumps, loads
from shoal.models.randomness import random_state_kept
from shoal.models.state import layout_digest

_WAYS_OUT = (
    "Create such an object where it is used, give the class a get_config() that "
    "leaves it out (with custom_objects= where Keras cannot find the class), "
    "or pass model=callable, a function without arguments that returns the "
    "compiled model."
)


def pack(
    model: Any,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    factory: Callable[[], Any] | None = None,
    sample: Any = None,
    before: bytes = b"",
    is_bare: bool = False,
) -> bytes:
    """Turns a model into bytes from which `unpack` makes it in a clean process.

    The bytes contain weights, random state, the optimizer with all its state, and loss
    and metrics (the right classes, at zero). Models of Keras' own classes are
    trusted to survive; any other is opened once here and compared.

    Args:
        model: A built model, or a callable without arguments that returns one.
        custom_objects: Name in the config -> class or function, as in Keras.
        factory: Function that made `model`; if given, it makes the model there as well.
        sample: A few rows, as `train_step` gets them: a model that `factory` leaves
            unbuilt is built with rows of such shapes; default None builds nothing.
        before: Earlier bytes of the model; returned themselves if nothing has changed.
        is_bare: Whether loss, metrics and optimizer may be left out, for predictions.

    Raises:
        PlanError: The model has no variables yet, or a part of it cannot be sent.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> unpack(pack(model)).count_params()
        3
    """
    if factory is None and not isinstance(model, import_module("keras").Model):
        factory = model
        model = model()
    if not model.built:
        raise PlanError(
            f"model '{model.name}' has no weights yet. "
            "Expected a built model, so that all workers start from the same weights. "
            "Add keras.Input(shape) as its first layer or call it on one batch."
        )
    if factory is not None:
        return _pickle(model, Made.of(model, factory, sample), before)
    archive = Archive.of(model, custom_objects or {})
    if archive is not None:
        try:
            form = Compiled(archive=archive, arguments=None)
            blob = _pickle(
                model, form if is_bare else Compiled.of(model, archive), before
            )
        except CannotPickle as error:
            raise _refusal(f"model '{model.name}'", error) from error
        if blob is before or archive.is_plain or _comes_back(blob) is None:
            return blob
    with _without_history(model):
        return _pack_whole(model, before)


@contextmanager
def _without_history(model: Any) -> Generator[None]:
    """Context without the traces of an earlier training, such as the model's run."""
    history = vars(model).get("history")
    if history is None:
        yield
        return
    object.__delattr__(model, "history")
    try:
        yield
    finally:
        object.__setattr__(model, "history", history)


def unpack(blob: bytes) -> Any:
    """Makes the model that `pack` turned into bytes.

    Raises:
        PlanError: The model cannot be made in this process, or differs.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> unpack(pack(model)).layers[0].units
        1
    """
    return opened(read_parcel(blob))


def read_parcel(blob: bytes) -> Parcel:
    """Reads the output of `pack`, without making the model yet.

    Raises:
        PlanError: As `unpack` does.
    """
    with _importing():
        return loads(blob)


def opened(parcel: Parcel) -> Any:
    """Makes the model of a parcel.

    Raises:
        PlanError: As `unpack` does.
    """
    with _importing():
        return parcel.open()


@contextmanager
def _importing() -> Generator[None]:
    """Adds the remedy to errors about missing modules of the user's."""
    try:
        yield
    except ImportError as error:
        raise PlanError(
            f"the model cannot be made in this process: {error}. Expected every module "
            "it uses to be importable here, as it was where the model was packed. "
            "Install it here or put its folder on PYTHONPATH."
        ) from error


def _pack_whole(model: Any, before: bytes = b"") -> bytes:
    """Pickles the model as it stands and checks that it comes back."""
    what = f"model '{model.name}'"
    try:
        body = Whole(pickled=dumps(model, variables=model.variables))
    except CannotPickle as error:
        raise _refusal(what, error, model) from error
    blob = _pickle(model, body, before)
    failure = None if blob is before else _comes_back(blob)
    if failure is not None:
        raise PlanError(
            f"{what} cannot travel to worker processes: reading it back failed "
            f"({type(failure).__name__}: {failure}). "
            "Expected a model that can be made again from its config or its "
            f"attributes. {_WAYS_OUT}"
        ) from failure
    return blob


def _pickle(model: Any, body: Body, before: bytes) -> bytes:
    is_bare = isinstance(body, Compiled) and body.arguments is None
    digest = layout_digest(model, has_optimizers=not is_bare)
    variables = len(model.variables)
    parcel = Parcel(digest=digest, variables=variables, body=body)
    try:
        return dumps(parcel, before=before)
    except CannotPickle as error:
        raise _refusal(f"model '{model.name}'", error, body) from error


def _comes_back(blob: bytes) -> Exception | None:
    """Opens a parcel here, leaving no trace; returns the error, if any."""
    try:
        with random_state_kept():
            unpack(blob)
    except Exception as error:  # the user's constructors may raise anything
        return error
    return None


def _refusal(what: str, error: CannotPickle, root: Any = None) -> PlanError:
    """Returns the error that names the part that cannot be sent."""
    owner = error.owner
    label = what
    if owner is not root and hasattr(owner, "name"):
        label = f"{type(owner).__name__} '{owner.name}'"
    elif isinstance(owner, dict):
        label = "compile"
    culprit = describe_culprit(owner, label)
    return PlanError(
        f"{what} cannot travel to worker processes: {culprit}. "
        "Expected values, arrays, functions and classes only, no locks, open files, "
        f"connections or generators. {_WAYS_OUT}"
    )
