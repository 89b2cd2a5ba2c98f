"""Shoal trains one Keras model on many processes with one call.

This file decides the public surface: these names, loaded when first used, so
that `import shoal` costs nothing and loads neither Keras nor a backend.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import clusters as clusters
    from shoal import data as data
    from shoal import errors as errors
    from shoal import spark as spark
    from shoal import strategies as strategies
    from shoal import testing as testing
    from shoal.api import attach as attach
    from shoal.api import compare as compare
    from shoal.api import evaluate as evaluate
    from shoal.api import fit as fit
    from shoal.api import plan as plan
    from shoal.api import predict as predict
    from shoal.api import resume as resume
    from shoal.training.session import Session as Session

__version__ = "0.1.0"
__all__ = [
    "Session",
    "attach",
    "clusters",
    "compare",
    "data",
    "errors",
    "evaluate",
    "fit",
    "plan",
    "predict",
    "resume",
    "spark",
    "strategies",
    "testing",
]

_FUNCTIONS = frozenset(
    {"attach", "compare", "evaluate", "fit", "plan", "predict", "resume"}
)


class _Package(ModuleType):
    """This package. A function it exposes is never hidden by a module of its name."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing shoal/plan.py makes the import system bind the module as
        # `shoal.plan`, at an unpredictable moment. `from shoal.plan import Plan`
        # does not need that binding; `shoal.plan(...)` must not get it.
        if name in _FUNCTIONS and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _FUNCTIONS:
        found: Any = getattr(import_module(f"{__name__}.api"), name)
    elif name == "Session":
        found = import_module(f"{__name__}.training.session").Session
    else:
        return import_module(f"{__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return [*__all__, "__version__"]
