"""New runs: a form, what would happen, and a program that outlives the page.

Nothing of the user's code runs in the page's own process: `shoal fit` loads the script,
in a process of its own, and only after a form was posted.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from glob import has_magic
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shoal import strategies
from shoal.clusters.cluster_state import ClusterStore
from shoal.errors import ConfigError, ShoalError
from shoal.host.processes import Process
from shoal.plan.variables import environment, read_workers
from shoal.runs.catalogue import run_ids
from shoal.runs.events import read_events
from shoal.runs.store import check_name
from shoal.strategies.describing import parameters_of
from shoal.ui.scripts import top_names
from shoal.ui.site import Root, Site
from shoal.ui.starting import Program

PLAN_S = 120.0
"""Seconds that a plan may take: it loads the script's data."""
MOST_FILES, MOST_DEPTH = 300, 3
MOST_TEXT = 1000
MOST_SCRIPT = 1 << 20
KEY, PLAN_KEY = "new ", "plan "
"""Before what a program is for: the form's key, or the digest of its words."""

DEFAULTS = {
    "script": "", "strategy": "all_reduce", "workers": "auto", "epochs": "1",
    "batch_size": "", "cluster": "local", "name": "", "root": "", "data": "",
    "label": "", "feature": "",
}  # fmt: skip
COLUMNS = ("label", "feature")
"""Fields of columns, with commas between."""


def show_form(site: Site, request: Request) -> Response:
    """The empty form, or one that is filled by its address.

    With `planned` it shows what was planned for these values; nothing is planned here.
    With `checked` it says what is wrong with them.
    """
    _check_may(site)
    query = request.query_params
    values = {
        name: (query.get(name) or default)[:MOST_TEXT].strip()
        for name, default in DEFAULTS.items()
    }
    values["strategy"] = _merged(values["strategy"], query)
    wrong = _all_wrong(site, values)
    planned, digest = None, ""
    if query.get("planned") and not wrong:
        digest = _digest(_words(site, values))
        if digest == query.get("planned"):
            planned = site.starter.of(PLAN_KEY + digest)
    if not query.get("checked"):  # of the others nobody has asked yet
        wrong = {name: text for name, text in wrong.items() if name == "root"}
    return _form(site, values, wrong, planned=planned, digest=digest if planned else "")


def send_check(site: Site, request: Request) -> Response:
    """What is wrong with one field, as JSON; "" if nothing is."""
    _check_may(site)
    name = request.query_params.get("field", "")
    value = request.query_params.get("value", "")[:MOST_TEXT]
    if name not in DEFAULTS:
        raise HTTPException(404, "There is no such field.")
    if name == "strategy":
        value = _merged(value, request.query_params)
    text = json.dumps({"error": _wrong(site, name, value)})
    return Response(text, media_type="application/json")


async def plan(site: Site, request: Request) -> Response:
    """Shows what would happen; with `do=start` starts what was shown."""
    _check_may(site)
    form = await request.form()
    values = {name: str(form.get(name, ""))[:MOST_TEXT].strip() for name in DEFAULTS}
    texts = {name: text for name, text in form.items() if isinstance(text, str)}
    values["strategy"] = _merged(values["strategy"], texts)
    if _all_wrong(site, values):
        return RedirectResponse(_address(site, values, checked="yes"), 303)
    words = _words(site, values)
    digest, key = _digest(words), str(form.get("key", ""))
    if form.get("do") == "start" and form.get("planned") == digest:
        return await run_in_threadpool(_start, site, values, words, key)
    try:
        await run_in_threadpool(
            site.starter.run, PLAN_KEY + digest, [*words, "--plan"], PLAN_S
        )
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    return RedirectResponse(_address(site, values, planned=digest), 303)


def _address(site: Site, values: Mapping[str, str], **more: str) -> str:
    """Returns the address of the form with its values."""
    given = {
        name: values[name] or " "  # a field that was emptied, unlike a missing one
        for name, default in DEFAULTS.items()
        if values[name] != default
    }
    return site.link("/new", **given, **more)


def show_started(site: Site, request: Request) -> Response:
    """Goes to a run as soon as it is there; until then, says what there is to say."""
    key = request.path_params["key"]
    root = site.roots.get(request.path_params["root"])
    program = site.starter.of(KEY + key)
    if root is None or program is None:
        raise HTTPException(404, "Nothing was started here.")
    run = _run_of(root, program)
    if run is not None:
        return RedirectResponse(site.run_link(root.key, run), 303)
    return site.render("started.html", program=program)


