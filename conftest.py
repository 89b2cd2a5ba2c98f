"""For all tests and doctests: backend, Ctrl-C, files that cannot be imported here."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("MPLBACKEND", "Agg")

# Here, so that there is one such store in a process, whoever asks for it first.
pytest_plugins = ["tests.s3", "tests.ray_nodes"]

# What a file of the package needs beyond the core. Collecting doctests imports
# it, which must not fail where that extra is not installed.
_NEEDS = {
    "src/shoal/backends/jax*.py": "jax",
    "src/shoal/backends/tensorflow.py": "tensorflow",
    "src/shoal/backends/torch*.py": "torch",
    "src/shoal/clusters/aws.py": "boto3",
    "src/shoal/data/tensorflow.py": "tensorflow",
    "src/shoal/data/torch.py": "torch",
    "src/shoal/launchers/ray.py": "ray",
    "src/shoal/launchers/spark.py": "pyspark",
    "src/shoal/spark/*": "pyspark",
    "src/shoal/ui/*": "starlette",
}

collect_ignore_glob = [
    *(path for path, package in _NEEDS.items() if find_spec(package) is None),
    "src/shoal/__main__.py",  # importing it runs the command line
]


@pytest.fixture(scope="session", autouse=True)
def _can_be_interrupted() -> None:
    """A shell that starts tests in the background lets them ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _doctest_in_empty_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
):
    """Doctests that write files write them into a folder of their own."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("doctest"))
    yield
    os.chdir(before)
