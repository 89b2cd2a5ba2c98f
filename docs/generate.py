"""Tables of the docs that are read from the code, so that they cannot be wrong.

Pages call these functions in cog comments; `make generate` rewrites the pages and
`make generated`, which CI runs, fails when one is out of date.
"""

from __future__ import annotations

import ast
import inspect
import json
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "src" / "shoal"


def house_map() -> str:
    """Returns one row for each file and folder of the package: what it decides."""
    rows = ["", "| Module | What it is for |", "|---|---|"]
    for path in sorted(PACKAGE.iterdir(), key=lambda p: (p.is_file(), p.name)):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix != ".py" or not source.is_file() or path.stem.startswith("_"):
            continue
        text = ast.get_docstring(ast.parse(source.read_text())) or ""
        name = f"{path.name}/" if path.is_dir() else path.name
        rows.append(f"| `{name}` | {_first_line(text)} |")
    return "\n".join(rows) + "\n\n"


def strategies_table() -> str:
    """Returns one row for each built-in strategy, from its class."""
    from shoal import strategies

    registry = strategies.registry
    rows = [
        "",
        "| Name | Class | What it is for | Kind | Defaults |",
        "|---|---|---|---|---|",
    ]
    for name in registry.names():
        # A plug-in that happens to be installed here is no part of the docs.
        if registry.source(name) != "shoal":
            continue
        found = registry.load(name)
        kind = "on arrival" if found.is_asynchronous else "rounds"
        defaults = ", ".join(f"{f.name}={f.default}" for f in fields(found))
        rows.append(
            f"| `{name}` | [`{found.__name__}`][{found.__module__}.{found.__name__}] "
            f"| {_first_line(found.__doc__)} | {kind} | {defaults} |"
        )
    return "\n".join(rows) + "\n\n"


def strategy_classes() -> str:
    """Returns the directives that show the docstring of each built-in strategy."""
    from shoal import strategies

    registry = strategies.registry
    names = [n for n in registry.names() if registry.source(n) == "shoal"]
    paths = [f"{c.__module__}.{c.__name__}" for c in map(registry.load, names)]
    return "\n" + "\n\n".join(f"::: {path}" for path in paths) + "\n\n"


def keras_suite() -> str:
    """Returns counts of Keras' own tests, and each failure with why.

    From `docs/reference/keras-suite.json`, which `make keras-suite` writes, and
    from `benchmarks/keras_suite_expected.toml`.

    Raises:
        ValueError: A test fails for no reason that is listed.
    """
    here = Path(__file__).parent
    runs = json.loads((here / "reference" / "keras-suite.json").read_text())
    text = (here.parent / "benchmarks" / "keras_suite_expected.toml").read_text()
    entries = tomllib.loads(text)["expected"]
    rows = [
        "",
        "| Keras | Backend | Strategy | Workers | Files | Tests | Pass | Fail |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found: list[dict[str, int]] = [{} for _ in entries]
    for run in runs:
        failed = [name for name, test in run["tests"].items() if test[0] != "passed"]
        files = sorted({name.partition("::")[0] for name in run["tests"]})
        which = f"`{files[0]}`" if len(files) == 1 else f"{len(files)} files"
        tests = len(run["tests"])
        rows.append(
            f"| {run['keras']} | {run['backend']} | `{run['strategy']}` "
            f"| {run['workers']} | {which} | {tests} | {tests - len(failed)} "
            f"| {len(failed)} |"
        )
        label = f"{run['backend']} `{run['strategy']}`"
        for name in failed:
            number = _reason_of(name, run, entries)
            found[number][label] = found[number].get(label, 0) + 1
    rows += ["", "Why tests fail:", "", "| Tests | Failures | Why |", "|---|---|---|"]
    for entry, counts in zip(entries, found, strict=True):
        names = ", ".join(f"`{test.rpartition('::')[2]}`" for test in entry["tests"])
        where = ", ".join(f"{label} {count}" for label, count in counts.items())
        if where:
            rows.append(f"| {names} | {where} | {entry['why']} |")
    return "\n".join(rows) + "\n\n"


def _reason_of(name: str, run: dict[str, Any], entries: list[dict[str, Any]]) -> int:
    """The first entry that says why a test of a run fails."""
    for number, entry in enumerate(entries):
        backends = entry.get("backends", [run["backend"]])
        strategies = entry.get("strategies", [run["strategy"]])
        applies = run["backend"] in backends and run["strategy"] in strategies
        if applies and any(fnmatchcase(name, pattern) for pattern in entry["tests"]):
            return number
    raise ValueError(f"{name} fails with {run['backend']}, {run['strategy']}: why?")


def exception_tree() -> str:
    """Returns the exceptions as a tree, read from the classes."""
    from shoal.errors import ShoalError

    return "\n```text\n" + "\n".join(_branch(ShoalError, "", "")) + "\n```\n\n"


def command_reference() -> str:
    """Returns usage, arguments and options of every command."""
    from typer.main import get_command

    from shoal.cli.app import app

    return "\n" + "\n".join(_command_lines(get_command(app), "shoal")) + "\n\n"


def _first_line(docstring: str | None) -> str:
    """Returns the first sentence of a docstring, fit for a table cell."""
    text = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def _branch(error: type[Exception], lead: str, child_lead: str) -> Iterator[str]:
    """Yields an exception and, indented, those derived from it."""
    also = [b.__name__ for b in error.__bases__[1:]]
    note = f" (also {', '.join(also)})" if also else ""
    yield f"{lead}{error.__name__}{note}: {_first_line(error.__doc__)}"
    children = error.__subclasses__()
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        elbow, bar = ("└── ", "    ") if is_last else ("├── ", "│   ")
        yield from _branch(child, child_lead + elbow, child_lead + bar)


def _command_lines(command: Any, name: str) -> Iterator[str]:
    """Yields the section of a command, then those of its sub-commands."""
    children = dict(getattr(command, "commands", {}))
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    arguments = "".join(
        f" {p.name.upper()}" if p.required else f" [{p.name.upper()}]"
        for p in shown
        if p.param_type_name == "argument"
    )
    yield f"## `{name}`\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield f"```text\n{name}{' COMMAND' if children else ''}{arguments} [OPTIONS]\n```\n"
    rows = [_parameter_row(p) for p in shown if p.name != "help"]
    if rows:
        yield "| Argument or option | Meaning | Default |\n|---|---|---|"
        yield "\n".join(rows) + "\n"
    for child in sorted(children):
        if not children[child].hidden:
            yield from _command_lines(children[child], f"{name} {child}")


def _parameter_row(parameter: Any) -> str:
    """Returns the table row of an argument or option."""
    is_option = parameter.param_type_name == "option"
    spelled = [*parameter.opts, *parameter.secondary_opts]
    names = spelled if is_option else [parameter.name.upper()]
    meaning = _first_line(getattr(parameter, "help", None))
    value = parameter.default
    is_plain = isinstance(value, (bool, int, float, str)) and value != ""
    shown = f"`{value}`" if is_plain else ""
    return f"| {', '.join(f'`{n}`' for n in names)} | {meaning} | {shown} |"