def _form(
    site: Site,
    values: Mapping[str, str],
    wrong: Mapping[str, str],
    *,
    planned: Program | None = None,
    digest: str = "",
) -> Response:
    strategy, parameters = _parts(values["strategy"])
    return site.render(
        "new.html",
        values={**values, "strategy": strategy},
        parameters=parameters,
        wrong=wrong,
        planned=planned,
        digest=digest,
        key=secrets.token_hex(8),
        limit_s=PLAN_S,
        scripts=_scripts(site.starter.home),
        clusters=_clusters(),
        about=_about(),
        command="" if wrong else shlex.join(["shoal", *_words(site, values)]),
    )


def _start(
    site: Site, values: Mapping[str, str], words: list[str], key: str
) -> Response:
    root = _root(site, values["root"])
    if not (key.isalnum() and len(key) == 16):
        raise HTTPException(409, "The form is not of this page. Reload it.")
    try:
        before = frozenset(run_ids(root.folder.url))
        # The key of the form: a button that is pressed twice starts one run.
        site.starter.start(KEY + key, words, is_once=True, known=before)
    except (ShoalError, OSError) as error:
        raise HTTPException(409, str(error)) from error
    return RedirectResponse(site.link(f"/new/started/{root.key}/{key}"), 303)


def _run_of(root: Root, program: Program) -> str | None:
    """Returns the run that a program has begun, found by the process that wrote it."""
    with suppress(ShoalError, OSError):
        for name in run_ids(root.folder.url):
            if name in program.known:
                continue
            first = next(read_events(root.folder.child(name)), {})
            writer = Process.read(first)
            if writer is not None and writer.pid == program.process.pid:
                return name
    return None


def _words(site: Site, values: Mapping[str, str]) -> list[str]:
    """Returns the command after `shoal`; the values were checked before."""
    words = ["fit", values["script"] or "SCRIPT.py:make"]
    usual = {"cluster": environment().cluster}
    for name in ("strategy", "workers", "epochs", "batch_size", "cluster", "name"):
        if values[name] and values[name] != usual.get(name):
            words += [f"--{name.replace('_', '-')}", values[name]]
    if values["data"]:
        words += ["--data", values["data"]]
    for name in COLUMNS:
        for column in _columns(values[name]):
            words += [f"--{name}", column]
    return [*words, "--root", _root(site, values["root"]).folder.url]


def _columns(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _all_wrong(site: Site, values: Mapping[str, str]) -> dict[str, str]:
    """Returns what is wrong with fields, by their names."""
    wrong = {name: _wrong(site, name, value) for name, value in values.items()}
    wrong = {name: text for name, text in wrong.items() if text}
    return {**_wrong_columns(values), **wrong}


def _wrong(site: Site, name: str, value: str) -> str:
    """Returns what is wrong with a field, by the code of the command line."""
    try:
        match name:
            case "script":
                _check_script(site.starter.home, value)
            case "strategy":
                strategies.get(value)
            case "workers":
                read_workers("workers", value)
            case "epochs" | "batch_size":
                _check_number(name, value)
            case "cluster":
                _check_cluster(value)
            case "name":
                check_name(value or None)
            case "data":
                _check_data(site.starter.home, value)
            case "label" | "feature":
                _check_columns(name, value)
            case _:
                _root(site, value)
    except ShoalError as error:
        return str(error)
    return ""


def _check_script(home: Path, value: str) -> None:
    file = value.rpartition(":")[0] if ".py:" in value else value
    path = home / Path(file).expanduser()
    if value.startswith("-") or path.suffix != ".py" or not path.is_file():
        raise ConfigError(
            f"there is no Python file {file!r} in {home}. Expected script.py:function. "
            "Give the path of a file that ends in .py."
        )
    function = value.rpartition(":")[2] if ".py:" in value else "make"
    if not function.isidentifier():
        raise ConfigError(
            f"{function!r} is no name of a function. Expected script.py:function. "
            "Leave :function out for make."
        )
    _check_function(path, function)


def _check_function(path: Path, function: str) -> None:
    """Looks for a function in the syntax of a script, which is not run."""
    try:
        if path.stat().st_size > MOST_SCRIPT:
            return
        found = top_names(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path.name} cannot be read as Python ({error}). Expected a script. "
            "Correct it."
        ) from error
    if found is not None and function not in found[0]:
        known = ", ".join(found[1]) or "none"
        raise ConfigError(
            f"{path.name} has no function {function!r}. Expected one of its own: "
            f"{known}. Write {path.name}:function."
        )


