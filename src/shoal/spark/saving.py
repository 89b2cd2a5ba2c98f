"""Estimators and models on any file system of Hadoop: params as JSON, a Keras archive.

A saved folder has `metadata`, as Spark writes it, and `model.keras`, which Keras opens
without Spark. No code is saved: a function that makes a model is saved as its name.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from shoal.clusters import Spark
from shoal.errors import ConfigError, DataError
from shoal.host.temporary import keras_saving, temporary_folder
from shoal.models.no_tensorflow import no_tensorflow
from shoal.spark.fit_request import is_model
from shoal.spark.hadoop_files import get, put, telling

ARCHIVE = "model.keras"
SPARK = "spark cluster"  # a saved `shoal.clusters.Spark`: a mapping with this key


@final
class KerasWriter(MLWriter):
    """Saves an instance.

    Args:
        instance: Estimator or model.
        model: Its Keras model, a function, or None.
        extra: What its reader gets.
    """

    def __init__(self, instance: Any, model: Any, **extra: Any) -> None:
        super().__init__()
        self.instance, self.model, self.extra = instance, model, extra

    def saveImpl(self, path: str) -> None:
        """Saves to a new folder.

        Raises:
            ConfigError: A part cannot be saved; nothing was written.
            DataError: The file system refused it.
        """
        params = {
            param.name: saved(param.name, value)
            for param, value in self.instance._paramMap.items()
            if param.name != "model"
        }
        extra = {**self.extra, "has_model": is_model(self.model)}
        if self.model is not None and not extra["has_model"]:
            extra["function"] = name_of(self.model)
        with _folder() as folder:
            file = folder / ARCHIVE
            if extra["has_model"]:
                _save(self.model, file)
            with telling(path):
                DefaultParamsWriter.saveMetadata(
                    self.instance, path, self.sc, extra, params
                )
                if extra["has_model"]:
                    put(self.sparkSession, file, f"{path}/{ARCHIVE}")


@final
class KerasReader(MLReader[Any]):
    """Loads an instance.

    Args:
        kind: Its class.
        make: Makes it of its Keras model, and of what was saved beside.
    """

    def __init__(self, kind: type, make: Callable[[Any, dict[str, Any]], Any]) -> None:
        super().__init__()
        self.kind, self.make = kind, make

    def load(self, path: str) -> Any:
        """Loads from a folder.

        Raises:
            DataError: There is none, or it has something else.
        """
        with telling(path):
            metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        name = f"{self.kind.__module__}.{self.kind.__name__}"
        if metadata["class"] != name:
            raise DataError(
                f"{path} holds a {metadata['class']}. Expected a {name}. Load it "
                f"with {metadata['class']}.load(path)."
            )
        model: Any = None
        if metadata["has_model"]:
            with _folder() as folder:
                file = folder / ARCHIVE
                with telling(path):
                    get(self.sparkSession, f"{path}/{ARCHIVE}", file)
                model = _load(file)
        elif "function" in metadata:
            model = function_of(metadata["function"])
        instance = self.make(model, metadata)
        instance._resetUid(metadata["uid"])
        params = {n: opened(value) for n, value in metadata["paramMap"].items()}
        instance._set(**params)
        return instance


def saved(name: str, value: Any) -> Any:
    """Returns the value of a param as JSON has it.

    Raises:
        ConfigError: JSON has no form for it.

    Example:
        >>> saved("cluster", Spark(wait_s=9))["spark cluster"]["wait_s"]
        9
    """
    if isinstance(value, Spark):
        return {SPARK: asdict(value)}
    try:
        json.dumps(value)
    except TypeError as error:
        raise ConfigError(
            f"{name}={value!r} cannot be saved ({error}). Expected numbers, text, "
            "lists and mappings. Clear it before saving, and set it after loading."
        ) from None
    return value


def opened(value: Any) -> Any:
    """Returns the value of a param that `saved` returned."""
    if isinstance(value, Mapping) and SPARK in value:
        return Spark(**value[SPARK])
    return value


def name_of(function: Any) -> str:
    """Returns the module and name of a function that other processes can import.

    Raises:
        ConfigError: They cannot.

    Example:
        >>> name_of(name_of)
        'shoal.spark.saving:name_of'
    """
    module = getattr(function, "__module__", None) or "__main__"
    name = getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if module == "__main__" or found is not function:
        raise ConfigError(
            f"model={function!r} cannot be saved: other processes cannot import it. "
            "Expected a compiled model, or a function of a module. Move it to one, or "
            "pass the model that it returns."
        )
    return f"{module}:{name}"


def function_of(name: str) -> Any:
    """Imports what `name_of` named."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@contextmanager
def _folder() -> Generator[Path]:
    with TemporaryDirectory(prefix="shoal-", dir=temporary_folder()) as folder:
        yield Path(folder)


def _save(model: Any, file: Path) -> None:
    try:
        with no_tensorflow(), keras_saving():
            model.save(file)
    except Exception as error:  # the model may run the user's code
        raise ConfigError(
            f"model {model.name!r} cannot be saved as a Keras archive "
            f"({type(error).__name__}: {error}). Expected layers with a get_config(). "
            "Add one, or pass a function of a module that returns the model."
        ) from error


def _load(file: Path) -> Any:
    """Opens an archive; without its loss, if that is not to be found here."""
    load: Any = import_module("keras").saving.load_model
    with warnings.catch_warnings(), no_tensorflow():
        warnings.simplefilter("ignore")
        try:
            return load(file)
        except Exception as error:
            try:
                return load(file, compile=False)
            except Exception:
                raise DataError(
                    f"the Keras archive cannot be opened: {error}. Expected the "
                    "classes of its layers. Import them, registered with "
                    "keras.saving.register_keras_serializable, or load within "
                    "keras.saving.custom_object_scope."
                ) from error
