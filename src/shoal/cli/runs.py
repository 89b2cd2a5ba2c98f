"""`shoal runs`: lists runs, shows results, prints the output of workers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.backend import choose_backend
from shoal.cli.following import follow_logs, print_logs
from shoal.cli.head import on_head
from shoal.cli.relaying import run_and_relay
from shoal.cli.tables import AsJson, format_seconds, show_json, show_records, show_table
from shoal.clusters.ssh import over
from shoal.errors import ConfigError
from shoal.plan.variables import environment, read_workers
from shoal.runs.catalogue import (
    backend_of,
    check_root,
    find_run,
    list_runs,
    prune,
    read_summary,
    remove_run,
)
from shoal.runs.control import ask_stop, asking
from shoal.runs.heartbeat import LATE_S, last_heard
from shoal.runs.outlines import read_outline
from shoal.runs.status import read_status
from shoal.runs.store import model_file
from shoal.runs.summary import LIST_FIELDS, RunSummary
from shoal.terminal import one_line, say, say_output
from shoal.training.comparison import Comparison, check_picture

app = typer.Typer(help="Lists runs, shows one, prints its logs, removes old ones.")

Root = Annotated[
    str | None,
    typer.Option(help="Folder or URL of the runs; default $SHOAL_RUNS, ./shoal-runs."),
]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Run id, the beginning of one, or a path or URL."
    ),
]

MEMORY = ("memory_mib", "most_memory_mib", "total_mib")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@app.callback(invoke_without_command=True)
def show_runs(
    context: typer.Context, as_json: AsJson = False, root: Root = None
) -> None:
    """Lists the runs, newest first; see the subcommands for more."""
    context.obj = root
    if context.invoked_subcommand is not None:
        return
    place = _root(context, root)
    found = list_runs(place, cache=environment().cache)
    if as_json:
        show_json(
            [
                run.model_dump(include=LIST_FIELDS | {"url", "damage"})
                if run.damage
                else run.model_dump(include=LIST_FIELDS | {"url"})
                for run in found
            ]
        )
        return
    if not found:
        say(f"No runs in {place}.")
        return
    show_table(
        [
            (
                run.id,
                run.status,
                run.setting,
                run.workers,
                run.started[:19].replace("T", " "),
                format_seconds(run.seconds),
            )
            for run in found
        ],
        columns=("id", "status", "strategy", "workers", "started", "took"),
    )
    for run in found:
        if run.damage:
            say(run.damage, err=True)


@app.command("show")
def show_run(
    context: typer.Context, run: RunId, as_json: AsJson = False, root: Root = None
) -> None:
    """Shows one run: samples, exchanges, losses, metrics of each epoch."""
    summary = read_summary(find_run(run, _root(context, root)))
    if as_json:
        show_json(summary.model_dump())
        return
    show_table(_facts(summary), columns=("run", summary.id))
    if summary.metrics:
        say()
        epochs = enumerate(summary.metrics, 1)
        show_records([{"epoch": epoch, **metrics} for epoch, metrics in epochs])
    _show_use(summary.use)
    for warning in summary.warnings:
        say(f"warning: {one_line(warning)}")


@app.command("status")
def show_status(
    context: typer.Context,
    run: RunId,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Lines of each worker's output.")
    ] = 5,
    as_json: AsJson = False,
    root: Root = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Cluster of the run, or of the job that was sent there."),
    ] = None,
) -> None:
    """Shows the progress of each worker of a run, and its last lines of output.

    It also shows the load of each machine: cores, memory and GPUs.
    """
    if cluster is not None:
        words = ["runs", "status", "-n", str(lines), *(["--json"] if as_json else [])]
        way, command = on_head(cluster, words, run, root or context.obj)
        raise typer.Exit(run_and_relay(over(way.words, command)))
    folder = find_run(run, _root(context, root))
    found = read_status(folder, lines)
    workers = [{**asdict(one), "lines": found.lines[one.rank]} for one in found.workers]
    if as_json:
        names = ("id", "status", "heard_s", "use")
        facts = {name: getattr(found, name) for name in names}
        processes = [asdict(other) for other in found.processes]
        show_json({**facts, "workers": workers, "processes": processes})
        return
    heard = "" if found.heard_s is None else f"; {last_heard(found.heard_s)}"
    say(f"{found.id}: {found.status}{heard}")
    for worker in workers:
        say(one_line(_standing(worker)))
        for line in worker["lines"]:
            say_output(line, before="    ")
    for other in found.processes:
        say(one_line(f"{other.name}  {_place(other.pid, other.node)}"))
    _show_use(found.use)


def _show_use(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a table of the machines' load, if that is known."""
    if not rows:
        return
    say()
    cells = [
        (
            row["node"],
            f"{row['what']} {row['name'] or ''}".strip(),
            *(row.get(name) for name in ("percent", "mean_percent")),
            *(_gib(row.get(name)) for name in MEMORY),
            *(row.get(name) for name in ("most_celsius", "mean_watts")),
        )
        for row in rows
    ]
    columns = ("node", "use of", "% now", "mean", "GiB now", "most", "of")
    show_table(cells, columns=(*columns, "°C at most", "mean W"))


