"""The rules of the house that no other tool keeps."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from benchmarks import bench
from tests.markdown import blocks_to_run, script_of

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FORBIDDEN_WORDS = (
    "common", "connector", "handler", "helpers", "manager", "misc", "utils"
)  # fmt: skip
HEAVY = (
    "boto3", "jax", "keras", "matplotlib", "pandas", "pyspark", "ray",
    "tensorboard", "tensorflow", "torch",
)  # fmt: skip


def run_python(code: str) -> str:
    """Runs code in a clean interpreter and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def project_files() -> list[Path]:
    """Returns the files under version control, and those about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("needs a git checkout")
    return [ROOT / f for f in listed.stdout.split("\0") if f and (ROOT / f).is_file()]


WRITTEN_BY_HAND = {
    "cli/steps.py": "rich draws it; names and steps are made fit before",
    "cli/tables.py": "rich draws it; cells are made fit before",
    "clusters/aws/node_agent.py": "the log of a service, on a host without Shoal",
    "clusters/host_agent/answering.py": "an answer in JSON, through a pipe",
    "demo/main.py": "rich draws it, from names in this package",
    "demo/victim.py": "through a pipe",
    "engine/worker/native_allreduce.py": "the log of a worker",
    "engine/worker/shared_memory_allreduce.py": "the log of a worker",
    "engine/worker/main.py": "the log of a worker",
    "terminal.py": "what the others call",
}
"""Files that write to standard output or error past `shoal.terminal`, and why."""


def writes_by_hand(node: ast.AST) -> bool:
    """Tells whether a call writes to a terminal as it is."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name in (
        "print", "Console", "rich.print", "typer.echo", "typer.secho", "click.echo",
        "sys.stdout.write", "sys.stderr.write", "stream.write", "out.write",
    )  # fmt: skip


def test_a_terminal_is_written_to_in_one_place():
    """What comes from elsewhere would be obeyed; `shoal.terminal.say` shows it."""
    source = ROOT / "src" / "shoal"
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if writes_by_hand(node)
    }
    assert found - WRITTEN_BY_HAND.keys() == set(), "use `shoal.terminal.say`"
    assert WRITTEN_BY_HAND.keys() - found == set(), "no such line any more"


WORLD = {"time", "threading"}
WORLDLY_CALLS = {"Link", "ThreadPoolExecutor", "create_connection"}
PAST_THE_ENVIRONMENT = {
    "engine/environment.py": "what the others are handed",
    "engine/transport/segments.py": "a thread that computes, and waits for nothing",
}
"""Files of the engine that ask for time, threads or connections themselves, and why."""


def asks_the_world(node: ast.AST) -> bool:
    """Tells whether code takes time, a thread or a connection from the machine."""
    match node:
        case ast.Import(names=names):
            return any(name.name in WORLD for name in names)
        case ast.ImportFrom(module=module):
            return module in WORLD
        case ast.Call(func=function):
            return last_word(function) in WORLDLY_CALLS
    return False


def test_the_engine_takes_time_threads_and_connections_of_its_environment():
    """So that a simulation needs no patching."""
    source = ROOT / "src" / "shoal"
    found = {
        str(path.relative_to(source))
        for path in (source / "engine").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if asks_the_world(node)
    }
    assert found - PAST_THE_ENVIRONMENT.keys() == set(), "see `Environment`"
    assert PAST_THE_ENVIRONMENT.keys() - found == set(), "no such line any more"


NAMES = {
    "entry", "file", "folder", "host", "id", "job", "key", "kind", "label", "mark",
    "member", "name", "node", "path", "place", "rank", "reference", "run", "said",
    "script", "stem", "text", "title",
}  # fmt: skip
UNPACKING = {
    "download", "extract", "extractall", "get_file", "joinpath", "unpack_archive",
    "with_name",
}  # fmt: skip
JOINED_BY_HAND = {
    "clusters/aws/joining.py": "names in this file",
    "clusters/aws/node_calls.py": "names in clusters/aws/node_agent.py",
    "backends/compile_cache.py": "checksums, and names of the folder's own listing",
    "clusters/remote_call.py": "names in this file",
    "clusters/doctor.py": "names in this file",
    "clusters/gpus.py": "of /proc and /sys",
    "clusters/local.py": "of /proc and /sys",
    "clusters/host_agent/environments.py": "runs on hosts, with names of the caller",
    "clusters/host_agent/jobs.py": "runs on hosts; `job_folder` checks the id",
    "clusters/host_agent/nodes.py": "runs on hosts, with names of the caller",
    "clusters/host_agent/probing.py": "runs on hosts, with names of the caller",
    "clusters/host_agent/processes.py": "of /proc",
    "data/located.py": "names in this file",
    "data/spool.py": "two numbers",
    "easydist/experiment.py": "numbers, and models of the run's own folder",
    "engine/worker/native_allreduce.py": "two numbers",
    "engine/worker/shared_memory_allreduce.py": "numbers; others pass `one_inside`",
    "foreign/running.py": "names in foreign/job.py, with a number",
    "host/locks.py": "beside a path that is given",
    "host/processes.py": "of /proc",
    "host/scratch.py": "names in this file",
    "launchers/ray_job_actor.py": "an archive of who commands it, by tar's own filter",
    "paths.py": "what the others call",
    "runs/checkpoint_files.py": "beside a path that is checked",
    "runs/folder.py": "beside a path that is checked",
    "runs/outlines.py": "a checksum",
    "runs/profiles.py": "beside a file of its own",
    "runs/store.py": "names in this file, and numbers",
    "training/remote_fit.py": "names in clusters/remote_jobs.py",
    "ui/app.py": "names in ui/site.py",
    "ui/packages.py": "names in this file",
    "ui/starting.py": "a checksum",
}
"""Files that join names to folders, and where the names come from."""


