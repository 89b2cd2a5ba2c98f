"""Keras' own tests of `fit`, run through Shoal.

Run: `make keras-suite`, or `python -m benchmarks.keras_suite --strategy all_reduce`.
Every test of Keras that calls `fit` runs twice: as it is, and with the trainer's `fit`
replaced by `shoal.fit`. Nothing is fetched: the tests are those of the installed Keras,
or of the source tree that `KERAS_SOURCE` (`--source`) names. A test that fails as it
is, or that never reaches `fit`, says nothing about Shoal and is not counted.

Each difference must be explained in `keras_suite_expected.toml`. The exit status is 1
if a test fails that is not listed there, or if a listed test passes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

EXPECTED = Path(__file__).with_name("keras_suite_expected.toml")
PLUGIN = Path(__file__).with_name("keras_suite_plugin.py")
MIXED = re.compile(r"class (\w+)\(Trainer, (layers\.\w+)\)")
BACKEND = "jax"
PATHS = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+")
CALLS_FIT = re.compile(r"\.fit\(")


class Result(NamedTuple):
    """The result of one test.

    Args:
        outcome: "passed", "failed" or "skipped".
        fits: Calls of `fit` that were replaced.
        reason: Last line of the error, "" without one.
    """

    outcome: str
    fits: int
    reason: str


class Row(NamedTuple):
    """One test: as it is, and through Shoal."""

    name: str
    plain: Result
    ours: Result


def main(arguments: list[str] | None = None) -> int:
    """Runs the suite, prints the table, returns the exit status."""
    asked = _parser().parse_args(arguments)
    source = Path(asked.source) if asked.source else None
    files = choose(find_files(source), asked.files)
    print(f"{len(files)} files of tests call fit", flush=True)
    plain = run(files, source, {"SHOAL_SUITE_PLAIN": "1"}, asked.timeout)
    print(f"as they are: {_counts(plain)}", flush=True)
    is_right = True
    for strategy in asked.strategy or ["all_reduce"]:
        settings = {
            "SHOAL_SUITE_STRATEGY": strategy,
            "SHOAL_SUITE_WORKERS": str(asked.workers),
            "SHOAL_SUITE_CLUSTER": asked.cluster,
        }
        rows = compare(plain, run(files, source, settings, asked.timeout))
        listed = read_expected(EXPECTED, strategy, asked.backend)
        print(f"{asked.backend}, {strategy}: {report(rows, listed)}", flush=True)
        if asked.json:
            add_to(Path(asked.json), as_json(rows, strategy, asked))
        is_right = is_right and not surprises(rows, listed)
    return int(not is_right)


def find_files(source: Path | None) -> list[Path]:
    """Returns the files of tests that call `fit`, of a source tree or the package."""
    if source is None:
        spec = find_spec("keras")
        if spec is None or spec.origin is None:
            raise SystemExit("Keras is not installed: pip install keras")
        folder = Path(spec.origin).parent / "src"
    else:
        folder = source / "keras" / "src"
    if not folder.is_dir():
        raise SystemExit(
            f"no folder {folder}. KERAS_SOURCE was expected to name the root of a "
            "source tree of Keras 3. Leave it out for the tests of the installed one."
        )
    found = folder.rglob("*_test.py")
    return sorted(p for p in found if CALLS_FIT.search(p.read_text()))


def choose(files: list[Path], ends: list[str]) -> list[Path]:
    """Returns the files whose paths have one of these ends; all, if there are none.

    Args:
        files: Files of tests that call `fit`.
        ends: Such as "trainers/trainer_test.py".
    """
    for end in ends:
        if not any(file.match(end) for file in files):
            raise SystemExit(
                f"{end} is no file of Keras' tests that calls fit. Expected the end of "
                "a path, such as trainers/trainer_test.py. Leave it out for all files."
            )
    return [f for f in files if not ends or any(f.match(end) for end in ends)]


def version(source: Path | None) -> str:
    """Returns the version of a source tree, or of the package."""
    if source is None:
        return metadata.version("keras")
    text = (source / "keras" / "src" / "version.py").read_text()
    found = re.search(r"__version__ = \"([^\"]+)\"", text)
    return found[1] if found else "?"


def run(
    files: list[Path], source: Path | None, settings: dict[str, str], timeout_s: int
) -> dict[str, Result]:
    """Runs files of tests in a process of their own; returns results by test."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "results.json")
        copies = [_copy(file, Path(folder)) for file in files]
        # No module of `benchmarks`: a source tree of Keras has a package of that name.
        shutil.copy(PLUGIN, folder)
        path = [folder, *([str(source)] if source else [])]
        environment = {
            "KERAS_BACKEND": BACKEND,  # the default here; Keras has another one
            **os.environ,
            **settings,
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
            "SHOAL_SUITE_OUT": str(out),
        }
        command = [
            sys.executable, "-m", "pytest", "-q",
            "-p", PLUGIN.stem, "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", folder, f"--timeout={timeout_s}",
            "--tb=no", "--no-header", "--continue-on-collection-errors",
            *map(str, copies),
        ]  # fmt: skip
        subprocess.run(
            command, env=environment, cwd=folder, check=False, stdout=sys.stderr
        )
        if not out.exists():
            raise SystemExit("pytest gave no results; its output is above")
        return {name: Result(*r) for name, r in json.loads(out.read_text()).items()}


