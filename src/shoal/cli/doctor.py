"""`shoal doctor`: checks of this machine."""

from __future__ import annotations

import os
from dataclasses import asdict

import typer

from shoal.cli.tables import AsJson, show_json, show_table
from shoal.clusters.doctor import examine, read_signs
from shoal.plan import environment

SIGNS = {"good": "yes", "absent": "-", "wrong": "no"}


def show_findings(
    as_json: AsJson = False,
) -> None:
    """Checks what this machine can do, and prints each fault with its remedy.

    Ends with status 1 when there is a fault. A missing optional part is no fault.
    """
    backend = os.environ.get("KERAS_BACKEND", "jax")
    findings = examine(read_signs(backend, environment().runs))
    if as_json:
        show_json([asdict(finding) for finding in findings])
    else:
        rows = [(f.name, SIGNS[f.state], f.found or "-", f.fix) for f in findings]
        show_table(rows, columns=("what", "fine", "found", "what to do"))
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)
