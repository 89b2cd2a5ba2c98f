"""Which metric the best model goes by, and which way that metric gets better."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import ConfigError, PlanError
from shoal.plan.monitor import choose_monitor
from shoal.plan.validation import is_validated, read_freq

METRICS = {
    "loss": "", "head_loss": "up", "accuracy": "up", "accuracy_error": "down",
    "head_auc_1": "", "brier_score": "", "fuel": "", "r2_score": "up", "mae": "down",
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "is_higher_better"),
    [
        ("loss", False),
        ("val_loss", False),
        ("head_loss", False),
        ("accuracy", True),
        ("val_accuracy", True),
        ("accuracy_error", False),  # the metric says so; its name would not
        ("head_auc_1", True),
        ("r2_score", True),
        ("mae", False),
        ("fuel:max", True),
        ("val_fuel:min", False),
        ("accuracy:min", False),
    ],
)
def test_directions(asked: str, is_higher_better: bool) -> None:
    found = choose_monitor(asked, METRICS, has_validation=True)
    assert found.name == asked.partition(":")[0]
    assert found.is_higher_better is is_higher_better


@pytest.mark.parametrize("asked", ["fuel", "val_fuel", "brier_score", "fuel:most"])
def test_an_unknown_direction_is_refused(asked: str) -> None:
    name = asked.partition(":")[0]
    with pytest.raises(PlanError, match=f"Pass '{name}:max' or '{name}:min'"):
        choose_monitor(asked, METRICS, has_validation=True)


@pytest.mark.parametrize(
    ("has_validation", "name"), [(True, "val_loss"), (False, "loss")]
)
def test_the_loss_is_the_default(has_validation: bool, name: str) -> None:
    found = choose_monitor(None, METRICS, has_validation=has_validation)
    assert (found.name, found.is_higher_better) == (name, False)


def test_a_metric_the_run_will_not_have() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        choose_monitor("accurate", METRICS, has_validation=True)
    with pytest.raises(ConfigError, match="unknown monitor 'val_loss'"):
        choose_monitor("val_loss", METRICS, has_validation=False)
    with pytest.raises(ConfigError, match="monitor=3 cannot be used"):
        choose_monitor(3, METRICS, has_validation=True)  # type: ignore[arg-type]


def test_callbacks_may_log_more() -> None:
    more: dict[str, Any] = {"has_validation": False, "may_be_new": True}
    assert choose_monitor("my_auc", METRICS, **more).is_higher_better
    assert not choose_monitor("sleep:min", METRICS, **more).is_higher_better
    with pytest.raises(PlanError, match="'sleep:max'"):
        choose_monitor("sleep", METRICS, **more)


@pytest.mark.parametrize("freq", [1, 2, 3, 4, 9, (1,), (2, 5), (9,), ()])
@pytest.mark.parametrize("epochs", [range(4), range(1, 4), range(4, 4), range(5, 3)])
def test_whether_anything_is_validated(freq: Any, epochs: range) -> None:
    listed = isinstance(freq, tuple)
    asked = [(e + 1) in freq if listed else (e + 1) % freq == 0 for e in epochs]
    assert is_validated(read_freq(freq), epochs) is any(asked)
