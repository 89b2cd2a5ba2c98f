"""The `shoal` command: the list of its commands."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import Annotated

import typer

import shoal
from shoal.cli import (
    cluster,
    compare,
    demo,
    doctor,
    fit,
    jobs,
    launch,
    runs,
    spark,
    strategies,
    tensorboard,
    ui,
)
from shoal.cli.backend import choose_backend
from shoal.cli.group import ErrorGroup
from shoal.terminal import say

app = typer.Typer(
    name="shoal",
    cls=ErrorGroup,
    help="Trains Keras models on many processes, and shows the results.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("strategies")(strategies.show_strategies)
app.command("compare", help=compare.HELP)(compare.show_comparison)
app.command("fit", no_args_is_help=True)(fit.fit_script)
app.command("demo")(demo.show_demo)
app.command("doctor")(doctor.show_findings)
app.command("launch", no_args_is_help=True)(launch.launch)
app.command("tensorboard", no_args_is_help=True)(tensorboard.show_tensorboard)
app.command("ui")(ui.show_page)
app.command("submit", no_args_is_help=True)(jobs.submit)
app.command("attach", no_args_is_help=True)(jobs.attach)
app.add_typer(cluster.app, name="cluster")
app.add_typer(jobs.app, name="jobs")
app.add_typer(runs.app, name="runs")
app.add_typer(spark.app, name="spark")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        say(f"shoal {shoal.__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    del debug, version  # ErrorGroup and the option's callback read them


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints the traceback of an error with --debug, safe for a terminal."""
    say("".join(traceback.format_exception(kind, error, trace)), err=True, end="")


def main() -> None:
    """Runs the command line and exits with its status."""
    sys.excepthook = _show_traceback
    # Keras imports TensorFlow where it is installed, under any backend, and that logs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    choose_backend()
    app(prog_name="shoal")
