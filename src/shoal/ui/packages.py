"""Which foreign JavaScript the page uses: versions, files and their digests.

No foreign source is under version control. `hatch_build.py` fetches these files when a
wheel is built and when a working copy is set up. It loads this file by its path, so
that this file imports nothing of Shoal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

FOLDER = Path(__file__).parent / "static" / "packages"


@final
@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of the npm registry, of which some files are taken.

    Args:
        name: Its name.
        version: Its exact version.
        license: Its license, by the SPDX list.
        files: Path in the package -> the file's name here, and its SHA-256.
    """

    name: str
    version: str
    license: str
    files: dict[str, tuple[str, str]]


UPLOT = Package(
    name="uplot",
    version="1.6.32",
    license="MIT",
    files={
        "dist/uPlot.iife.min.js": (
            "uplot.js",
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        ),
        "dist/uPlot.min.css": (
            "uplot.css",
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        ),
        "LICENSE": (
            "uplot-LICENSE.txt",
            "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        ),
    },
)
"""The charts."""

AXE = Package(
    name="axe-core",
    version="4.14.1",
    license="MPL-2.0",
    files={
        "axe.min.js": (
            "axe.js",
            "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
        ),
    },
)
"""Checks of accessibility, for tests alone: no wheel holds it."""


def is_there(package: Package, folder: Path = FOLDER) -> bool:
    """Returns whether all files of a package are there, as they should be."""
    for name, digest in package.files.values():
        try:
            content = (folder / name).read_bytes()
        except OSError:
            return False
        if hashlib.sha256(content).hexdigest() != digest:
            return False
    return True
