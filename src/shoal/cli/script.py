"""Functions named on the command line as `script.py:function`."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeAlias, cast, final

import cloudpickle
import typer

from shoal.cli.backend import missing_backend
from shoal.errors import ConfigError
from shoal.registry import did_you_mean

ProblemScript: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT.py:MAKE",
        help="A file and its function, 'make' if none is named, which returns "
        "(make_model, x, y) or (make_model, x, y, validation_data).",
    ),
]
"""Argument of the commands that train the model of a script."""

PROBLEM = "(make_model, x, y)"
TRAINERS = "(df, test_df, trainers)"
INSTALLED = {Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).parents[1]}
"""Folders whose files do not belong to the user's script."""


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model and its data, from a function of a script.

    Args:
        make_model: Returns a new compiled model; errors of a script become
            `ConfigError`.
        x: Inputs.
        y: Targets; None when `x` yields both.
        validation_data: Data to evaluate each epoch on; None for none.
    """

    make_model: Callable[[], Any]
    x: Any
    y: Any = None
    validation_data: Any = None


def load_problem(target: str, *, needs_data: bool = True) -> Problem:
    """Runs `script.py:function` and returns the problem that it makes.

    The function takes no argument and returns `(make_model, x, y)`,
    `(make_model, x, y, validation_data)`, or a mapping with these names.

    Args:
        target: A file and one of its functions, "make" when none is named.
        needs_data: Whether the script must name its data; without it the function may
            also return `make_model` alone, as `x` of the problem is not used.

    Raises:
        ConfigError: The file or function does not exist, raises, or returns something
            else.
    """
    made, path = _made(target, PROBLEM)
    if not needs_data and callable(made):
        made = {"make_model": made}
    if not needs_data and isinstance(made, Mapping):
        made = {"x": None, **cast(Mapping[str, Any], made)}
    problem = _problem(made, target)
    make_model = problem.make_model
    own = getattr(make_model, "__name__", "make_model")
    return replace(
        problem, make_model=partial(_call, make_model, own, path, "a compiled model")
    )


def load_trainers(target: str) -> dict[str, Any]:
    """Runs `script.py:function` and returns arguments for `shoal.spark.compare`.

    The function takes no argument and returns `(df, test_df, trainers)`, the same with
    an evaluator, or a mapping with the names of such arguments.

    Args:
        target: A file and one of its functions, "make" when none is named.

    Raises:
        ConfigError: The file or function does not exist, raises, or returns something
            else.
    """
    made, _ = _made(target, TRAINERS)
    names = ("df", "test_df", "trainers", "evaluator")
    found: dict[str, Any] = {}
    if isinstance(made, Mapping):
        found = dict(cast(Mapping[str, Any], made))
    elif isinstance(made, tuple):
        parts = cast(tuple[Any, ...], made)
        found = dict(zip(names, parts, strict=False)) if len(parts) <= 4 else {}
    if not {"df", "test_df", "trainers"} <= set(found) <= {*names, "index_col"}:
        raise ConfigError(
            f"{target} returned {type(made).__name__}. Expected (df, test_df, "
            "trainers), (df, test_df, trainers, evaluator), or a mapping with these "
            "names. Return two DataFrames and a dict of trainers."
        )
    return found


def _made(target: str, gives: str) -> tuple[object, Path]:
    """Returns what the function of a script returns, and the script."""
    file, _, name = target.rpartition(":") if ".py:" in target else (target, "", "make")
    path = Path(file)
    module = _load(path)
    function = getattr(module, name, None)
    if not callable(function):
        known = [k for k, v in vars(module).items() if callable(v) and k[0] != "_"]
        raise ConfigError(did_you_mean(f"function of {path}", name, known))
    return _call(function, name, path, gives), path


def _load(path: Path) -> ModuleType:
    """Imports a file as `python file.py` would see it, but not as `__main__`."""
    # A script named json.py must not replace the module json.
    name = f"script_{path.stem}" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(
            f"there is no Python file {str(path)!r}. "
            "Expected script.py:function. "
            "Give the path of a file that ends in .py."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    # Workers do not have this file on their path: its objects are pickled by value.
    cloudpickle.register_pickle_by_value(module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if missing_backend(error):
            raise
        raise _raised(f"loading {path}", path, error, PROBLEM) from error
    return module


def _call(function: Callable[[], Any], name: str, path: Path, gives: str) -> Any:
    """Calls a function of a script; its errors become the user's own error."""
    try:
        return function()
    except Exception as error:  # the user's code may raise anything
        raise _raised(f"{name} of {path}", path, error, gives) from error


def _raised(what: str, path: Path, error: Exception, gives: str) -> ConfigError:
    """Returns the error, with the user's line that raised it."""
    home = path.resolve().parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _is_beside(Path(f.filename), home)]
    at = ""
    if own:
        frame = own[-1]
        at = f" ({frame.filename}:{frame.lineno}, in {frame.name}: `{frame.line}`)"
    return ConfigError(
        f"{what} raised {type(error).__name__}: {error}{at}. "
        f"Expected it to run and to give {gives}. "
        "Correct it; the same command after `shoal --debug` shows the full traceback."
    )


def _is_beside(file: Path, home: Path) -> bool:
    """Whether a file is the user's own: in a folder, and not installed there."""
    found = file.resolve()
    is_installed = not INSTALLED.isdisjoint(found.parents) or bool(
        {"site-packages", "dist-packages"} & set(found.parts)
    )
    return found.is_file() and found.is_relative_to(home) and not is_installed


def _problem(made: object, target: str) -> Problem:
    names = ("make_model", "x", "y", "validation_data")
    found: dict[str, Any] = {}
    if isinstance(made, Mapping):
        found = dict(cast(Mapping[str, Any], made))
    elif isinstance(made, tuple):
        parts = cast(tuple[Any, ...], made)
        found = dict(zip(names, parts, strict=False)) if len(parts) <= 4 else {}
    is_complete = {"make_model", "x"} <= set(found) <= set(names)
    if not is_complete or not callable(found["make_model"]):
        raise ConfigError(
            f"{target} returned {type(made).__name__}. "
            "Expected (make_model, x, y), (make_model, x, y, validation_data), or a "
            "mapping with these names; make_model is a function. "
            "Return the function that makes the model, not the model."
        )
    return Problem(**found)
