from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
from typer.testing import Result

import shoal as package
from shoal.cli import backend
from shoal.cli.script import load_problem
from shoal.errors import ConfigError, WorkerLost
from shoal.plan.variables import environment
from shoal.runs.store import start
from shoal.strategies import registry
from shoal.training.comparison import COLUMNS

Shoal = Callable[..., Result]

SCRIPT = """
import {helper}

def make():
    return {returned}

def make_model():
    return {helper}.NAME

not_a_function = 3
"""


@pytest.fixture
def script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """Writes a script and a module beside it; forgets both afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    stem, helper = f"problem_{id(request)}", f"beside_{id(request)}"

    def write(returned: str = "make_model, [1, 2], [0, 1]") -> Path:
        (tmp_path / f"{helper}.py").write_text("NAME = 'model'\n")
        path = tmp_path / f"{stem}.py"
        path.write_text(SCRIPT.format(helper=helper, returned=returned))
        return path

    yield write
    for name in (stem, helper):
        module = sys.modules.pop(name, None)
        if module and name in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Stands in for `api.compare`; holds what it was called with."""
    calls: list[dict] = []

    def compare(make_model, x, y, **rest):
        calls.append({"model": make_model(), "x": x, "y": y, **rest})
        return SimpleNamespace(
            rows=[{"strategy": s.name, "accuracy": 0.5} for s in rest["strategies"]],
            plot=lambda path: path.write_bytes(b""),
        )

    api = ModuleType("shoal.api")
    api.compare = compare  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shoal.api", api)
    monkeypatch.setattr(package, "api", api, raising=False)
    return calls


def test_strategies(shoal: Shoal):
    lines = shoal("strategies").stdout.splitlines()
    names = [line.split()[0] for line in lines if line[0] != " "]
    assert names == ["name", *registry.names()]


def test_strategies_as_json(shoal: Shoal):
    found = {
        row["name"]: row for row in json.loads(shoal("strategies", "--json").stdout)
    }
    assert found["aeasgd"]["parameters"]["beta"] == 0.9
    assert found["easgd"]["kind"] == "rounds"
    assert all(row["paper"] for row in found.values())


