"""Environments of the compared systems, each made when it is first used.

They lie in `.benchmarks/` beside the sources; `make clean` removes them.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.works import CACHE


def _ours(*names: str) -> list[str]:
    """Names with the versions that run here, so that only the system differs."""
    return [f"{name}=={version(name)}" for name in names]


WANTED = {
    "torch": lambda: ["torch==2.13.0", "numpy"],
    "keras": lambda: _ours("keras", "jax", "jaxlib", "numpy"),
    "elephas": lambda: ["elephas==7.3.0", "pyspark==4.0.0", "setuptools<81"],
    "ray": lambda: ["torch==2.13.0", "numpy", "ray[train]==2.60.0"],
}


def python_of(name: str) -> Path:
    """Returns the interpreter of an environment, which is made if need be.

    Args:
        name: Key of `WANTED`, or "ours" for this one.

    Raises:
        SystemExit: pip could not install what it needs.
    """
    if name == "ours":
        compile_shoal()
        return Path(sys.executable)
    place = CACHE / "environments" / name
    python, is_made = place / "bin" / "python", place / "made"
    if is_made.exists():
        return python
    print(f"-- installing {name} into {place}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet"]
    done = subprocess.run([*command, *WANTED[name]()], check=False)
    if done.returncode:
        sys.exit(f"pip could not install {name}; try: {' '.join(command)} ...")
    is_made.touch()
    return python


@cache
def compile_shoal() -> None:
    """Prepares packages as pip does for what it installs."""
    found = find_spec("shoal")
    for folder in (found and found.submodule_search_locations) or ():
        compileall.compile_dir(folder, quiet=1)
