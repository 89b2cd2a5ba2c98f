"""Chooses the metric of the best model, and the direction in which it improves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.errors import ConfigError, PlanError
from shoal.facts import Monitor
from shoal.registry import did_you_mean

WAYS = {"max": True, "min": False}
UP = (
    "acc", "accuracy", "auc", "correlation", "f1", "fbeta", "io_u", "iou", "precision",
    "r2", "recall", "sensitivity", "similarity", "specificity", "true_negatives",
    "true_positives",
)  # fmt: skip
DOWN = (
    "cosh", "crossentropy", "divergence", "error", "false_negatives",
    "false_positives", "hinge", "huber", "kld", "logcosh", "loss", "mae", "mape", "mse",
    "msle", "perplexity", "poisson", "rmse",
)  # fmt: skip
"""Last words of names, for metrics that do not declare a direction: those of Keras'
losses and metrics, and their short forms."""


def choose_monitor(
    asked: str | None,
    metrics: Mapping[str, str],
    *,
    has_validation: bool,
    may_be_new: bool = False,
    unmergeable: Collection[str] = (),
) -> Monitor:
    """Finds the requested metric, and whether higher is better.

    Args:
        asked: A name as in a history, or "name:max" or "name:min"; None for the loss
            of validation, or else of training.
        metrics: The model's metrics: name -> "up", "down", or "" if undeclared.
        has_validation: Whether there are `val_` metrics as well.
        may_be_new: Whether callbacks may log metrics that the model does not have.
        unmergeable: Metrics that only validation shows.

    Raises:
        ConfigError: The run will have no such metric.
        PlanError: Training does not show it, or its direction is
            unknown.

    Example:
        >>> choose_monitor("val_auc", {"auc": "up"}, has_validation=True)
        Monitor(name='val_auc', is_higher_better=True)
        >>> choose_monitor("fuel:max", {"fuel": ""}, has_validation=False)
        Monitor(name='fuel', is_higher_better=True)
    """
    if asked is None:
        return Monitor(name="val_loss" if has_validation else "loss")
    if not isinstance(asked, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"monitor={asked!r} cannot be used. Expected the name of a metric. "
            "Leave it out to keep the model with the least loss."
        )
    known = [*metrics, *(f"val_{name}" for name in metrics if has_validation)]
    name, _, way = (asked, "", "") if asked in known else asked.partition(":")
    if name in unmergeable:
        raise PlanError(
            f"monitor={asked!r} is a metric that cannot be merged from several workers "
            "or exchanges. Expected one that training shows. "
            f"Pass validation_data and monitor='val_{asked}'."
        )
    if name not in known and not may_be_new:
        raise ConfigError(did_you_mean("monitor", name, known))
    if way in WAYS:
        return Monitor(name=name, is_higher_better=WAYS[way])
    bare = name.removeprefix("val_")
    direction = direction_of(bare, metrics)
    if way or not direction:
        raise PlanError(
            f"monitor={asked!r} does not say whether a higher {name} is better. "
            "Expected a metric of Keras, whose direction is known, a name that ends "
            "in a word such as accuracy or loss, or a direction after the name. Pass "
            f"'{name}:max' or '{name}:min'."
        )
    return Monitor(name=name, is_higher_better=direction == "up")


def direction_of(name: str, metrics: Mapping[str, str]) -> str:
    """Returns "up" or "down", the way in which a metric improves; "" if unknown.

    Args:
        name: Name in a history, without `val_`.
        metrics: What the model's metrics declare, as for `choose_monitor`.

    Example:
        >>> direction_of("mape", {}), direction_of("mean_io_u_1", {})
        ('down', 'up')
        >>> direction_of("fuel", {}), direction_of("fuel", {"fuel": "down"})
        ('', 'down')
    """
    if name.endswith("loss"):
        return "down"
    return metrics.get(name) or _by_ending(name)


def _by_ending(name: str) -> str:
    """Returns "up" or "down" by the last words of a name, "" for unknown words.

    Keras numbers metrics of one name (`auc_1`), and some are called a score.
    """
    words = name.lower().split("_")
    while len(words) > 1 and (words[-1].isdigit() or words[-1] == "score"):
        words.pop()
    ends = {words[-1], "_".join(words[-2:])}
    if ends.intersection(UP):
        return "up"
    return "down" if ends.intersection(DOWN) else ""
