"""Tables of the docs that are read from the code, so that they cannot be wrong.

Pages call these functions in cog comments; `make generate` rewrites the pages and
`make generated`, which CI runs, fails when one is out of date.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from argument_ranges import arguments

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
        rows.append(f"| `{name}` | {first_line(text)} |")
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
            f"| {first_line(found.__doc__)} | {kind} | {defaults} |"
        )
    return "\n".join(rows) + "\n\n"


def strategy_parameters() -> str:
    """Returns one row for each parameter of each built-in strategy."""
    from shoal import strategies

    registry = strategies.registry
    rows = [
        "",
        "| Strategy | Parameter | Unit | Range | Default |",
        "|---|---|---|---|---|",
    ]
    for name in registry.names():
        if registry.source(name) == "shoal":
            known = arguments(registry.load(name), is_whole=True)
            rows += [f"| `{name}` | {argument.cells}" for argument in known]
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


AREAS = {
    "Arguments and plans": ("api", "plan", "registry", "strategies", "backends"),
    "Models and training": ("models", "training", "engine", "launchers", "host"),
    "Data": ("data",),
    "Run folders and checkpoints": ("runs",),
    "Clusters": ("clusters",),
    "Spark": ("spark",),
    "Command line and page": ("cli", "ui", "demo"),
    "Scripts of other frameworks": ("foreign", "easydist"),
}
"""Headings of `error_messages`, and the parts of the package that belong to each."""

LEAST_WORDS = 4


def error_messages() -> str:
    """Returns every message of an error in the code: what happened, and what to do.

    Parts that differ from call to call are shown as an ellipsis.
    """
    found: dict[str, set[tuple[str, str, str]]] = {area: set() for area in AREAS}
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    kinds = _error_classes(trees.values())
    for path, tree in trees.items():
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        area = next((a for a, parts in AREAS.items() if part in parts), None)
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        for call in calls if area else ():
            kind = ast.unparse(call.func).rpartition(".")[2]
            text = " ".join(_text_of(call.args[0]).split()) if call.args else ""
            if kind in kinds and len(re.findall(r"\w{2,}", text)) >= LEAST_WORDS:
                happened, *rest = re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)
                found[area].add((happened, "".join(rest), kind))
    lines = [""]
    for area, rows in found.items():
        lines += [f"## {area}", ""]
        lines += [
            "| What happened | Expected, and what to do | Error |",
            "|---|---|---|",
        ]
        for happened, rest, kind in sorted(rows, key=_letters_first):
            lines.append(f"| {_cell(happened)} | {_cell(rest)} | `{kind}` |")
        lines.append("")
    return "\n".join(lines) + "\n"


def _error_classes(trees: Iterable[ast.Module]) -> set[str]:
    """The names of `ShoalError` and of all classes derived from it."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"ShoalError"}
    while more := {name for name, own in bases.items() if own & found} - found:
        found |= more
    return found


def _letters_first(row: tuple[str, str, str]) -> tuple[str, ...]:
    """The order of messages: by their first words."""
    return re.sub(r"[^a-z ]", "", row[0].lower()).strip(), *row


def _text_of(node: ast.expr) -> str:
    """The text of a literal; an ellipsis for what is computed."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_text_of, values))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _text_of(left) + _text_of(right)
    return "…"


def _cell(text: str) -> str:
    """Plain text for a cell of a table; what stands between backquotes is code."""
    parts = text.replace("|", "\\|").split("`")
    if len(parts) % 2:
        parts[::2] = [re.sub(r"([_*<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def first_line(docstring: str | None) -> str:
    """Returns the first sentence of a docstring, fit for a table cell."""
    text = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def _branch(error: type[Exception], lead: str, child_lead: str) -> Iterator[str]:
    """Yields an exception and, indented, those derived from it."""
    also = [b.__name__ for b in error.__bases__[1:]]
    note = f" (also {', '.join(also)})" if also else ""
    yield f"{lead}{error.__name__}{note}: {first_line(error.__doc__)}"
    children = error.__subclasses__()
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        elbow, bar = ("└── ", "    ") if is_last else ("├── ", "│   ")
        yield from _branch(child, child_lead + elbow, child_lead + bar)


def command_lines(command: Any, name: str) -> Iterator[str]:
    """Yields what a command does, its usage, and a table of its options."""
    children = dict(getattr(command, "commands", {}))
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    arguments = "".join(
        f" {p.name.upper()}" if p.required else f" [{p.name.upper()}]"
        for p in shown
        if p.param_type_name == "argument"
    )
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield f"```text\n{name}{' COMMAND' if children else ''}{arguments} [OPTIONS]\n```\n"
    rows = [_parameter_row(p) for p in shown if p.name != "help"]
    if rows:
        yield "| Argument or option | Meaning | Default |\n|---|---|---|"
        yield "\n".join(rows) + "\n"


def _parameter_row(parameter: Any) -> str:
    """Returns the table row of an argument or option."""
    is_option = parameter.param_type_name == "option"
    spelled = [*parameter.opts, *parameter.secondary_opts]
    names = spelled if is_option else [parameter.name.upper()]
    meaning = first_line(getattr(parameter, "help", None))
    value = parameter.default
    is_plain = isinstance(value, (bool, int, float, str)) and value != ""
    shown = f"`{value}`" if is_plain else ""
    return f"| {', '.join(f'`{n}`' for n in names)} | {meaning} | {shown} |"