def _gib(mib: float | None) -> float | None:
    return None if mib is None else round(mib / 1024, 1)


def _standing(worker: Mapping[str, Any]) -> str:
    """Describes a worker in one line."""
    where = _place(worker["pid"], worker["node"])
    parts = [
        f"{worker['state']}{': ' * bool(worker['reason'])}{worker['reason']}",
        f"epoch {worker['epoch']}",
        f"{worker['steps']:,} steps",
        f"{worker['samples']:,} samples",
        where,
    ]
    if worker["loss"] is not None:
        parts.insert(-1, f"loss {worker['loss']:.4g}")
    if worker["processes"] > 1:
        parts.append(f"the {_ordinal(worker['processes'])} of this rank")
    return f"worker {worker['rank']}  {', '.join(parts)}"


def _place(pid: int, node: str) -> str:
    process = f"process {pid}" if pid else "a process"
    return f"{process} on {node or 'this machine'}"


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


@app.command("compare")
def compare_runs(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...", help="Run ids, the beginnings of some, or paths or URLs."
        ),
    ],
    plot: Annotated[
        Path | None, typer.Option(help="File of the picture to draw.")
    ] = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Compares runs that were trained already, in one table; each begins at 0.

    The columns are those of `shoal compare`, which trains what it compares.
    """
    if plot:
        check_picture(plot)
    place = _root(context, root)
    found = [read_summary(find_run(run, place)) for run in runs]
    comparison = Comparison.of_runs(found)
    # A seed is a name: a table would give it thousands separators.
    seeds = [
        run.seed if as_json or run.seed is None else str(run.seed) for run in found
    ]
    rows = [
        {"run": run.id, **row, "seed": seed}
        for run, row, seed in zip(found, comparison.rows, seeds, strict=True)
    ]
    (show_json if as_json else show_records)(rows)
    if plot:
        comparison.plot(plot)


@app.command("logs")
def show_logs(
    context: typer.Context,
    run: RunId,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Only this worker; default all.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the run ends.")
    ] = False,
    root: Root = None,
) -> None:
    """Prints the output of the workers of a run, each line after its rank."""
    folder = find_run(run, _root(context, root))
    if follow:
        follow_logs(folder, rank)
    else:
        print_logs(folder, rank)


@app.command("resume")
def resume_run(
    context: typer.Context,
    run: RunId,
    workers: Annotated[
        str | None, typer.Option(help="A number, min-max or auto; default as before.")
    ] = None,
    verbose: Annotated[
        int | None, typer.Option(min=0, max=2, help="As for fit; default as before.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also resume a run that seems to be running, or lost its checkpoints.",
        ),
    ] = False,
    root: Root = None,
) -> None:
    """Resumes an interrupted run, from its last checkpoint to its end.

    Reading a run's folder can run code: resume only runs of your own.
    """
    folder = find_run(run, _root(context, root))
    choose_backend(backend_of(folder))
    import_module("shoal").resume(
        folder.url,
        workers=None if workers is None else read_workers("--workers", workers),
        verbose=verbose,
        force=force,
    )
    summary = read_summary(folder)
    say(f"{summary.id}: {summary.status}, {_samples(summary)} samples")
    say(f"model: {folder.url}/{model_file(folder)}")


@app.command("stop")
def stop_run(context: typer.Context, run: RunId, root: Root = None) -> None:
    """Stops a run as Ctrl-C does: its model is saved, and it can be resumed.

    The run may be on any machine that writes to the same folder or bucket.
    """
    folder = find_run(run, _root(context, root))
    outline = read_outline(folder)
    age_s = outline.heard_s
    if outline.status != "running":
        heard = "" if age_s is None else f": {last_heard(age_s)}"
        raise ConfigError(
            f"run {folder.name!r} is not running: its status is {outline.status!r}"
            f"{heard}. Expected a running one. "
            "Resume it with: shoal runs resume, or remove it."
        )
    ask_stop(folder, by=asking("shoal runs stop"))
    say(f"asked {folder.name} to stop; see: shoal runs show {folder.name}")
    if age_s is not None and age_s > LATE_S:
        say(f"{last_heard(age_s)}; it sees the request when it is back")


@app.command("rm")
def remove(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Run ids, or their unique beginnings."),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also remove a run that is running.")
    ] = False,
    root: Root = None,
) -> None:
    """Removes runs with all their files."""
    for run in runs:
        say(f"removed {remove_run(run, _root(context, root), force=force)}")


@app.command("prune")
def prune_runs(
    context: typer.Context,
    keep: Annotated[
        int | None, typer.Option(min=0, help="Newest runs to keep.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only runs older than this, such as 30d or 12h.")
    ] = None,
    root: Root = None,
) -> None:
    """Removes old runs; runs that are running stay."""
    removed = prune(
        _root(context, root),
        now=time.time(),
        keep=keep,
        older_than_s=None if older_than is None else parse_duration(older_than),
    )
    for run in removed:
        say(f"removed {run}")
    say(f"{len(removed)} runs removed.")


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration such as 90s, 45m, 12h, 30d or 2w.

    Raises:
        ConfigError: The text is not such a duration.

    Example:
        >>> parse_duration("12h")
        43200.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if not found:
        raise ConfigError(
            f"older_than={text!r} is not a duration. "
            "Expected a number and one of s, m, h, d, w. "
            "Write for example --older-than 30d."
        )
    return float(found[1]) * UNITS_S[found[2]]


def _root(context: typer.Context, root: str | None) -> str:
    """Returns the root: the command's option, else the group's, else the variable.

    Raises:
        ConfigError: An option names a folder that is not there.
    """
    named: str | None = root or context.obj
    if named is None:
        return environment().runs
    check_root(named)
    return named


def _facts(run: RunSummary) -> list[tuple[str, Any]]:
    """Returns the lines that describe a run, without empty ones."""
    report = run.report
    best = report.get("best") or {}
    reason = str(report.get("reason", "")).partition("\n")[0]
    shares = [
        f"{name} {report[f'{name}_share']:.0%}"
        for name in ("compute", "data", "wait", "exchange")
        if report.get(f"{name}_share", 0.0) >= 0.005
    ]
    lines: list[tuple[str, Any]] = [
        ("status", run.status),
        ("heard", "" if run.heard_s is None else last_heard(run.heard_s)),
        ("reason", reason if run.status == "failed" else ""),
        ("strategy", run.setting),
        ("workers", f"{run.workers}, {run.workers_lost} lost during the run"),
        ("started", run.started.replace("T", " ")),
        ("took", format_seconds(run.seconds)),
        ("epochs", f"{run.epochs} of {run.epochs_planned}"),
        ("rows", run.rows),
        ("samples", _samples(run)),
        ("exchanges", run.exchanges),
        ("workers' time", ", ".join(shares)),
        ("folder", run.url),
    ]
    if best:
        at = f"{best['metric']} {best['value']:.4g} in epoch {best['epoch'] + 1}"
        lines.insert(-1, ("best", at))
    return [line for line in lines if line[1] != ""]


def _samples(run: RunSummary) -> str:
    counts = f"{run.samples_committed:,} of {run.samples_expected:,} committed"
    beyond = f", {run.samples_overrun:,} beyond the end" if run.samples_overrun else ""
    return counts + beyond
