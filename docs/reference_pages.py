"""Pages of the reference: one for each public name, and one for each command.

`make generate` writes them, and `make generated` fails when one is out of date. Text
below the line `BY_HAND` of a page is written by hand, and stays.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from argument_ranges import arguments, descriptions
from generate import command_lines, first_line

DOCS = Path(__file__).parent
BY_HAND = "\n<!-- Written by hand from here on. -->\n"

FIRST = "0.1.0"
SINCE: dict[str, str] = {}
"""Version that brought a name or a command, where it is not `FIRST`."""

OTHER_PAGES = {
    "shoal.errors": "reference/errors.md",
    "shoal.strategies": "reference/strategies.md",
}
"""Public modules whose names have one page."""

SPARK = "../../../how-to/spark.md#dataframes"

MODULES = ("clusters", "data", "spark", "easydist", "testing")
"""Public modules whose names have a page each."""

RESULTS = {
    "Plan": "shoal.plan",
    "Comparison": "shoal.training.comparison",
    "Run": "shoal.runs.base",
    "RunSummary": "shoal.runs.summary",
}
"""What public functions return, and where it is defined."""


FIELDS = {"Plan": "shoal.plan.decisions.Decisions"}
"""Classes that have the fields of what is returned."""

MEMBERS = {
    "Run": "[report, summary, seconds, lost_events, log_path]",
    "RunSummary": "[]",
}
"""Members that are for users, where others are not."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A generated page.

    Args:
        path: Path in the docs.
        title: Title, and the entry in the navigation.
        text: All but what is written by hand.
    """

    path: str
    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Name:
    """A public name: how it is imported, and what it is."""

    module: str
    word: str
    found: Any

    @property
    def title(self) -> str:
        """Its name as it is imported, the title of its page."""
        return f"{self.module}.{self.word}"

    @property
    def path(self) -> str:
        """Path of its page in the docs."""
        folder = self.module.removeprefix("shoal").strip(".").replace(".", "/")
        if self.word in RESULTS:
            folder = "results"
        return f"reference/python/{f'{folder}/' if folder else ''}{self.word}.md"

    @property
    def is_alias(self) -> bool:
        """Whether it is another name of a class."""
        return getattr(self.found, "__name__", self.word) != self.word

    @property
    def is_value(self) -> bool:
        """Whether it is neither a class nor a function."""
        return not hasattr(self.found, "__qualname__")

    @property
    def summary(self) -> str:
        """One sentence: what it is for."""
        if self.is_alias:
            return f"Another name of `{self.found.__name__}`."
        if self.is_value:
            return f"Values of `{self.title}`."
        return first_line(self.found.__doc__)


def public_names() -> dict[str, list[Name]]:
    """Returns the names that have a page, by group."""
    shoal = import_module("shoal")
    modules = {f"shoal.{name}" for name in MODULES} | OTHER_PAGES.keys()
    own = [n for n in shoal.__all__ if f"shoal.{n}" not in modules]
    groups = {
        "shoal": [Name(module="shoal", word=n, found=getattr(shoal, n)) for n in own]
    }
    for module in MODULES:
        where = import_module(f"shoal.{module}")
        groups[f"shoal.{module}"] = [
            Name(module=f"shoal.{module}", word=n, found=getattr(where, n))
            for n in where.__all__
        ]  # fmt: skip
    groups["Results"] = [
        Name(module=module, word=word, found=getattr(import_module(module), word))
        for word, module in RESULTS.items()
    ]
    return groups


def names_table(group: str) -> str:
    """Returns one row for each name of a group, with a link from `reference/api.md`."""
    rows = ["", "| Name | What it is for |", "|---|---|"]
    for name in public_names()[group]:
        link = name.path.removeprefix("reference/")
        rows.append(f"| [`{name.title}`]({link}) | {name.summary} |")
    return "\n".join(rows) + "\n\n"


def commands_table() -> str:
    """Returns one row for each command, with a link from `reference/cli.md`."""
    rows = ["", "| Command | What it does |", "|---|---|"]
    for name, command in commands():
        anchor = name.replace(" ", "-")
        link = f"[`{name}`](cli/{anchor}.md){{ #{anchor} }}"
        rows.append(f"| {link} | {first_line(command.help)} |")
    return "\n".join(rows) + "\n\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Yields each command with its whole name, groups before what is in them."""
    from typer.main import get_command

    from shoal.cli.app import app

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        children = dict(getattr(command, "commands", {}))
        for child in sorted(children):
            if not children[child].hidden:
                yield from walk(f"{name} {child}", children[child])

    yield from walk("shoal", get_command(app))