def test_compare(shoal: Shoal, compared: list[dict], script: Callable[..., Path]):
    done = shoal(
        "compare", f"{script()}:make", "--strategy", "aeasgd:period=20",
        "--strategy", "downpour", "--workers", 2, "--epochs", 3, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert [row["strategy"] for row in json.loads(done.stdout)] == [
        "aeasgd",
        "downpour",
    ]
    (call,) = compared
    assert (call["model"], call["x"], call["y"]) == ("model", [1, 2], [0, 1])
    assert call["strategies"][0].period == 20
    assert (call["workers"], call["epochs"]) == (2, 3)
    assert (call["validation_data"], call["run"], call["seeds"]) == (None, False, 1)
    assert call["verbose"] == 1


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Stands in for `api.fit` and `api.plan`; holds what they were called with."""
    calls: list[dict] = []

    def fit(model, x, y, **rest):
        calls.append({"model": model, "x": x, "y": y, **rest})
        run = start(rest["run"] or "unnamed", name="x", root=environment().runs)
        run.finish("finished")
        return SimpleNamespace(run=run)

    def plan(model, x, y, **rest):
        calls.append({"model": model, "x": x, "y": y, **rest})
        return SimpleNamespace(explain=lambda: "2 workers", to_json=lambda: {"a": 1})

    api = ModuleType("shoal.api")
    api.fit, api.plan = fit, plan  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shoal.api", api)
    monkeypatch.setattr(package, "api", api, raising=False)
    monkeypatch.setenv("SHOAL_RUNS", "elsewhere")
    return calls


def test_fit(shoal: Shoal, fitted: list[dict], script: Callable[..., Path]):
    done = shoal(
        "fit", f"{script()}:make", "--strategy", "aeasgd:period=20", "--workers",
        "1-3", "--epochs", 3, "--batch-size", 8, "--name", "higgs", "--root", "myruns",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    (call,) = fitted
    assert (call["model"], call["x"], call["y"]) == ("model", [1, 2], [0, 1])
    assert (call["strategy"].name, call["strategy"].period) == ("aeasgd", 20)
    assert (call["workers"], call["epochs"], call["batch_size"]) == ((1, 3), 3, 8)
    assert (call["cluster"], call["run"]) == (None, "higgs")
    assert next(Path("myruns").glob("*-higgs-*")).name in done.stdout


def test_the_plan_of_fit(shoal: Shoal, fitted: list[dict], script):
    assert shoal("fit", script(), "--plan").stdout == "2 workers\n"
    assert json.loads(shoal("fit", script(), "--plan", "--json").stdout) == {"a": 1}
    assert "run" not in fitted[0]


@pytest.mark.parametrize("returned", ["make_model", "{'make_model': make_model}"])
def test_fit_on_files_in_place_of_the_data_of_the_script(
    shoal: Shoal, fitted: list[dict], script: Callable[..., Path], returned: str
):
    options = ["--data", "s3://b/*.csv", "--label", "y", "--feature", "a"]
    done = shoal("fit", script(returned), *options, "--feature", "b,c")
    assert done.exit_code == 0, done.stderr
    both = shoal("fit", script(), *options[:2], "--label", "y", "--label", "z")
    assert both.exit_code == 0, both.stderr
    one, two = fitted
    assert (one["x"], one["y"], one["label"]) == ("s3://b/*.csv", None, "y")
    assert (one["model"], one["features"]) == ("model", ["a", "b,c"])
    assert (two["x"], two["label"], two["features"]) == (
        "s3://b/*.csv",
        ["y", "z"],
        None,
    )


def test_a_script_without_data_needs_some(
    shoal: Shoal, fitted: list[dict], script: Callable[..., Path]
):
    done = shoal("fit", script("{'make_model': make_model}"))
    assert done.exit_code == 2
    assert "Expected (make_model, x, y)" in done.stderr
    assert fitted == []


@pytest.mark.parametrize(
    "options",
    [["--label", "y"], ["--feature", "a"], ["--strategy", "eagsd"],
     ["--workers", "many"], ["--name", "a/b"], ["--name", ""], ["--json"]],
)  # fmt: skip
def test_options_of_fit_are_checked_before_the_script_is_loaded(
    options: list[str], shoal: Shoal, fitted: list[dict]
):
    done = shoal("fit", "no-such-file.py", *options)
    assert done.exit_code == 2
    assert "no Python file" not in done.stderr
    assert fitted == []


def test_compare_as_a_table(
    shoal: Shoal, compared: list[dict], script: Callable[..., Path]
):
    done = shoal("compare", script(), "--plot", "curves.png")
    assert Path("curves.png").exists()
    assert "accuracy" in done.stdout
    assert [s.name for s in compared[0]["strategies"]] == ["single", "all_reduce"]
    assert compared[0]["workers"] == "auto"


@pytest.mark.parametrize(
    ("root", "run"),
    [
        ("myruns", Path("myruns")),
        ("my/runs", "my/runs"),
        ("memory://runs", "memory://runs"),
        ("", False),
    ],
)
def test_the_root_of_compare_is_a_folder(
    root: str, run: object, shoal: Shoal, compared: list[dict], script
):
    """A bare word would be the name of a run to `fit`."""
    assert shoal("compare", script(), "--root", root).exit_code == 0
    assert compared[0]["run"] == run
    assert type(compared[0]["run"]) is type(run) or isinstance(run, Path)


def test_compare_of_trainers_on_spark(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, script: Callable[..., Path]
):
    calls: list[dict] = []

    def compare(**given):
        calls.append(given)
        return SimpleNamespace(rows=[{"trainer": "single", "f1": 0.5}])

    monkeypatch.setattr("shoal.spark.comparing.compare", compare)
    path = script("'df', 'test', {'single': 1}")
    done = shoal("compare", path, "--spark", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == [{"trainer": "single", "f1": 0.5}]
    assert calls == [{"df": "df", "test_df": "test", "trainers": {"single": 1}}]
    refused = shoal("compare", path, "--spark", "--epochs", 2)
    assert refused.exit_code == 2
    assert "--spark takes --plot and --json alone" in refused.stderr


def test_compare_on_spark_refuses_what_is_no_frames(
    shoal: Shoal, script: Callable[..., Path]
):
    refused = shoal("compare", script(), "--spark")
    assert refused.exit_code == 2
    assert "Expected a mapping" in refused.stderr or "trainers" in refused.stderr


def test_compare_shows_the_rows_before_it_draws(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, compared: list[dict], script
):
    def compare(*_, **more):
        def plot(path):
            raise OSError("disk full")

        return SimpleNamespace(rows=[{"strategy": "adag"}], plot=plot)

    monkeypatch.setattr(sys.modules["shoal.api"], "compare", compare)
    done = shoal("compare", script(), "--plot", "curves.png")
    assert done.exit_code == 1
    assert "adag" in done.stdout
    assert "disk full" in done.stderr


def test_compare_looks_for_matplotlib_first(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, compared: list[dict], script
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = shoal("compare", script(), "--plot", "curves.png")
    assert done.exit_code == 2
    assert "shoal[demo]" in done.stderr
    assert compared == []


def test_compare_refuses_a_misspelled_strategy(shoal: Shoal):
    done = shoal("compare", "none.py:make", "--strategy", "eagsd")
    assert done.exit_code == 2
    assert "Did you mean 'easgd'?" in done.stderr


@pytest.mark.parametrize(
    "returned",
    [
        "{'make_model': make_model, 'x': 1, 'validation_data': 2}",
        "make_model, 1, None, 2",
    ],
)
def test_a_script_may_return_a_mapping_or_a_tuple(script, returned: str):
    problem = load_problem(str(script(returned)))
    assert (problem.x, problem.y, problem.validation_data) == (1, None, 2)


def test_definitions_of_a_script_are_sent_by_value(script):
    path = script()
    problem = load_problem(f"{path}:make")
    parcel = cloudpickle.dumps(problem.make_model)
    code = (
        "import sys, cloudpickle; sys.path.insert(0, sys.argv[1])\n"
        "print(cloudpickle.load(sys.stdin.buffer)())"
    )
    beside = path.parent / "worker"
    beside.mkdir()
    path.rename(beside / "gone.py")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path.parent)],
        input=parcel, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == b"model\n"


@pytest.mark.parametrize(
    "returned", ["3", "('model', 1)", "{'x': 1}", "(make_model,)", "(make_model,) * 5"]
)
def test_a_script_that_returns_something_else(script, returned: str):
    with pytest.raises(ConfigError, match="Expected \\(make_model, x, y\\)"):
        load_problem(str(script(returned)))


def test_a_script_that_is_not_there(tmp_path: Path, script):
    with pytest.raises(ConfigError, match="no Python file"):
        load_problem(f"{tmp_path}/none.py:make")
    with pytest.raises(ConfigError, match="Did you mean 'make'"):
        load_problem(f"{script()}:makee")


def test_an_error_of_the_script_is_shown_without_traceback(shoal: Shoal, script):
    path = script("1 / 0")
    done = shoal("compare", path)
    assert done.exit_code == 2
    assert done.stderr == (
        f"ConfigError: make of {path} raised ZeroDivisionError: division by zero "
        f"({path}:5, in make: `return 1 / 0`). "
        "Expected it to run and to give (make_model, x, y). "
        "Correct it; the same command after `shoal --debug` shows the full traceback.\n"
    )
    debugged = shoal("--debug", "compare", path)
    assert isinstance(debugged.exception, ConfigError)
    assert isinstance(debugged.exception.__cause__, ZeroDivisionError)


def test_an_error_names_the_last_line_of_the_users(script):
    """The line is in a file beside the script, not in the library that raised."""
    path = script("__import__('beside_that_fails').read()")
    beside = path.parent / "beside_that_fails.py"
    beside.write_text("import json\n\ndef read():\n    return json.loads('{')\n")
    try:
        with pytest.raises(ConfigError, match="raised JSONDecodeError") as caught:
            load_problem(str(path))
    finally:
        sys.modules.pop("beside_that_fails", None)
    assert f"({beside}:4, in read: `return json.loads('{{')`)" in str(caught.value)


def test_an_error_of_make_model_is_the_users_own(shoal: Shoal, script):
    """It is called late, by `api.compare`, which is not replaced here."""
    path = script("build, [[1.0], [2.0]], [0.0, 1.0]")
    with path.open("a") as file:
        file.write("\ndef build():\n    return [].pop()\n")
    line = len(path.read_text().splitlines())
    done = shoal("compare", path)
    assert done.exit_code == 2
    assert done.stderr == (
        "1 of 2: single (plain Keras)\n"
        f"ConfigError: build of {path} raised IndexError: pop from empty list "
        f"({path}:{line}, in build: `return [].pop()`). "
        "Expected it to run and to give a compiled model. "
        "Correct it; the same command after `shoal --debug` shows the full traceback.\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere", "broken.py:1, in <module>: `import nowhere`)"),
        ("def make(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
    ],
)
def test_a_script_that_cannot_be_loaded(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "broken.py"
    path.write_text(text)
    try:
        with pytest.raises(ConfigError, match=r"^loading ") as caught:
            load_problem(str(path))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules.pop("broken"))
    assert words in str(caught.value)


def test_help_of_compare_defines_the_columns(shoal: Shoal):
    words = " ".join(shoal("compare", "--help").stdout.split())
    for name, meaning in COLUMNS.items():
        assert f"- {name}: {meaning}" in words


def test_demo(shoal: Shoal, monkeypatch: pytest.MonkeyPatch):
    calls: list[dict] = []
    demo = ModuleType("shoal.demo.main")
    demo.run_demo = lambda **named: calls.append(named)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shoal.demo", ModuleType("shoal.demo"))
    monkeypatch.setitem(sys.modules, "shoal.demo.main", demo)
    assert shoal("demo", "--workers", 3).exit_code == 0
    assert calls == [{"out": Path("shoal-demo.png"), "workers": 3}]


@pytest.mark.parametrize(
    ("variable", "file", "installed", "chosen"),
    [
        (None, None, ["jax"], "jax"),
        (None, "tensorflow", ["jax"], "jax"),  # Keras writes its default itself
        (None, "tensorflow", ["jax", "tensorflow"], "jax"),
        (None, "torch", ["jax", "torch"], None),
        (None, "torch", ["jax"], "jax"),
        (None, None, [], None),
        ("torch", None, ["jax"], "torch"),
    ],
)
def test_the_backend_is_one_that_trains(
    variable, file, installed, chosen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(backend, "find_spec", lambda name: name in installed)
    if variable:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if file:
        (tmp_path / "keras.json").write_text(json.dumps({"backend": file}))
    backend.choose_backend()
    assert os.environ.get("KERAS_BACKEND") == chosen


def test_a_backend_that_is_loaded_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    backend.choose_backend()
    assert "KERAS_BACKEND" not in os.environ


def test_commands_need_no_environment_variable(tmp_path: Path, script):
    """After `pip install shoal[jax]` and nothing else."""
    path = script("print('backend', __import__('os').environ['KERAS_BACKEND'])")
    variables = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "compare", path],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**variables, "KERAS_HOME": str(tmp_path)},
    )  # fmt: skip
    assert "backend jax" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["tensorflow", "torch", "jax"])
def test_a_backend_that_is_not_installed_is_named(name: str, tmp_path: Path):
    """Hidden, as all are installed here: what a machine with another one would say."""
    (tmp_path / "problem.py").write_text("import keras\n")
    hidden = f"import sys; sys.modules[{name!r}] = None; import shoal.cli.app as a; "
    done = subprocess.run(
        [sys.executable, "-c", hidden + "a.main()", "compare", "problem.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "KERAS_BACKEND": name},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"pip install 'shoal[{name}]'" in done.stderr


def test_version(shoal: Shoal):
    assert shoal("--version").stdout == f"shoal {package.__version__}\n"


def test_usage_errors(shoal: Shoal):
    assert shoal("runs", "shaw").exit_code == 2
    assert shoal("demo", "--workers", 0).exit_code == 2


def test_notes_of_an_error_are_shown(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as how a run that failed goes on."""
    error = WorkerLost("worker 0 was killed.")
    error.add_note("The run can go on from its last checkpoint.")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("shoal.cli.runs.find_run", fail)
    done = shoal("runs", "resume", "x")
    assert done.exit_code == 1
    message, note, _ = done.stderr.split("\n")
    assert message == "WorkerLost: worker 0 was killed."
    assert note == "The run can go on from its last checkpoint."


def test_python_dash_m(tmp_path: Path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shoal", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    listed = run("runs", "--root", str(tmp_path), "--json")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
    unknown = run("runs", "show", "x")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("ConfigError: no run 'x'")
    assert "Traceback" not in unknown.stderr
    assert "Traceback" in run("--debug", "runs", "show", "x").stderr
    assert "Usage: shoal" in run("--help").stdout


def test_commands_that_only_read_load_no_framework():
    code = (
        "import sys\nfrom typer.testing import CliRunner\n"
        "from shoal.cli.app import app\n"
        "CliRunner().invoke(app, ['strategies']); CliRunner().invoke(app, ['runs'])\n"
        "print(sorted({'keras', 'jax', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
