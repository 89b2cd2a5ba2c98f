"""Pages of the reference name what the code has, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import shoal
from shoal.engine.transport.messages.server_to_controller import REPORTS
from shoal.plan.variables import NAMES
from shoal.runs.event_fields import KINDS
from shoal.runs.events import EXCHANGE_FIELDS, VERSION

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shoal"
REFERENCE = ROOT / "docs" / "reference"


@cache
def trees() -> dict[Path, ast.Module]:
    """The syntax trees of the package."""
    return {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def nodes() -> Iterator[ast.AST]:
    for tree in trees().values():
        yield from ast.walk(tree)


# ------------------------------------------------------------------- variables

VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
NO_VARIABLE = re.compile(
    r"(CAPABILITY|CREATE|DELETE|DO|LOAD|PCI|PYTHON_VERSION|ROLLBACK|TCP|UPDATE)_\w+"
    r"|BATCH_SIZE|COMPILATION_CACHE|SPT_NOENV|SHOAL_LAUNCH_|TERM_MATCH"
)
"""Words that look like variables: states of AWS, socket options, names in code."""


def variables_of_the_code() -> set[str]:
    """Names of variables in literals, and all that begin with SHOAL_."""
    found = {f"SHOAL_{name.upper()}" for name in NAMES}
    for node in nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} if VARIABLE.fullmatch(node.value) else set()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get":
            [*names] = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
            found |= {name for name in names if isinstance(name, str)}
    for path in SOURCE.rglob("*"):
        if path.suffix in (".py", ".sh", ".yaml", ".html", ".js"):
            found |= set(re.findall(r"\bSHOAL_[A-Z_]+", path.read_text()))
    return {name for name in found if not NO_VARIABLE.fullmatch(name)}


def test_the_page_of_settings_has_every_variable():
    page = (REFERENCE / "settings.md").read_text()
    missing = [n for n in variables_of_the_code() if not re.search(rf"\b{n}\b", page)]
    assert not missing, "describe them in docs/reference/settings.md"


READ_BY_LIBRARIES = {
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SHARED_CREDENTIALS_FILE",
    "GLOO_SOCKET_IFNAME", "OMPI_MCA", "PRTE_MCA", "PYSPARK_PYTHON",
}  # fmt: skip


def test_the_page_of_settings_has_no_other_variable():
    page = (REFERENCE / "settings.md").read_text()
    code = re.findall(r"`([^`]+)`", page)
    named = {name for text in code for name in VARIABLE.findall(text)}
    assert named - variables_of_the_code() - READ_BY_LIBRARIES == set()


# ---------------------------------------------------------------------- events

HANDLED = {
    "alone", "broken", "center", "data_state", "epoch", "failed", "joined", "leads",
    "left", "optimizer", "pong", "ready", "records", "restart", "snapshot",
    "standby_called", "standby_left", "unordered",
}  # fmt: skip
"""Reports that the controller handles, and does not pass on as events."""


def kinds_of_the_code() -> set[str]:
    """Kinds of events that are recorded."""
    found = {"server_lost", "rolling_back"}  # by `Controller._replace_server`
    for node in nodes():
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("event", "on_event", "_tell") and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                is_stamp = isinstance(key, ast.Constant) and key.value == "v"
                if is_stamp and ast.unparse(value) == "VERSION":
                    found |= set(re.findall(r"'kind': '(\w+)'", ast.unparse(node)))
    return found | (REPORTS.keys() - HANDLED)


def test_the_page_of_run_folders_has_every_kind_of_event():
    page = (REFERENCE / "run-folder.md").read_text()
    part = page.partition("## Kinds")[2]
    first_cells = re.findall(r"(?m)^\| (`[^|]+) \|", part)
    named = {word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)}
    kinds = kinds_of_the_code() | set(KINDS)
    assert not kinds - named - {"exchanges"}, "describe them in run-folder.md"
    columns = set(EXCHANGE_FIELDS)
    assert named - columns <= kinds, "no such event"
    assert columns <= named
    assert "`exchanges`" in part


def test_the_page_of_run_folders_names_the_version():
    assert f"describes version {VERSION} " in (REFERENCE / "run-folder.md").read_text()


# ---------------------------------------------------------------------- parity


def test_tests_that_pages_name_are_there():
    """Pages show what they claim by tests: `tests/file.py`, and names in it."""
    missing: list[str] = []
    for page in (REFERENCE / "parity.md", *REFERENCE.parent.rglob("how-to/**/*.md")):
        text = page.read_text()
        for path, _, name in re.findall(r"(tests/[\w/]+\.py)(::(\w+))?", text):
            file = ROOT / path
            if not file.is_file() or (name and f"def {name}(" not in file.read_text()):
                missing.append(f"{page.name}: {path} {name}")
    assert not missing


@pytest.mark.parametrize("page", ["parity.md"])
def test_every_line_of_parity_is_shown_or_says_that_it_is_not(page: str):
    lines = (REFERENCE / page).read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "|---" not in line]
    assert len(rows) > 80
    heads = ("| They had |", "| They have |")
    bad = [
        row
        for row in rows
        if not row.startswith(heads)
        and not re.search(r"tests/|examples/|benchmarks/|\*\*", row)
    ]
    assert not bad


# ----------------------------------------------------------- names and commands


def test_every_public_name_has_a_page():
    """Their content is compared by `make generated`."""
    pages = {path.stem for path in (REFERENCE / "python").rglob("*.md")}
    with_one_page = {"errors", "strategies"}
    modules = {"clusters", "data", "spark", "testing"}
    names = set(shoal.__all__) - with_one_page - modules
    for module in (*modules, "easydist"):
        names |= set(import_module(f"shoal.{module}").__all__)
    assert not names - pages, "make generate"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = (str(p.relative_to(ROOT / "docs")) for p in REFERENCE.rglob("*.md"))
    missing = [page for page in pages if f": {page}\n" not in navigation]
    assert not missing, "make generate, or add them to mkdocs.yml"


ENTRY = re.compile(r"    [\w*., ]+: ?\S?")


def odd_entries(docstring: str) -> list[str]:
    """Lines of Args, Raises and Attributes that begin no entry and continue none."""
    found: list[str] = []
    section = ""
    for line in docstring.splitlines():
        head = re.fullmatch(r"(\w+):", line)
        if head or (line and not line.startswith(" ")):
            section = head[1] if head else ""
        is_entry = re.match(r"    \S", line) and section in (
            "Args", "Raises", "Attributes"
        )  # fmt: skip
        if is_entry and not ENTRY.match(line):
            found.append(line)
    return found


def test_tables_of_arguments_have_whole_entries():
    """A line that continues an entry is indented, or the site drops it."""
    bad = {
        f"{path.relative_to(ROOT)}:{node.name}": odd
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if (odd := odd_entries(ast.get_docstring(node) or ""))
    }
    assert not bad


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Does.\n\nArgs:\n    x: Inputs,\n    and more.", 1),
        ("Does.\n\nArgs:\n    x: Inputs,\n        and more.", 0),
        ("Does.\n\nRaises:\n    A, B: Why,\n        and more.\n\nExample:\n    x", 0),
    ],
)
def test_odd_entries_are_found(text: str, count: int):
    assert len(odd_entries(text)) == count
