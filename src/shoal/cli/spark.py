"""`shoal spark`: what jobs of Spark need on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from shoal.terminal import say

app = typer.Typer(help="Makes secrets for jobs of Spark that are sent to this machine.")


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Keeps `secret` a subcommand, alone as it is."""


@app.command("secret", no_args_is_help=True)
def make_secret(
    identity: Annotated[
        str, typer.Option(help="Name of the person or program that sends jobs.")
    ],
) -> None:
    """Makes a secret and prints it; an earlier one of that name ends.

    Pass it to shoal.spark.Job. This machine keeps a digest of it.
    """
    held = import_module("shoal.spark.job_secrets")
    say(held.add_secret(held.secrets_file(), identity))
