"""Versions of a process: those of all workers must be equal."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("shoal", "keras", "numpy")
DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu")}
"""Names under which a backend may be installed, if there are several."""


def versions(backend: str = "", engine: str = "") -> dict[str, str]:
    """Returns the versions of Python and of the packages that workers import.

    Args:
        backend: Name of the Keras backend, "" for none.
        engine: Package of the engine that places workers, "" for none.

    Example:
        >>> sorted(versions(engine="ray"))
        ['keras', 'numpy', 'python', 'ray', 'shoal']
    """
    found = {
        name: installed_version(name)
        for name in (*PACKAGES, *([engine] * bool(engine)))
    }
    if backend:
        names = DISTRIBUTIONS.get(backend, (backend,))
        found[backend] = next(filter(None, map(installed_version, names)), "")
    return {"python": platform.python_version(), **found}


def installed_version(name: str) -> str:
    """Returns the version of an installed package, empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Returns the differences in words; empty if there are none.

    The patch number of Python may differ.

    Example:
        >>> ours = {"python": "3.11.4", "keras": "3.13.0"}
        >>> difference({"python": "3.11.9", "keras": ""}, ours)
        'no keras (here it is 3.13.0)'
        >>> difference({"python": "3.12.1", "keras": "3.13.0"}, ours)
        'python 3.12.1 (here it is 3.11.4)'
    """
    found: list[str] = []
    for name, here in ours.items():
        there = theirs.get(name, "")
        parts = 2 if name == "python" else None
        if there.split(".")[:parts] != here.split(".")[:parts]:
            said = f"{name} {there}" if there else f"no {name}"
            found.append(f"{said} (here it is {here or 'not installed'})")
    return ", ".join(found)
