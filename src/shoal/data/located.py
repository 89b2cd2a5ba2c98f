"""Data that is given by a path or URL, with the arguments of `fit` about files.

This file decides what counts as such a location, and which `preprocessing.py` reads
the files if no columns are named.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, fields, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, final

from shoal.data.files import FileSource, open_files
from shoal.data.reading import FIT, Reading
from shoal.data.tensors import is_a
from shoal.errors import ConfigError, DataError, ShoalWarning

SCRIPT = "preprocessing.py"
CLASS, FUNCTION = "Preprocessing", "preprocess"


@final
@dataclass(frozen=True, kw_only=True)
class FileArguments:
    """Arguments of `fit` that concern files; see `shoal.data.open_files`.

    Args:
        features: Columns that are x.
        label: Columns that are y.
        preprocess: Code that reads the files instead.
        on_bad_file: "raise" or "skip".
    """

    features: Any = None
    label: Any = None
    preprocess: Any = None
    on_bad_file: str = "raise"

    def without_targets(self, x: Any) -> FileArguments:
        """Asks for no label if features of files are named, as in `predict`."""
        names_columns = is_location(x) or is_frame(x)
        if names_columns and self.features is not None and self.label is None:
            return replace(self, label=())
        return self

    def refuse(self, where: str) -> None:
        """Refuses arguments about files if x is not a file.

        Raises:
            ConfigError: An argument is not at its default.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            is_usual = isinstance(value, str) and value == field.default
            if value is not field.default and not is_usual:
                raise ConfigError(
                    f"{field.name}={value!r} was passed, but x is not a path or URL "
                    f"({where}). Expected it for files alone. Leave it out, or pass "
                    'x="s3://bucket/prefix/".'
                )


def is_location(x: Any) -> bool:
    """Whether x is a path or URL, or a list of them.

    Example:
        >>> is_location("s3://bucket/a/"), is_location(["a.csv"]), is_location([1.0])
        (True, True, False)
    """
    if isinstance(x, (list, tuple)) and x:
        return all(isinstance(part, (str, os.PathLike)) for part in x)
    return isinstance(x, (str, os.PathLike))


def is_frame(x: Any) -> bool:
    """Whether x is a DataFrame of Spark; imports nothing.

    Example:
        >>> is_frame([1.0])
        False
    """
    is_ours = type(x).__module__.startswith("pyspark.sql.")
    return is_ours and is_a(x, "pyspark", "DataFrame")


def open_located(
    x: Any,
    y: Any,
    sample_weight: Any,
    arguments: FileArguments,
    reading: Reading,
) -> FileSource:
    """Opens the files that x names.

    Args:
        x: A path or URL, or a list of them.
        y: Must be None: the files hold the targets.
        sample_weight: Must be None as well.
        arguments: The arguments about files.
        reading: The origin of x, and the dtype in which floats are read.

    Raises:
        DataError: Targets are given beside x, or the files cannot be used.
        ConfigError: An argument is wrong.
    """
    ways = {"y": "with label=", "sample_weight": "with shoal.data.open_files(weight=)"}
    for name, value in {"y": y, "sample_weight": sample_weight}.items():
        if value is not None:
            raise DataError(
                f"{name} is given beside x={x!r} ({reading.where}). Expected files "
                f"that hold it too. Leave {name} out, and name its column "
                f"{ways[name]}."
            )
    urls = [os.fspath(part) for part in x] if isinstance(x, (list, tuple)) else x
    preprocess = arguments.preprocess
    if preprocess is None and arguments.features is None and arguments.label is None:
        preprocess = beside_script()
    source = open_files(
        urls if isinstance(urls, list) else os.fspath(urls),
        features=arguments.features,
        label=arguments.label,
        preprocess=preprocess,
        on_bad_file=arguments.on_bad_file,  # pyright: ignore - it checks
        floatx=reading.floatx,
    )
    # The plan reports it for the data of fit.
    if source.left_out and reading.where != FIT:
        text = f"{reading.where}: {source.left_out}"
        warnings.warn(text, ShoalWarning, stacklevel=2)
    return source


def beside_script(script: str | None = None) -> Any:
    """Returns what `preprocessing.py` beside the script defines, None without one.

    Args:
        script: The file that was started; default None asks the interpreter.

    Raises:
        DataError: The file defines neither a class `Preprocessing` nor a function
            `preprocess`.
    """
    started = script or getattr(sys.modules.get("__main__"), "__file__", None)
    if started is None:
        return None
    path = Path(started).resolve().with_name(SCRIPT)
    if not path.is_file():
        return None
    module = sys.modules.get(path.stem)
    if module is None or Path(str(module.__file__)).resolve() != path:
        spec = spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:  # a file always has both
            return None
        module = module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    found = getattr(module, CLASS, None) or getattr(module, FUNCTION, None)
    if found is None:
        raise DataError(
            f"{path} lies beside the script and defines no {CLASS}. Expected a class "
            f"{CLASS} with a method preprocess(self, keys, objects), or a function "
            f"{FUNCTION}(keys, objects). Define it, or name the columns with features= "
            "and label=."
        )
    return found