def last_word(node: ast.AST) -> str:
    """The last name of an expression such as `self.job.id` or `request["id"]`."""
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word):
            return word
        case ast.Subscript(slice=ast.Constant(value=str(word))):
            return word
        case ast.Call(func=function):
            return last_word(function)
    return ""


def joins_names(node: ast.AST) -> bool:
    """Tells whether an expression makes a path of something that may be a name."""
    match node:
        case ast.BinOp(op=ast.Div(), right=right):
            return isinstance(right, ast.JoinedStr) or last_word(right) in NAMES
        case ast.Call(func=function, args=args):
            known = all(isinstance(word, ast.Constant) for word in args[1:])
            is_join = last_word(function) in ("Path", "PurePosixPath")
            is_join |= ast.unparse(function) == "os.path.join"
            return last_word(function) in UNPACKING or (is_join and not known)
    return False


def test_names_become_paths_in_one_place():
    """Names of storage, archives, workers and hosts go through `shoal.paths`."""
    source = ROOT / "src" / "shoal"
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if joins_names(node)
    }
    assert found - JOINED_BY_HAND.keys() == set(), "see `shoal.paths.inside`"
    assert JOINED_BY_HAND.keys() - found == set(), "no such line any more"


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("folder / name", True), ("folder / request['id']", True),
        ("folder / f'{name}.log'", True), ("Path(folder, name)", True),
        ("os.path.join(folder, name)", True), ("archive.extractall(folder)", True),
        ("self.target / member.name", True), ("Path(folder, 'log')", False),
        ("folder / 'log'", False), ("inside(folder, name)", False), ("a / b", False),
    ],
)  # fmt: skip
def test_paths_made_of_names_are_found(code: str, is_found: bool):
    assert any(map(joins_names, ast.walk(ast.parse(code)))) is is_found


def test_public_names_are_sorted_and_few():
    assert shoal.__all__ == sorted(shoal.__all__)
    assert len(shoal.__all__) <= 14


def test_every_public_name_is_there_and_documented():
    for name in shoal.__all__:
        assert getattr(shoal, name).__doc__, name


def test_nothing_else_is_exposed():
    code = (
        "import shoal, types\n"
        "[getattr(shoal, name) for name in shoal.__all__]\n"
        "of_ours = lambda v: isinstance(v, types.ModuleType) and "
        "v.__name__.startswith('shoal.')\n"
        "print(*sorted(n for n, v in vars(shoal).items() if not n.startswith('_') "
        "and (n in shoal.__all__ or not of_ours(v))))"
    )
    extras = {
        "annotations",
        "import_module",
        "sys",
        "Any",
        "ModuleType",
        "TYPE_CHECKING",
    }
    assert sorted({*run_python(code).split()} - extras) == shoal.__all__
    assert sorted(n for n in dir(shoal) if not n.startswith("_")) == shoal.__all__


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        shoal.fitt  # noqa: B018


def test_import_is_free():
    code = "import shoal, sys; print(*sorted(sys.modules))"
    loaded = {name.split(".")[0] for name in run_python(code).split()}
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("module", ["plan", "strategies", "errors", "data"])
def test_light_modules_load_no_framework(module: str):
    code = f"import shoal.{module}, sys; print(*sorted(sys.modules))"
    loaded = {name.split(".")[0] for name in run_python(code).split()}
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "first",
    [
        "import shoal.plan",
        "from shoal.plan import Plan",
        "import importlib; importlib.import_module('shoal.plan')",
        "import shoal.api",
        "import shoal; shoal.plan; import shoal.plan",
        "import shoal.plan, importlib as i, sys; i.reload(sys.modules['shoal.plan'])",
    ],
)
def test_plan_is_the_function_whatever_was_imported(first: str):
    code = (
        f"{first}\n"
        "import shoal\n"
        "from shoal import plan\n"
        "from shoal.plan import Plan\n"
        "assert shoal.plan is plan\n"
        "assert callable(plan) and not isinstance(plan, type(shoal))\n"
        "print(plan.__name__, Plan.__module__)"
    )
    assert run_python(code) == "plan shoal.plan"


