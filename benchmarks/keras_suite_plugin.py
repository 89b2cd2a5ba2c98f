"""The part of `keras_suite` that runs in pytest: replaces `fit`, keeps the results.

The trainer of the backend is patched, whose `fit` every `keras.Model` inherits. One
session of workers serves all tests; a test that ends it is given another.
"""

from __future__ import annotations

import ast
import json
import os
import warnings
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import keras
import pytest

import shoal

_fits: Counter[str] = Counter()
_results: dict[str, tuple[str, int, str]] = {}
_session: list[shoal.Session] = []
_now: list[str] = [""]

FIT_ARGUMENTS = (
    "x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split",
    "validation_data", "shuffle", "class_weight", "sample_weight", "initial_epoch",
    "steps_per_epoch", "validation_steps", "validation_batch_size", "validation_freq",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Replaces `fit` for the whole run."""
    config.addinivalue_line("markers", "requires_trainable_backend: as in Keras")
    config.addinivalue_line("markers", "multi_device: as in Keras")
    trainer, plain = trainer_class(), trainer_class().fit
    is_plain = os.environ.get("SHOAL_SUITE_PLAIN") == "1"

    def fit(self: Any, *args: Any, **given: Any) -> Any:
        _fits[_now[0]] += 1
        if is_plain:
            return plain(self, *args, **given)
        return _shoal_fit(
            self, {**dict(zip(FIT_ARGUMENTS, args, strict=False)), **given}
        )

    trainer.fit = fit


def _shoal_fit(model: Any, given: dict[str, Any]) -> Any:
    """Trains as `shoal.fit` does, on workers that are kept."""
    cluster = os.environ["SHOAL_SUITE_CLUSTER"]
    strategy = os.environ["SHOAL_SUITE_STRATEGY"]
    ours = {
        "strategy": strategy,
        "cluster": cluster,
        "workers": 1
        if strategy == "single"
        else int(os.environ["SHOAL_SUITE_WORKERS"]),
        "run": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", shoal.errors.ShoalWarning)
        if cluster == "inline":
            return shoal.fit(model, **given, **ours)
        if not _session:
            _session.append(shoal.Session())
        return _session[0].fit(model, **given, **ours)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Skips tests that never call `fit`, according to their code."""
    kept = [item for item in items if item.name.startswith(_fitting(item.path))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@cache
def _fitting(path: Path) -> tuple[str, ...]:
    """Names of the functions of a file that call `fit`, directly or through others."""
    tree = ast.parse(path.read_text())
    calls = {
        node.name: {
            found.func.attr if isinstance(found.func, ast.Attribute) else found.func.id
            for found in ast.walk(node)
            if isinstance(found, ast.Call)
            and isinstance(found.func, (ast.Attribute, ast.Name))
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    fitting = {"fit"}
    while more := {n for n, used in calls.items() if used & fitting} - fitting:
        fitting |= more
    return tuple(fitting)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Records which test runs."""
    _now[0] = _name(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records the result of a test, and its last line."""
    name = _name(report.nodeid)
    before = _results.get(name, ("passed", 0, ""))
    outcome = before[0] if report.passed else report.outcome
    reason = before[2]
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(crash.message if crash else report.longrepr)[:600]
    _results[name] = (outcome, _fits[name], reason)
    # Kept after each test: one that ends the process costs only itself.
    Path(os.environ["SHOAL_SUITE_OUT"]).write_text(json.dumps(_results))


def pytest_unconfigure() -> None:
    """Ends the workers."""
    while _session:
        _session.pop().close()


def trainer_class() -> Any:
    """Returns the class of Keras that every model inherits `fit` from."""
    return next(base for base in keras.Model.__mro__[1:] if "fit" in vars(base))


def _name(nodeid: str) -> str:
    """A test's name, from the name of its file on."""
    return nodeid.rpartition("/")[2]
