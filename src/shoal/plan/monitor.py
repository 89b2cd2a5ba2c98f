"""Chooses the metric of the best model, and the direction in which it improves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.errors import ConfigError, PlanError
from shoal.facts import Monitor
from shoal.registry import did_you_mean

WAYS = {"max": True, "min": False}
UP = ("acc", "accuracy", "auc", "f1", "fbeta", "iou", "precision", "r2", "recall")
DOWN = ("crossentropy", "error", "loss", "mae", "mse", "msle", "rmse")
"""Last words of names, for metrics that do not declare a direction."""


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
    direction = _by_ending(bare) if bare.endswith("loss") else metrics.get(bare)
    direction = direction or _by_ending(bare)
    if way or not direction:
        raise PlanError(
            f"monitor={asked!r} does not say whether more of {name} is better. "
            "Expected a metric of Keras, which knows, a name that ends in a word such "
            f"as accuracy or loss, or a direction after it. Pass '{name}:max' or "
            f"'{name}:min'."
        )
    return Monitor(name=name, is_higher_better=direction == "up")


def _by_ending(name: str) -> str:
    """Returns "up" or "down" by the last word of a name, "" for an unknown word.

    Keras numbers metrics of one name (`auc_1`), and some are called a score.
    """
    if name.endswith("loss"):
        return "down"
    words = name.lower().split("_")
    while len(words) > 1 and (words[-1].isdigit() or words[-1] == "score"):
        words.pop()
    if words[-1] in UP:
        return "up"
    return "down" if words[-1] in DOWN else ""