def _check_data(home: Path, value: str) -> None:
    """Looks at local files alone: this server asks no other machine for anything."""
    if value.startswith("-"):
        raise ConfigError(
            f"data={value!r} begins with '-'. Expected a path, a glob, or a URL. "
            f"Write ./{value} for a file of that name."
        )
    is_path = value and "://" not in value and not has_magic(value)
    if is_path and not (home / Path(value).expanduser()).exists():
        raise ConfigError(
            f"there is nothing at {value!r} in {home}. Expected files, or a URL such "
            "as s3://bucket/prefix/. Correct the path."
        )


def _check_columns(name: str, value: str) -> None:
    for column in _columns(value):
        if column.startswith("-"):
            raise ConfigError(
                f"{name}={column!r} begins with '-'. Expected names of columns, with "
                "commas between. Pass such a name to shoal.fit in a script."
            )


def _wrong_columns(values: Mapping[str, str]) -> dict[str, str]:
    """Returns what is wrong with columns that are named without files."""
    if values["data"]:
        return {}
    return {
        name: f"{name} names columns of files, and data is empty. Expected both. "
        "Fill data in, or clear this field."
        for name in COLUMNS
        if values[name]
    }


def _check_number(name: str, value: str) -> None:
    if name == "batch_size" and not value:
        return
    if not (value.isdecimal() and value.isascii() and 0 < int(value) < 10**9):
        raise ConfigError(
            f"{name}={value!r} cannot be read. Expected a whole number of at least 1. "
            "Correct it."
        )


def _check_cluster(value: str) -> None:
    if value not in _clusters():
        raise ConfigError(
            f"no cluster is called {value!r}. Expected one of "
            f"{', '.join(_clusters())}. Bring it up with: shoal cluster up."
        )


def _clusters() -> list[str]:
    with suppress(ShoalError, OSError):
        return ["local", *ClusterStore(environment().clusters).names()]
    return ["local"]


def _root(site: Site, key: str) -> Root:
    if not key:
        return next(iter(site.roots.values()))
    if key not in site.roots:
        raise ConfigError(
            f"root={key!r} is not shown here. Expected one of "
            f"{', '.join(site.roots)}. Start shoal ui with another --root."
        )
    return site.roots[key]


def _scripts(home: Path) -> list[str]:
    """Returns Python files below a folder, for completion."""
    found: list[str] = []
    places = [(home, 0)]
    while places and len(found) < MOST_FILES:
        place, depth = places.pop(0)
        with suppress(OSError):
            for entry in sorted(place.iterdir()):
                if entry.name.startswith((".", "_")):
                    continue
                if entry.suffix == ".py":
                    found.append(str(entry.relative_to(home)))
                elif depth < MOST_DEPTH and entry.is_dir() and not entry.is_symlink():
                    places.append((entry, depth + 1))
    return found[:MOST_FILES]


@cache
def _about() -> list[dict[str, Any]]:
    """Returns what each strategy says of itself; plug-ins are looked for once."""
    found: list[dict[str, Any]] = []
    for name in (strategies.Auto.name, *strategies.registry.names()):
        with suppress(ShoalError, ImportError):
            kind = strategies.kind_of(name)
            first = (kind.__doc__ or "").strip().partition("\n")[0]
            found.append(
                {"name": name, "first": first, "parameters": parameters_of(kind)}
            )
    return found


def _merged(text: str, fields: Mapping[str, str]) -> str:
    """Returns a strategy with the values of its own fields.

    Args:
        text: The field "strategy": a name, or a name with parameters.
        fields: All fields; `p.NAME.PARAMETER` overrides a parameter of the text.
    """
    name, known = _parts(text)
    start = f"p.{name}."
    given = {
        field.removeprefix(start): value[:MOST_TEXT].strip()
        for field, value in fields.items()
        if field.startswith(start) and value.strip()
    }
    if not given:
        return text
    return f"{name}:{','.join(f'{key}={x}' for key, x in {**known, **given}.items())}"


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """Returns the name of a strategy and its parameters; a wrong text stays whole."""
    try:
        name, known = strategies.parse(text)
    except ConfigError:
        return text, {}
    return name, {key: str(value) for key, value in known.items()}


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="replace")).hexdigest()


def _check_may(site: Site) -> None:
    if site.is_read_only:
        raise HTTPException(403, "This page is for reading: --read-only.")