def test_a_public_name_can_be_replaced_for_a_test(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shoal, "plan", len)
    assert shoal.plan is len


def test_the_architecture_names_what_is_there():
    """Each row of "Where to find it": files of the engine, and names in them."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    part = page.partition("## Where to find it")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    engine, seen = ROOT / "src" / "shoal" / "engine", 0
    for row in rows:
        code = ""
        for word in re.findall(r"`([^`]+)`", row):
            path = next((p for p in (engine / word, ROOT / "src/shoal" / word)
                         if p.exists()), None)  # fmt: skip
            if path is not None:
                code = path.read_text() if path.is_file() else ""
                continue
            assert "/" not in word, f"no file {word}: {row}"
            outer, _, inner = word.partition(".")
            assert re.search(rf"^class {outer}\b", code, re.M) or not code, row
            assert not inner or f"    def {inner}(" in code, f"no {word}: {row}"
            seen += 1
    assert seen > 10


def test_file_and_class_names_use_no_forbidden_word():
    pattern = re.compile(rf"(^|_)({'|'.join(FORBIDDEN_WORDS)})(_|$)")
    bad = [str(p) for p in project_files() if pattern.search(p.stem.lower())]
    for path in (ROOT / "src").rglob("*.py"):
        classes = re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
        words = (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", c).lower() for c in classes)
        bad += [f"{path}: {word}" for word in words if pattern.search(word)]
    assert not bad


def test_base_is_only_the_abstract_file_of_a_folder():
    based = [p for p in (ROOT / "src").rglob("*base*.py") if p.name != "base.py"]
    assert not based


def unclear_parts(text: str) -> list[str]:
    """Returns words and `Args` entries that plain sentences do without."""
    found = re.findall(r"(?i)\bwho(?:ever|soever)\b", text)
    return found + re.findall(r"(?m)^ +\**\w+: Of [^\n]*", text)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("    Args:\n        folder: Of the run.", True),
        ("    Args:\n        folder: The run's folder.", False),
        ("Tells " + "who" + "ever asks.", True),
        ("Of three workers one is late: Of course.", False),
    ],
)
def test_unclear_sentences_are_found(text: str, is_found: bool):
    assert bool(unclear_parts(text)) is is_found


def test_source_and_docs_are_plain_sentences():
    """The rest of the English rules needs a reader; these two do not."""
    sources = sorted((ROOT / "src").rglob("*.py"))
    bad = {
        str(path.relative_to(ROOT)): found
        for path in [*PAGES, *sources]
        if (found := unclear_parts(path.read_text()))
    }
    assert not bad


def test_no_file_names_the_place_it_was_written_at():
    # Put together here so that this file does not match.
    places = ("/w" + "ork/", "/r" + "oot/", "python" + "hosted", "registry." + "npm")
    bad: list[str] = []
    for path in project_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        bad += [
            f"{path.relative_to(ROOT)}: {place}"
            for place in places
            if re.search(rf"(?<![\w.]){re.escape(place)}", text)
        ]
    assert not bad


def test_targets_of_make_run_what_is_there():
    rules = (ROOT / "Makefile").read_text()
    [targets] = re.findall(r"^(.*): .*\n.*-m benchmarks\.\$@", rules, re.MULTILINE)
    for name in targets.split():
        assert (ROOT / "benchmarks" / f"{name}.py").is_file(), name


@pytest.mark.parametrize("options", [[], ["--full"]])
def test_make_bench_runs_every_benchmark_of_speed(
    options: list[str], monkeypatch: pytest.MonkeyPatch
):
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, len(commands) // len(names))

    names = bench.BENCHMARKS

    monkeypatch.setattr(bench.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["bench", *options])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 1  # of the last; nothing hides a failure
    more = [] if options else ["--quick"]
    assert commands == [["-m", f"benchmarks.{name}", *more] for name in names]
    for name in names:
        assert (ROOT / "benchmarks" / f"{name}.py").is_file()


@pytest.mark.process
@pytest.mark.examples
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks_to_run(p)],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_python_blocks_of_the_page_run(page: Path, tmp_path: Path):
    script = tmp_path / f"{page.stem}.py"
    script.write_text(script_of(page))
    backend = os.environ.get("KERAS_BACKEND", "jax")
    if "import jax" in script.read_text() and backend != "jax":
        pytest.skip(f"its example is for JAX, and this is {backend}")
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}, same line numbers:\n{done.stderr[-4000:]}"


def test_the_page_that_the_demo_names_is_installed_with_it() -> None:
    rules = (ROOT / "Makefile").read_text()
    recipe = rules.partition("\n$(DEMO_STAMP):")[2].partition("touch $@")[0]
    [extras] = re.findall(r"'\.\[(.+)\]'", recipe)
    assert set(extras.split(",")) >= {"demo", "jax", "ui"}
