"""`shoal compare`: several strategies on one model and the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal import strategies
from shoal.cli.script import ProblemScript, load_problem, load_trainers
from shoal.cli.tables import AsJson, show_json, show_records
from shoal.errors import ConfigError
from shoal.runs.folder import is_place
from shoal.training.comparison import COLUMNS, Comparison, check_picture

if TYPE_CHECKING:
    from shoal.spark.comparing import TrainerComparison

HELP = "\n\n".join(
    [
        "Trains a model with several strategies on the same samples; prints one table.",
        "Its columns:",
        *(f"- {name}: {meaning}" for name, meaning in COLUMNS.items()),
    ]
)


def show_comparison(  # noqa: PLR0913 - one argument for each option
    script: ProblemScript,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="Name, or name:parameter=value,...; may be repeated."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Training processes; default as fit chooses."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of one step; default as fit chooses."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each strategy.")] = 1,
    root: Annotated[
        str | None,
        typer.Option(help="Folder or URL to keep the runs in; default: keep none."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="File of the picture to draw.")
    ] = None,
    as_json: AsJson = False,
    is_spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="The function returns (df, test_df, trainers) or (df, test_df, "
            "trainers, evaluator) for shoal.spark.compare; trainers have their own "
            "numbers, so only --plot and --json go with it.",
        ),
    ] = False,
) -> None:
    """Trains a model with several strategies on the same samples; see `HELP`."""
    # Misspelled strategies are refused before the script loads its data.
    chosen = [strategies.get(text) for text in strategy or ["single", "all_reduce"]]
    if plot:
        check_picture(plot)
    if is_spark:
        _refuse_others(strategy, workers, batch_size, root, epochs > 1 or seeds > 1)
        # PySpark is needed for this option alone.
        from shoal.spark.comparing import compare

        _show(compare(**load_trainers(script)), as_json, plot)
        return
    problem = load_problem(script)
    # Imports Keras, which the list of commands does not need.
    from shoal import api

    comparison = api.compare(
        problem.make_model,
        problem.x,
        problem.y,
        strategies=chosen,
        workers=workers or "auto",
        epochs=epochs,
        batch_size=batch_size,
        seeds=seeds,
        validation_data=problem.validation_data,
        run=_run(root),
        verbose=1,
    )
    _show(comparison, as_json, plot)


def _show(
    comparison: Comparison | TrainerComparison, as_json: bool, plot: Path | None
) -> None:
    if as_json:
        show_json(comparison.rows)
    else:
        show_records(comparison.rows)
    if plot:
        comparison.plot(plot)


def _refuse_others(*given: object) -> None:
    """Refuses options that trainers have numbers for.

    Raises:
        ConfigError: One is given.
    """
    if any(given):
        raise ConfigError(
            "--spark takes --plot and --json alone: strategies, workers, epochs and "
            "batches are those of the trainers that the function returns. Leave the "
            "other options out."
        )


def _run(root: str | None) -> str | Path | bool:
    """Turns a bare word into a folder; for `fit` it would be the name of a run."""
    if not root:
        return False
    return root if is_place(root) else Path(root)
