"""A model as a Keras archive: its config, the values of its variables, its code.

This file decides which models travel this way: those made of Keras' own classes,
and of classes whose `get_config` can make them again. The archive is kept
as Python values, not as a zip with an HDF5 file, which would take a worker a
second at its start; if a layer keeps state outside of variables (vocabularies,
adapted moments) the real archive travels with it.
"""

from __future__ import annotations

import io
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast, final

from shoal.host.temporary import (
    KERAS_SAVING,
    keras_saving,
    temporary_folder,
)
from shoal.models.fresh import all_zero
from shoal.models.no_tensorflow import no_tensorflow
from shoal.models.state import ModelState
from shoal.optimizers import has_others

_NOT_GIVEN = (
    "build", "quantize", "loss", "train_function", "test_function", "predict_function"
)  # fmt: skip
"""Function attributes of layers that are not from constructors: `Layer.__new__`
wraps two methods, the loss of a model travels with its compile arguments, and trainers
keep functions that they have compiled."""


@final
@dataclass(frozen=True, kw_only=True)
class Archive:
    """All that makes a model again, without its compile arguments.

    Args:
        config: Result of `keras.saving.serialize_keras_object`.
        custom_objects: Name in the config -> class or function.
        zipped: A `.keras` file, or None if variables are the only state.
        state: Values of the variables.
        is_altered: Whether layers got other variables after they were built, which not
            every layer around them writes into its config.
    """

    config: dict[str, Any]
    custom_objects: dict[str, Any]
    zipped: bytes | None
    state: ModelState
    is_altered: bool = False

    @classmethod
    def of(cls, model: Any, custom_objects: Mapping[str, Any]) -> Archive | None:
        """Reads a model, or returns None if an archive would lose something."""
        if not _says_how_to_remake(model) or _holds_functions(model, custom_objects):
            return None
        if any(map(_has_named_tuples, model._flatten_layers())):
            return None
        try:
            config = _config_of(model)
            custom = _custom_objects(model, config, custom_objects)
            zipped = _zip(model) if _has_other_state(model) else None
        except Exception:  # a user's get_config may raise anything
            return None
        if custom is None:
            return None
        return cls(
            config=config,
            custom_objects=custom,
            zipped=zipped,
            state=ModelState.of(model),
            is_altered=any(map(_is_altered, model._flatten_layers())),
        )

    @property
    def is_plain(self) -> bool:
        """Whether all classes are Keras' own, with no state outside of variables."""
        is_told = self.zipped is None and not self.is_altered
        return not self.custom_objects and is_told

    def open(self) -> Any:
        """Makes the model, without compiling it."""
        scope: AbstractContextManager[None] = (
            all_zero() if self.is_plain else nullcontext()
        )
        with warnings.catch_warnings(), scope:
            warnings.simplefilter("ignore")
            model = self._load()
        self.state.restore(model)
        return model

    def _load(self) -> Any:
        if self.zipped is not None:
            saving = import_module("keras").saving
            with saving.custom_object_scope(self.custom_objects):
                load = import_module("keras.src.saving.saving_lib").load_model
                temporary_folder()  # Keras unpacks there; it may have been removed
                file = io.BytesIO(self.zipped)
                return load(file, self.custom_objects, compile=False, safe_mode=False)
        lib = import_module("keras.src.saving.serialization_lib")
        with lib.ObjectSharingScope():
            return lib.deserialize_keras_object(
                self.config, custom_objects=self.custom_objects, safe_mode=False
            )


def _says_how_to_remake(model: Any) -> bool:
    """Whether each class is Keras' own or has its own `get_config`.

    A user's `compile` may set anything on the model, which no archive keeps; neither
    does it keep the state of optimizers besides the model's own.
    """
    trainer = import_module("keras.src.trainers.trainer").Trainer
    if type(model).compile is not trainer.compile or has_others(model):
        return False
    return all(
        _is_keras(type(layer).__module__) or _has_own_config(type(layer))
        for layer in model._flatten_layers()
    )


def _has_named_tuples(layer: Any) -> bool:
    """Whether a Functional model's config would make plain tuples of its outputs."""
    structs = [
        getattr(layer, f"_{part}_struct", None) for part in ("inputs", "outputs")
    ]
    found: list[Any] = structs
    for tree in found:
        if hasattr(tree, "_fields"):
            return True
        if isinstance(tree, dict):
            found += cast("dict[Any, Any]", tree).values()
        elif isinstance(tree, (list, tuple)):
            found += cast("list[Any]", tree)
    return False