def pages() -> list[Page]:
    """Returns all generated pages."""
    named = [_name_page(name) for names in public_names().values() for name in names]
    return [*named, *(_command_page(name, found) for name, found in commands())]


def navigation() -> str:
    """Returns the entries of the generated pages for `mkdocs.yml`."""
    lines = ["- Python:", "    - Overview: reference/api.md"]
    for group, names in public_names().items():
        inner = "    "
        if group != "shoal":
            lines.append(f"    - {group}:")
            inner = "        "
        lines += [f"{inner}- {name.title}: {name.path}" for name in names]
    lines += ["- Command line:", "    - Overview: reference/cli.md"]
    lines += [
        f"    - {name}: reference/cli/{name.replace(' ', '-')}.md"
        for name, _ in commands()
    ]
    return "\n".join(lines) + "\n"


def write(*, is_check: bool) -> list[str]:
    """Writes all pages and removes those of names that are gone.

    Args:
        is_check: Write nothing.

    Returns:
        Paths of the pages that were, or would be, changed.
    """
    wanted = {DOCS / page.path: page for page in pages()}
    folders = [DOCS / "reference" / "python", DOCS / "reference" / "cli"]
    stale = {
        path for folder in folders for path in folder.rglob("*.md")
    } - wanted.keys()
    changed = [str(path.relative_to(DOCS)) for path in sorted(stale)]
    for path, page in wanted.items():
        before = path.read_text() if path.exists() else ""
        _, mark, by_hand = before.partition(BY_HAND)
        text = page.text + mark + by_hand
        if text == before:
            continue
        changed.append(page.path)
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if not is_check:
        for path in stale:
            path.unlink()
    return changed


def _name_page(name: Name) -> Page:
    up = "../" * (name.path.count("/") - 1)
    lines = [
        *_head(name.title, name.summary),
        f"Since {SINCE.get(name.title, FIRST)}. [All names]({up}api.md).",
        "",
    ]
    if name.is_alias:
        lines += [f"{name.summary[:-1]}: see [its page]({name.found.__name__}.md).", ""]
        return Page(path=name.path, title=name.title, text="\n".join(lines))
    if inspect.isclass(name.found) and "__signature__" in vars(name.found):
        lines += _call(name)
    elif name.is_value:
        module = import_module(name.module)
        path = f"{_home_of(module, name.word)}.{name.word}"
        lines += _directive(path, "Value")
    else:
        path = f"{name.found.__module__}.{name.found.__qualname__}"
        members = MEMBERS.get(name.word)
        more = [f"members: {members}"] if members and name.word in RESULTS else []
        lines += _directive(path, "Signature", *more)
        if name.word in FIELDS:
            lines += _directive(FIELDS[name.word], "Fields")
        lines += _ranges(name)
    return Page(path=name.path, title=name.title, text="\n".join(lines))


def _head(title: str, summary: str) -> list[str]:
    """The lines that begin a page."""
    plain = summary.replace("`", "")
    return [
        "---", f"title: {title}", f"description: {json.dumps(plain)}", "---",
        "<!-- make generate writes this page. -->", "", f"# {title}", "",
    ]  # fmt: skip


def _directive(path: str, heading: str, *more: str) -> list[str]:
    """The lines by which mkdocstrings shows an object."""
    options = [
        f"heading: {heading}",
        f"toc_label: {heading}",
        "heading_level: 2",
        *more,
    ]
    return [f"::: {path}", "    options:", *(f"      {line}" for line in options), ""]


