"""`shoal demo`: real data, a killed worker, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show_demo(
    out: Annotated[Path, typer.Option(help="File of the picture.")] = Path(
        "shoal-demo.png"
    ),
    workers: Annotated[
        int, typer.Option(min=1, help="Training processes, at least 2 for the kill.")
    ] = 2,
) -> None:
    """Trains on real data, compares with plain Keras, and kills a worker meanwhile."""
    # The demo draws and reads tables; its packages are an extra.
    from shoal.demo.main import run_demo

    run_demo(out=out, workers=workers)