def _copy(file: Path, folder: Path) -> Path:
    """Copies a file of tests out of Keras' package; returns where it is.

    Keras takes names below `keras.` for its own when it reads a model back, and finds
    no classes that tests define in functions. Models of tests that mix the trainer
    into a layer become models: Shoal refuses all other trainers.
    """
    parts = file.with_suffix("").parts
    name = "_".join(parts[parts.index("src") + 1 :])
    copy = folder / f"{name}.py"
    copy.write_text(MIXED.sub(_as_model, file.read_text()))
    return copy


def _as_model(found: re.Match[str]) -> str:
    """A model in place of a layer with the trainer mixed in."""
    name, layer = found.groups()
    # Methods of the layer come first, `build` above all.
    bases = "keras.Model" if layer == "layers.Layer" else f"{layer}, keras.Model"
    return f"class {name}({bases})"


def compare(plain: dict[str, Result], ours: dict[str, Result]) -> list[Row]:
    """Returns the tests that concern Shoal, in order."""
    return [
        Row(name, before, ours.get(name, Result("failed", 1, "it did not run")))
        for name, before in sorted(plain.items())
        if before.outcome == "passed" and before.fits
    ]


def read_expected(path: Path, strategy: str, backend: str) -> dict[str, str]:
    """Returns patterns of the tests that are expected to fail -> why.

    An entry may hold for some strategies and some backends only.
    """
    found: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text()).get("expected", []):
        applies = strategy in entry.get("strategies", [strategy])
        if applies and backend in entry.get("backends", [backend]):
            found.update(dict.fromkeys(entry["tests"], entry["why"]))
    return found


def why(name: str, listed: dict[str, str]) -> str:
    """Returns why a test is expected to fail, "" where it is not."""
    found = (text for pattern, text in listed.items() if fnmatchcase(name, pattern))
    return next(found, "")


def surprises(rows: list[Row], listed: dict[str, str]) -> list[str]:
    """Returns tests that fail and are not listed, and patterns of which none fails."""
    failed = [row.name for row in rows if row.ours.outcome != "passed"]
    ran = [row.name for row in rows]
    stale = [
        pattern
        for pattern in listed
        if any(fnmatchcase(name, pattern) for name in ran)
        and not any(fnmatchcase(name, pattern) for name in failed)
    ]
    return [*(name for name in failed if not why(name, listed)), *stale]


def report(rows: list[Row], listed: dict[str, str]) -> str:
    """Returns counts, then each failure with its reason."""
    failed = [r for r in rows if r.ours.outcome != "passed"]
    lines = [
        f"through Shoal: {len(rows)} tests call fit, "
        f"{len(rows) - len(failed)} passed, {len(failed)} failed",
    ]
    for row in failed:
        reason = why(row.name, listed)
        mark = f"expected ({reason})" if reason else "NOT EXPECTED"
        lines += [f"  {row.name}", f"    {mark}", f"    {row.ours.reason}"]
    names = {row.name for row in rows}
    stale = [s for s in surprises(rows, listed) if s not in names]
    lines += [f"  PASSES NOW, take it off the list: {pattern}" for pattern in stale]
    return "\n".join(lines)


def add_to(path: Path, run: dict[str, Any]) -> None:
    """Replaces the run of the same backend, strategy and workers, or appends it."""
    key = ("backend", "strategy", "workers")
    runs = json.loads(path.read_text()) if path.exists() else []
    others = [r for r in runs if any(r[k] != run[k] for k in key)]
    runs = sorted([*others, run], key=lambda r: [str(r[k]) for k in key])
    path.write_text("[\n" + ",\n".join(map(_dumped, runs)) + "\n]\n")


def _dumped(run: dict[str, Any]) -> str:
    """A run as JSON with a line for each test, so that a diff can be read."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in run["tests"].items()]
    head = json.dumps({k: v for k, v in run.items() if k != "tests"})
    return f'{head[:-1]}, "tests": {{\n' + ",\n".join(lines) + "\n}}"


def as_json(
    rows: list[Row], strategy: str, asked: argparse.Namespace
) -> dict[str, Any]:
    """Returns the results for the page of the docs."""
    return {
        "keras": version(Path(asked.source) if asked.source else None),
        "strategy": strategy,
        "workers": 1 if strategy == "single" else asked.workers,
        "backend": asked.backend,
        "cluster": asked.cluster,
        "tests": {
            r.name: [r.ours.outcome, r.ours.fits, _short(r.ours.reason)] for r in rows
        },
    }


def _short(reason: str) -> str:
    """A reason in one line, without folders of this machine."""
    text = " ".join(reason.split())
    return PATHS.sub("", text)[:200]


def _counts(results: dict[str, Result]) -> str:
    counts = Counter(result.outcome for result in results.values())
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Runs Keras' own tests of fit through shoal.fit."
    )
    parser.add_argument(
        "--source",
        default=os.environ.get("KERAS_SOURCE") or None,
        help="root of a source tree of Keras; default: $KERAS_SOURCE, else installed",
    )
    parser.add_argument(
        "--strategy", action="append", help="may be repeated; default: all_reduce"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cluster", default="inline", help='"local" or "inline"')
    parser.add_argument("--timeout", type=int, default=180, help="seconds a test")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("files", nargs="*", help="ends of paths of tests; default: all")
    parser.set_defaults(backend=os.environ.get("KERAS_BACKEND", BACKEND))
    return parser


if __name__ == "__main__":
    sys.exit(main())