def _ranges(name: Name) -> list[str]:
    """The table of units and ranges, if the docstring gives any."""
    if name.word in RESULTS:
        return []
    strategies = import_module("shoal.strategies").registry.names()
    known = arguments(name.found, strategies=strategies)
    if not known:
        return []
    return [
        "## Units and ranges", "",
        "| Argument | Unit | Range | Default |", "|---|---|---|---|",
        *(f"| {argument.cells}" for argument in known), "",
    ]  # fmt: skip


def _home_of(module: Any, word: str) -> str:
    """The module in which a value that has no name of its own is defined."""
    source = inspect.getsource(module)
    found = re.search(rf"from (\S+) import [^\n(]*\b{word}\b", source)
    return found[1] if found else module.__name__


def _call(name: Name) -> list[str]:
    """The call of a class whose arguments are made when it is: trainers and stages."""
    signature: inspect.Signature = name.found.__signature__
    meanings = _meanings(name.found)
    parts, rows = [], ["| Argument | Default | Meaning |", "|---|---|---|"]
    for each in signature.parameters.values():
        has_default = each.default is not each.empty
        is_rest = each.kind is each.VAR_KEYWORD
        if each.kind is each.KEYWORD_ONLY and "    *," not in parts:
            parts.append("    *,")
        shown = f"={each.default!r}" if has_default else ""
        parts.append(f"    {'**' if is_rest else ''}{each.name}{shown},")
        default = f"`{each.default!r}`" if has_default else ""
        rows.append(f"| `{each.name}` | {default} | {meanings.get(each.name, '')} |")
    path = f"{name.found.__module__}.{name.found.__qualname__}"
    lines = [
        "## Call",
        "",
        "```text",
        f"{name.word}(",
        *parts,
        ")",
        "```",
        "",
        *rows,
        "",
    ]
    if name.found.__module__ == "shoal.spark.trainers":
        lines += [
            f"`model` is a compiled Keras model, `df` [a DataFrame]({SPARK}):", "",
            "<!-- not run: tests/spark/test_trainers.py trains on a session -->",
            "```python", f"from shoal.spark import {name.word}", "",
            f'trainer = {name.word}(model, "adam", "sparse_categorical_crossentropy")',
            "trained = trainer.train(df)", "```", "",
            "[Trainer](Trainer.md) has the methods and attributes of all trainers.", "",
        ]  # fmt: skip
    return [*lines, *_directive(path, "Class", "separate_signature: false")]


def _meanings(found: Any) -> dict[str, str]:
    """The meaning of each argument, from a table of params or of `Trainer`'s docs."""
    table = getattr(found, "table", None)
    if isinstance(table, Mapping):
        return {word: first_line(entry.doc) for word, entry in table.items()}
    from shoal.spark.trainer import Trainer

    return descriptions(Trainer.__doc__)


def _command_page(name: str, command: Any) -> Page:
    children = sorted(
        (child, found)
        for child, found in dict(getattr(command, "commands", {})).items()
        if not found.hidden
    )
    lines = [
        *_head(name, first_line(command.help)),
        *command_lines(command, name),
    ]
    if children:
        lines += ["## Commands", "", "| Command | What it does |", "|---|---|"]
        base = name.replace(" ", "-")
        lines += [
            f"| [`{name} {child}`]({base}-{child}.md) | {first_line(found.help)} |"
            for child, found in children
        ]
        lines.append("")
    lines += [f"Since {SINCE.get(name, FIRST)}. [All commands](../cli.md).", ""]
    path = f"reference/cli/{name.replace(' ', '-')}.md"
    return Page(path=path, title=name, text="\n".join(lines))


def main() -> None:
    """Writes the pages, or with --check compares them."""
    is_check = "--check" in sys.argv
    changed = write(is_check=is_check)
    if changed and is_check:
        sys.exit("Out of date: " + ", ".join(changed))


if __name__ == "__main__":
    main()
