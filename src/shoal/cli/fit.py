"""`shoal fit`: trains the model of a script, or shows what would happen."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from shoal import strategies
from shoal.cli.script import ProblemScript, load_problem
from shoal.cli.tables import show_json
from shoal.errors import ConfigError
from shoal.plan.variables import read_workers
from shoal.runs.store import StoredRun, check_name, model_file
from shoal.terminal import say


def fit_script(  # noqa: PLR0913 - one argument for each option
    script: ProblemScript,
    strategy: Annotated[
        str, typer.Option(help="Name, or name:parameter=value,...")
    ] = "all_reduce",
    workers: Annotated[
        str, typer.Option(help="Training processes: a number, min-max or auto.")
    ] = "auto",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of one step; default as fit chooses."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Where workers run, as for fit; default $SHOAL_CLUSTER."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILES",
            help="Files to train on in place of the script's x and y: a path, a glob, "
            "or a URL such as s3://bucket/prefix/. The function may then return "
            "make_model alone.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="With --data: column of targets; several are given in turn."),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            "--feature",
            help="With --data: column of inputs; several are given in turn. Default "
            "all columns but labels.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; default the model's.")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="Folder or URL of runs; default $SHOAL_RUNS, ./shoal-runs."),
    ] = None,
    is_plan: Annotated[
        bool, typer.Option("--plan", help="Show what would happen, start nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --plan: as JSON.")
    ] = False,
) -> None:
    """Trains the model of a script with one strategy, and keeps the run.

    The script is the one of `shoal compare`.
    """
    chosen = strategies.get(strategy)
    count = read_workers("--workers", workers)
    check_name(name)
    if as_json and not is_plan:
        raise ConfigError(
            "--json is given without --plan. Expected both: JSON is a form of what "
            "--plan shows. Add --plan, or leave --json out."
        )
    if (label or features) and not data:
        raise ConfigError(
            "--label or --feature is given without --data. Expected both: they name "
            "columns of its files. Add --data, or leave them out."
        )
    if root:
        os.environ["SHOAL_RUNS"] = root
    problem = load_problem(script, needs_data=not data)
    # Imports Keras, which the list of commands does not need.
    from shoal import api

    arguments: dict[str, Any] = {
        "strategy": chosen, "workers": count, "epochs": epochs, "cluster": cluster,
        "batch_size": batch_size, "validation_data": problem.validation_data,
    }  # fmt: skip
    x, y = problem.x, problem.y
    if data:
        x, y = data, None
        arguments |= {"label": _columns(label), "features": features or None}
    model = problem.make_model()
    if is_plan:
        plan = api.plan(model, x, y, **arguments)
        if as_json:
            show_json(plan.to_json())
        else:
            say(plan.explain())
        return
    run = api.fit(model, x, y, run=name, verbose=2, **arguments).run
    say(f"{run.id}: {run.summary().status}")
    if isinstance(run, StoredRun):
        say(f"model: {run.url}/{model_file(run.folder)}")


def _columns(names: list[str] | None) -> str | list[str] | None:
    """Returns one name as it is, so that targets have no axis of columns."""
    return names[0] if names and len(names) == 1 else names or None
