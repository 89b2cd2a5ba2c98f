"""Trainers side by side on one frame: scores, seconds, and two charts of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from shoal.errors import ConfigError
from shoal.training.comparison import check_picture, figure_class
from shoal.training.tables import table_of_records


@final
@dataclass(frozen=True, kw_only=True)
class TrainerEntry:
    """One training.

    Args:
        name: Name of the trainer.
        score: Score of the trained model on the test rows.
        seconds: Seconds of the training, with all that it waited for.
        samples: Samples of all workers, 0 if unknown.
        steps: Optimizer steps of all workers together, 0 if unknown.
        exchanges: Exchanges with the center.
        model: The trained model.
    """

    name: str
    score: float
    seconds: float
    samples: int = 0
    steps: int = 0
    exchanges: int = 0
    model: Any = field(default=None, repr=False, compare=False)


@final
@dataclass(frozen=True, kw_only=True)
class TrainerComparison:
    """The results of several trainers.

    Args:
        entries: One for each trainer, in order.
        metric: Name of the score.

    Example:
        >>> single = TrainerEntry(name="single", score=0.8, seconds=9.0)
        >>> other = TrainerEntry(name="aeasgd", score=0.79, seconds=6.0)
        >>> found = TrainerComparison(entries=(single, other), metric="f1")
        >>> found.results, found.improvement("aeasgd")
        ({'single': 0.8, 'aeasgd': 0.79}, 150.0)
    """

    entries: tuple[TrainerEntry, ...]
    metric: str

    @property
    def results(self) -> dict[str, float]:
        """Returns the scores by names of trainers."""
        return {entry.name: entry.score for entry in self.entries}

    @property
    def time_spent(self) -> dict[str, float]:
        """Returns the seconds by names of trainers."""
        return {entry.name: entry.seconds for entry in self.entries}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Returns a mapping for each trainer, as in `table`."""
        return [
            {
                "trainer": one.name,
                self.metric: one.score,
                "seconds": one.seconds,
                "samples": one.samples or None,
                "steps": one.steps or None,
                "exchanges": one.exchanges or None,
                "improvement_percent": self.improvement(one.name),
            }
            for one in self.entries
        ]

    def improvement(self, name: str) -> float:
        """Returns the seconds of the first trainer, in percent of another one's."""
        return self.entries[0].seconds / self.time_spent[name] * 100.0

    def table(self) -> Any:
        """Returns a `rich` table; print it with `rich.print`."""
        return table_of_records(self.rows)

    def plot(self, path: str | Path) -> Path:
        """Draws two bar charts: scores and seconds.

        Args:
            path: File of the picture; its ending decides the format.

        Raises:
            ConfigError: matplotlib is not installed, or the file cannot be written.
        """
        check_picture(path)
        figure = figure_class()(figsize=(11, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for axes, values, label in (
            (left, self.results, self.metric),
            (right, self.time_spent, "seconds"),
        ):
            bars = axes.bar(list(values), list(values.values()), 0.4, align="center")
            axes.bar_label(bars, fmt="%.3g", fontsize="small")
            axes.tick_params(axis="x", rotation=25)
            axes.set(ylabel=label, title=f"{label} by trainer")
        figure.savefig(path, dpi=120)
        return Path(path)


def compare(
    df: Any,
    test_df: Any,
    trainers: Mapping[str, Any],
    evaluator: Any = None,
    *,
    index_col: str = "predicted_index",
) -> TrainerComparison:
    """Trains with each trainer on the same rows, and scores the models on others.

    The models' predictions are the column `prediction`, the index of each its
    `prediction_index` and `index_col`.

    Args:
        df: DataFrame to train on; cache it, as each trainer reads it.
        test_df: DataFrame to score on.
        trainers: Trainers by names for the charts; the first is the baseline.
        evaluator: An evaluator of Spark ML or Shoal; default None: F1, of `index_col`
            against the column "label_index".
        index_col: A name for the column of indices.

    Raises:
        ConfigError: There are no trainers.
    """
    if not isinstance(trainers, Mapping) or not trainers:  # pyright: ignore
        raise ConfigError(
            f"trainers={trainers!r} cannot be used. Expected a dict from names to "
            "trainers. Pass trainers={'single': SingleTrainer(...), ...}."
        )
    scorer = evaluator or _f1(index_col)
    entries = [
        _entry(name, trainer, df, test_df, scorer, index_col)
        for name, trainer in trainers.items()
    ]
    named = getattr(scorer, "getMetricName", None)
    return TrainerComparison(
        entries=tuple(entries), metric=str(named()) if named else "score"
    )


def _f1(index_col: str) -> Any:
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    return MulticlassClassificationEvaluator(
        metricName="f1", predictionCol=index_col, labelCol="label_index"
    )


def _entry(
    name: str, trainer: Any, df: Any, test_df: Any, evaluator: Any, index_col: str
) -> TrainerEntry:
    trained = trainer.train(df)
    models = trained if isinstance(trained, list) else [trained]
    scores = [
        float(evaluator.evaluate(scored(test_df, model, trainer, index_col)))
        for model in models
    ]
    summary = trainer.run.summary()
    samples = int(summary.samples_committed)
    return TrainerEntry(
        name=name,
        score=float(np.mean(scores)),
        seconds=float(trainer.get_training_time()),
        samples=samples,
        steps=-(-samples // int(trainer.batch_size)),
        exchanges=int(summary.exchanges),
        model=trained,
    )


def scored(frame: Any, model: Any, trainer: Any, index_col: str) -> Any:
    """Returns a frame with predictions of a model and their indices."""
    from shoal.spark.predictor import ModelPredictor
    from shoal.spark.transformers import LabelIndexTransformer

    made = ModelPredictor(model, trainer.features_col).predict(frame)
    size = int(model.output_shape[-1])
    for column in dict.fromkeys(("prediction_index", index_col)):
        made = LabelIndexTransformer(size, output_col=column).transform(made)
    return made