def _has_own_config(cls: type) -> bool:
    own = (base for base in cls.__mro__ if not _is_keras(base.__module__))
    return any("get_config" in vars(base) for base in own)


def _holds_functions(model: Any, given: Mapping[str, Any]) -> bool:
    """Whether a layer was given a function of the user's.

    A config keeps only its name, which one of Keras' own functions may share.
    """
    known = {id(obj) for obj in given.values()}
    return any(
        isinstance(value, types.FunctionType)
        and name not in _NOT_GIVEN
        and id(value) not in known
        and not _is_of_keras(value)
        for layer in model._flatten_layers()
        for name, value in vars(layer).items()
    )


def _is_of_keras(function: types.FunctionType) -> bool:
    """Whether Keras finds the function under its name; wrappers only carry a name."""
    if not _is_keras(str(function.__module__)):
        return False
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _is_altered(layer: Any) -> bool:
    """Whether a layer was quantized, or given adapters of low rank."""
    is_quantized = getattr(layer, "quantization_mode", None) is not None
    return bool(getattr(layer, "lora_enabled", False)) or is_quantized


def _is_keras(module: str) -> bool:
    return module == "keras" or module.startswith("keras.")


def _config_of(model: Any) -> dict[str, Any]:
    """Serializes without compile arguments, which travel as objects."""
    lib = import_module("keras.src.saving.serialization_lib")
    with warnings.catch_warnings(), lib.ObjectSharingScope(), no_tensorflow():
        warnings.simplefilter("ignore")
        config = lib.serialize_keras_object(model)
    return {**config, "compile_config": None}


def _has_other_state(model: Any) -> bool:
    """Whether a layer keeps state outside of its variables."""
    layer_class = import_module("keras").Layer
    for layer in model._flatten_layers():
        cls = type(layer)
        if hasattr(cls, "save_assets") or hasattr(cls, "finalize_state"):
            return True
        is_own = cls.load_own_variables is not layer_class.load_own_variables
        if is_own and not _is_keras(cls.__module__):
            return True
    return False


def _zip(model: Any) -> bytes:
    """Saves a real archive; its optimizer is not read."""
    file = io.BytesIO()
    with warnings.catch_warnings(), no_tensorflow(), keras_saving():
        warnings.simplefilter("ignore")
        import_module(KERAS_SAVING).save_model(model, file)
    return file.getvalue()


def _custom_objects(
    model: Any, config: dict[str, Any], given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the code that a config names, None if it is ambiguous."""
    classes: dict[str, Any] = {}
    for layer in model._flatten_layers():
        cls = type(layer)
        if classes.setdefault(cls.__name__, cls) is not cls:
            return None  # two classes of one name, as of a cell run twice
    found: dict[str, Any] = dict(given)
    for entry in _entries(config):
        if entry["class_name"] == "__lambda__":
            return None  # its code would travel without the globals it names
        module = entry.get("module") or "__main__"
        if "module" not in entry or _is_keras(module) or module == "builtins":
            continue
        is_function = entry["class_name"] == "function"
        name = str(entry["config"] if is_function else entry["class_name"])
        key = name if is_function else str(entry.get("registered_name") or name)
        obj = _find(module, name, key, {**classes, **given})
        if obj is None or found.setdefault(key, obj) is not obj:
            return None
    return found


def _entries(config: Any) -> Iterator[dict[str, Any]]:
    """Yields every nested dictionary that names a class or function."""
    if isinstance(config, dict):
        mapping = cast("dict[str, Any]", config)
        if isinstance(mapping.get("class_name"), str):
            yield mapping
        for value in mapping.values():
            yield from _entries(value)
    elif isinstance(config, (list, tuple)):
        for value in cast("list[Any]", config):
            yield from _entries(value)


def _find(module: str, name: str, key: str, known: Mapping[str, Any]) -> Any:
    """Returns the object of a config entry, None if it is unknown."""
    for candidate in (key, name):
        if candidate in known:
            return known[candidate]
    registered = import_module("keras").saving.get_registered_object(key)
    if registered is not None:
        return registered
    return getattr(sys.modules.get(module), name, None)
