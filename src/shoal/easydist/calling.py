"""Finds the calling module, and the model in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

from shoal.errors import ConfigError

PACKAGE = __name__.rpartition(".")[0]


@final
@dataclass(frozen=True, kw_only=True)
class CallSite:
    """The origin of a call.

    Args:
        module: Name of its module.
        names: Names defined there: the module's globals, and the variables of the
            calling function, if there is one.
        file: File of the module, None in a notebook or a shell.
    """

    module: str
    names: Mapping[str, Any]
    file: str | None = None

    @property
    def beside(self) -> str:
        """A path whose folder is the script's, else the working directory."""
        return self.file or str(Path.cwd() / "notebook")


def caller() -> CallSite:
    """Finds the caller of this package, from inside of it.

    Example:
        >>> caller().module == __name__
        False
    """
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _is_ours(frame.f_globals):
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return CallSite(
        module=str(frame.f_globals.get("__name__", "?")),
        names={**frame.f_globals, **frame.f_locals},
        file=None if file is None else str(file),
    )


def the_model(places: list[CallSite]) -> Any:
    """Returns the one compiled Keras model of the first place that has any.

    Args:
        places: Modules to search, in this order.

    Raises:
        ConfigError: There is none, or there are several; the message names them.
    """
    kind = import_module("keras").Model
    seen: list[str] = []
    for place in places:
        found: dict[int, tuple[str, Any]] = {}
        for name, value in place.names.items():
            if not isinstance(value, kind):
                continue
            if not getattr(value, "compiled", False):
                seen.append(name)
            elif id(value) not in found:  # one model may have two names
                found[id(value)] = (name, value)
        if len(found) == 1:
            return next(iter(found.values()))[1]
        if found:
            names = ", ".join(sorted(name for name, _ in found.values()))
            raise ConfigError(
                f"{place.module} has {len(found)} compiled models: {names}. Expected "
                "one, the one to train. Pass it: ExecutionEnvironment(model=..., ...)."
            )
    also = f" (not compiled: {', '.join(sorted(set(seen)))})" if seen else ""
    raise ConfigError(
        f"{places[-1].module} has no compiled Keras model{also}. Expected one, made "
        "and compiled before fit() is called. Call model.compile(...), or pass it: "
        "ExecutionEnvironment(model=..., ...)."
    )


def _is_ours(names: Mapping[str, Any]) -> bool:
    name = str(names.get("__name__", ""))
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")
