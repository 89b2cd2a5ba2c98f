"""Pickles live Keras objects completely, for a process of the same run.

This file decides how a layer, model, metric, loss or optimizer becomes bytes when no
Keras archive can hold it. Keras' own `__reduce__` saves an archive, which drops
everything that `get_config` omits and cannot pickle metrics or optimizers at all. Here
an object is its class and its attributes. Code that is not installed (the user's
folder, tests, notebooks) is pickled by value, so that workers need not import it.
"""

from __future__ import annotations

import functools
import io
import pickle
import re
import sys
import sysconfig
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, cast, final

import cloudpickle

from shoal.models.lending import is_lending, lend, may_be_lent

# The registry belongs to the whole process, and members of an ensemble pack in
# threads. Reentrant: pickled objects may run code that pickles.
_REGISTRY = threading.RLock()

_WRAPPERS = "tensorflow.python.trackable.data_structures"
_FUNCTIONS = ("train_function", "test_function", "predict_function")
_TRANSIENT: dict[str, Callable[[], Any]] = {
    "_losses": list,  # losses of the last call: traced values on JAX
    "_losses_override": list,
    "_loss_ids": set,
    "_jax_state": lambda: None,
    **dict.fromkeys(_FUNCTIONS, lambda: None),
}


@final
class CannotPickle(Exception):
    """Part of an object cannot become bytes; `owner` is the nearest Keras object."""

    def __init__(self, owner: Any, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.owner = owner


@final
@dataclass(frozen=True, kw_only=True)
class _ByVariable:
    """A set or dict keyed by variable identity, which differs in another process."""

    is_dict: bool
    items: list[tuple[Any, Any]]


@final
class TravelPickler(cloudpickle.Pickler):
    """A cloudpickle pickler that takes Keras objects apart itself.

    A Keras object is written as an empty shell and queued; its attributes follow
    later. So recursion stays shallow, however deep a model's graph is.

    Args:
        file: File for the bytes.
        anchors: Objects that the reader has in the same order: sent as an index.
        variables: Variables that optimizers may hold by identity.
        has_values: False for bytes that are only compared: one of `variables` becomes
            its shape, any other raises, and names that Keras gave are left out.
        lends: Whether objects that cannot be copied are shared, see `lending`.
    """

    def __init__(
        self,
        file: io.BytesIO,
        *,
        anchors: Sequence[Any] = (),
        variables: Iterable[Any] = (),
        has_values: bool = True,
        lends: bool = False,
    ) -> None:
        super().__init__(file, protocol=5)
        self._lends = lends
        self._fine: dict[int, Any] = {}
        self._anchors = {id(anchor): i for i, anchor in enumerate(anchors)}
        self.variables = list(variables)
        self.queue: list[Any] = []
        self._saveable: type = _keras("saving.keras_saveable").KerasSaveable
        tracking = _keras("utils.tracking")
        self._tracker: type = tracking.Tracker
        self._mappings = (tracking.TrackedDict, tracking.TrackedOrderedDict)
        self._tracked = (tracking.TrackedList, tracking.TrackedSet, *self._mappings)
        self._callback: type = _keras("callbacks.callback").Callback
        self._hollow: type | tuple[()] = ()
        if not has_values:
            self._hollow = _keras("backend").Variable
        self._known = {id(variable) for variable in self.variables}

    def persistent_id(self, obj: Any) -> int | None:
        """Returns the index of an anchor, None for anything else."""
        return self._anchors.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """Returns the parts of `obj`; see `object.__reduce__`."""
        if isinstance(obj, self._hollow):
            return str, (self._make_of(obj),)
        if isinstance(obj, self._tracked):
            plain = list(obj.items()) if isinstance(obj, self._mappings) else list(obj)
            return _shell, (type(obj),), (plain, vars(obj)), None, None, _refill
        if isinstance(obj, self._tracker):
            self.queue.append(obj)
            return _shell, (type(obj),)
        if isinstance(obj, self._saveable) and _uses_keras_reduce(obj):
            self.queue.append(obj)
            return _shell, (type(obj), _is_functional(obj))
        if isinstance(obj, self._callback) and "_model" in vars(obj):
            # the model is sent separately; a callback gets the one of its process
            return _shell, (type(obj),), {**vars(obj), "_model": None}
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            # cloudpickle accepts plain modules only; torch.ops is another class
            if sys.modules.get(obj.__name__) is obj:
                return import_module, (obj.__name__,)
            return NotImplemented
        if _is_distribution(type(obj)):
            # TensorFlow's optimizers hold the process's strategy, which is not state
            return _called, ("tensorflow", "distribute.get_strategy")
        if type(obj).__module__ == _WRAPPERS and isinstance(obj, (list, dict, tuple)):
            plain = list(obj.items()) if isinstance(obj, dict) else list(obj)
            return _kind_of(obj), (plain,)
        return self._shared_or_copied(obj)

    def _shared_or_copied(self, obj: Any) -> Any:
        """Returns the parts of an object without a rule of its own."""
        if type(obj).__module__.startswith("jaxlib"):
            place = _place_in_jax(obj)  # for example of a cache around a function
            if place is not None:
                return _at, place
        if self._lends and self._must_be_lent(obj):
            return lend(obj)
        return super().reducer_override(obj)

    def _must_be_lent(self, obj: Any) -> bool:
        """Whether an object cannot be copied, and may be shared."""
        if id(obj) in self._fine or not may_be_lent(obj):
            return False
        try:
            TravelPickler(io.BytesIO(), variables=self.variables).dump(obj)
        except Exception:  # pickling runs code of any object
            return True
        self._fine[id(obj)] = obj
        return False

    def _make_of(self, variable: Any) -> str:
        """Returns the compared form of a variable whose value does not count."""
        if id(variable) not in self._known:
            raise TypeError("a variable whose value may differ next time")
        return f"{tuple(variable.shape)} {variable.dtype} {variable.trainable}"


@final
class _TravelUnpickler(pickle.Unpickler):
    """Reads the output of `TravelPickler`, with the same anchors."""

    def __init__(self, file: io.BytesIO, anchors: Sequence[Any]) -> None:
        super().__init__(file)
        self._anchors = anchors

    def persistent_load(self, pid: int) -> Any:
        """Returns the anchor of an index."""
        return self._anchors[pid]


def dumps(
    obj: Any,
    *,
    anchors: Sequence[Any] = (),
    variables: Iterable[Any] = (),
    has_values: bool = True,
    before: bytes = b"",
) -> bytes:
    """Turns an object into bytes for `loads` in another process.

    Code outside the installed packages is pickled by value; if that fails (a module
    with a lock in its globals, say), by name. Within `lending` the
    object stays in this process, and objects that cannot be copied are shared.

    Args:
        obj: Any object.
        anchors: See `TravelPickler`, also for the other arguments.
        variables: Variables of optimizers.
        has_values: False for bytes that are only compared.
        before: Earlier bytes of the object. They are returned themselves if no byte
            has changed, so that a large model is not held twice. Classes pickled by
            value may have other bytes after they were read back in this process.

    Raises:
        CannotPickle: Neither way works.
    """
    with _REGISTRY:
        if before and _is_still(obj, before, anchors, variables):
            return before
        try:
            with by_value():
                return _dump_all(obj, anchors, variables, has_values)
        except CannotPickle as first:
            try:
                return _dump_all(obj, anchors, variables, has_values)
            except CannotPickle:
                if not is_lending() or not has_values:
                    raise first from first.__cause__
            try:
                with by_value():
                    return _dump_all(obj, anchors, variables, has_values, lends=True)
            except CannotPickle:
                raise first from first.__cause__


def loads(blob: bytes, *, anchors: Sequence[Any] = ()) -> Any:
    """Reads the output of `dumps`. Runs code: only for bytes of one's own run."""
    unpickler = _TravelUnpickler(io.BytesIO(blob), anchors)
    root = unpickler.load()
    filled: list[Any] = []
    while (item := unpickler.load()) is not None:
        obj, state = item
        vars(obj).update(state)
        filled.append(obj)
    for obj in filled:
        _rekey(obj)
    return root


def state_of(obj: Any, variables: Iterable[Any] = ()) -> dict[str, Any]:
    """Returns the attributes of a Keras object that are sent."""
    state: dict[str, Any] = {}
    for name, value in vars(obj).items():
        if name in _TRANSIENT:
            state[name] = _TRANSIENT[name]()
        # Layer.__new__ wraps these methods of every instance; the shell has its own
        elif name in ("build", "quantize") and hasattr(value, "__wrapped__"):
            continue
        # TensorFlow's record of tracked objects, which it makes again if absent
        elif name != "stored_ids" and not name.startswith("_self_"):
            state[name] = value
    if hasattr(obj, "_var_key"):
        held = [*variables, *getattr(obj, "_trainable_variables", ())]
        _name_variables(state, {obj._var_key(v): v for v in held})
    return state


def _dump_all(
    obj: Any,
    anchors: Sequence[Any],
    variables: Iterable[Any],
    has_values: bool,
    lends: bool = False,
) -> bytes:
    """Returns the bytes of an object."""
    file = io.BytesIO()
    _write(file, obj, anchors, variables, has_values, lends)
    return file.getvalue()


def _is_still(
    obj: Any, before: bytes, anchors: Sequence[Any], variables: Iterable[Any]
) -> bool:
    """Whether an object would be turned into the same bytes again."""
    file = _Comparison(before)
    try:
        with by_value():
            _write(file, obj, anchors, variables)
    except (CannotPickle, _Differs):
        return False
    return file.is_equal


class _Differs(Exception):
    """A byte is another one than before."""


@final
class _Comparison(io.BytesIO):
    """A file that keeps nothing: it compares what is written with bytes.

    Args:
        before: To compare with.
    """

    def __init__(self, before: bytes) -> None:
        super().__init__()
        self._before, self._at = before, 0

    def write(self, data: Any, /) -> int:
        """Takes the next bytes.

        Raises:
            _Differs: They are others.
        """
        size = memoryview(data).nbytes
        if not self._before.startswith(data, self._at):
            raise _Differs
        self._at += size
        return size

    @property
    def is_equal(self) -> bool:
        """Whether all has come."""
        return self._at == len(self._before)


def _write(
    file: io.BytesIO,
    obj: Any,
    anchors: Sequence[Any],
    variables: Iterable[Any],
    has_values: bool = True,
    lends: bool = False,
) -> None:
    """Writes the object, then the state of each queued one, then None."""
    pickler = TravelPickler(
        file, anchors=anchors, variables=variables, has_values=has_values, lends=lends
    )
    owner = obj
    try:
        pickler.dump(obj)
        for owner in pickler.queue:  # grows while it is read
            state = state_of(owner, pickler.variables)
            if not has_values and is_named_by_keras(owner):
                state = {k: v for k, v in state.items() if k not in ("name", "_name")}
            pickler.dump((owner, state))
        pickler.dump(None)
    except _Differs:
        raise
    except Exception as error:  # pickling runs code of any object
        raise CannotPickle(owner, error) from error


def is_named_by_keras(obj: Any) -> bool:
    """Whether a layer, metric or optimizer has a name that Keras generated."""
    plain = re.escape(_keras("utils.naming").to_snake_case(type(obj).__name__))
    return re.fullmatch(rf"{plain}(_\d+)?", str(getattr(obj, "name", ""))) is not None


def _keras(module: str) -> Any:
    """Returns a private module of Keras; private names are used in travel* only."""
    return import_module(f"keras.src.{module}")


def _shell(cls: type, is_functional: bool = False) -> Any:
    """Makes an instance without running `__init__`."""
    functional = _keras("models.functional").Functional
    if is_functional and not issubclass(cls, functional):
        # Model.__init__ rewrites the bases of a class used as Model(inputs, outputs)
        _keras("models.model").inject_functional_model_class(cls)
    make: Any = cls.__new__
    try:
        return make(cls)
    except TypeError:  # a user's __new__ that needs arguments
        return object.__new__(cls)


def _place_in_jax(obj: Any) -> tuple[str, str] | None:
    """Returns module and name of an object that a module of JAX holds."""
    for module, held in sys.modules.copy().items():
        if module.partition(".")[0] == "jax":
            for name, value in vars(held).copy().items():
                if value is obj:
                    return module, name
    return None


def _at(module: str, name: str) -> Any:
    """Returns the object that a module holds under a name."""
    return getattr(import_module(module), name)


def _kind_of(collection: Any) -> type:
    """Returns the plain type of a collection that TensorFlow has wrapped."""
    return next(kind for kind in (list, dict, tuple) if isinstance(collection, kind))


def _is_distribution(cls: type) -> bool:
    """Whether a class is one of TensorFlow's distribution strategies."""
    home = "tensorflow.python.distribute."
    return cls.__name__.endswith("Strategy") and cls.__module__.startswith(home)


def _called(module: str, path: str) -> Any:
    """Returns the result of a module's function in this process."""
    return attrgetter(path)(import_module(module))()


def _refill(collection: Any, state: tuple[list[Any], dict[str, Any]]) -> None:
    """Fills a tracked collection without notifying its tracker."""
    items, attributes = state
    if isinstance(collection, dict):
        base: Any = OrderedDict if isinstance(collection, OrderedDict) else dict
        for key, value in items:
            base.__setitem__(collection, key, value)
    elif isinstance(collection, list):
        list.extend(collection, items)  # pyright: ignore[reportUnknownMemberType]
    else:
        set.update(collection, items)
    vars(collection).update(attributes)


def _uses_keras_reduce(obj: Any) -> bool:
    """Whether the class of a user's object defines no pickling of its own."""
    kept = _keras("saving.keras_saveable").KerasSaveable.__reduce__
    cls = type(obj)
    return cls.__reduce__ is kept and cls.__reduce_ex__ is object.__reduce_ex__


def _is_functional(obj: Any) -> bool:
    return isinstance(obj, _keras("models.functional").Functional)


def _name_variables(state: dict[str, Any], variables: dict[Any, Any]) -> None:
    """Replaces collections keyed by variable identity with `_ByVariable`."""
    for name, value in state.items():
        if not isinstance(value, (set, dict)):
            continue
        held = cast("set[Any] | dict[Any, Any]", value)
        if held and all(key in variables for key in held):
            pairs = (
                held.items() if isinstance(held, dict) else ((k, None) for k in held)
            )
            items = [(variables[key], item) for key, item in pairs]
            state[name] = _ByVariable(is_dict=isinstance(held, dict), items=items)


def _rekey(obj: Any) -> None:
    """Updates collections of an object that are keyed by identity."""
    if isinstance(obj, _keras("utils.tracking").Tracker):
        obj.stored_ids = {
            name: {id(item) for item in items}
            for name, (_, items) in obj.config.items()
        }
    elif _is_functional(obj):
        graph = _keras("ops.function").map_graph(obj._inputs, obj._outputs)
        object.__setattr__(obj, "_nodes", graph[0])
    elif hasattr(obj, "_var_key"):
        for name, value in vars(obj).items():
            if isinstance(value, _ByVariable):
                pairs = [(obj._var_key(v), item) for v, item in value.items]
                keyed = dict(pairs) if value.is_dict else {k for k, _ in pairs}
                vars(obj)[name] = keyed


@contextmanager
def by_value() -> Generator[None]:
    """Makes cloudpickle send code by value unless its package is installed."""
    names: list[str] = []
    is_installed: dict[str, bool] = {}
    # `list(d.items())` may fail while another thread imports: it makes tuples, at which
    # garbage is collected and threads take turns. A copy is one operation.
    for name, module in sys.modules.copy().items():
        top = name.partition(".")[0]
        if top not in is_installed:
            is_installed[top] = _is_installed(top, sys.modules.get(top, module))
        if not is_installed[top] and getattr(module, "__name__", None) == name:
            names.append(name)
    already = cloudpickle.list_registry_pickle_by_value()
    mine = [sys.modules[n] for n in names if n in sys.modules and n not in already]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            with suppress(ValueError):  # another thread has removed it already
                cloudpickle.unregister_pickle_by_value(module)


def _is_installed(name: str, module: Any) -> bool:
    """Whether code is of the standard library, site-packages, or without source."""
    if name in ("shoal", "easydist", "keras", "__main__", "__mp_main__"):
        return True  # cloudpickle itself sends __main__ by value
    if name in sys.stdlib_module_names:
        return True
    path = getattr(module, "__file__", None)
    if path is None:
        folders = list(getattr(module, "__path__", ()))
        if not folders:
            return True
        path = folders[0]
    parts = Path(path).parts
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or any(str(path).startswith(root + "/") for root in _roots())
    )


@functools.cache
def _roots() -> frozenset[str]:
    """Returns the folders of the standard library and of installed packages."""
    places = sysconfig.get_paths()
    return frozenset(
        places[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")
    )
