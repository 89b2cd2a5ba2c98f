"""A run that diverges is told of, once; noise, a plateau and NaN are not."""

from __future__ import annotations

import math
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import shoal
from shoal.errors import ShoalWarning
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.training.divergence import Divergence, DivergenceWatch
from tests.api.problems import line, linear

EXCHANGES = 600
"""As many as a few epochs have."""


def told(losses: object, per_block: int = 12) -> list[Divergence]:
    """The divergences that are found, of exchanges of one size."""
    watch = DivergenceWatch(per_block * 32)
    found = [watch.add(float(loss), 32) for loss in np.asarray(losses)]
    return [divergence for divergence in found if divergence is not None]


@given(
    seed=some.integers(0, 2**32 - 1),
    noise=some.floats(0.0, 1.0),
    half_life=some.floats(3.0, 400.0),
    floor=some.floats(0.0, 1.0),
    scale=some.sampled_from([1e-3, 1.0, 1e6]),
)
def test_noisy_losses_that_fall_are_no_divergence(
    seed: int, noise: float, half_life: float, floor: float, scale: float
):
    at = np.arange(EXCHANGES)
    falling = floor + (1 - floor) * 0.5 ** (at / half_life)
    draws = np.random.default_rng(seed).standard_normal(EXCHANGES)
    assert told(scale * falling * np.exp(noise * draws)) == []


@given(
    level=some.floats(-1e6, 1e6),
    odd=some.lists(some.sampled_from([math.nan, math.inf, -math.inf]), max_size=200),
)
def test_a_constant_loss_and_nan_are_no_divergence(level: float, odd: list[float]):
    assert told([*odd, *[level] * 400, *odd, *[level] * 400, *odd]) == []
    assert told(odd) == []


@given(seed=some.integers(0, 2**32 - 1), rise=some.floats(4.0, 50.0))
def test_a_loss_that_rises_for_long_is_told_once(seed: int, rise: float):
    draws = np.random.default_rng(seed).standard_normal(EXCHANGES)
    losses = np.where(np.arange(EXCHANGES) < 200, 0.3, 0.3 * rise + 0.6)
    losses[:12] = 2.3
    [found] = told(losses * np.exp(0.2 * draws))
    assert found.least == pytest.approx(0.3, rel=0.3)
    assert found.now > found.least + 0.5


def test_a_short_rise_is_no_divergence():
    losses = np.full(EXCHANGES, 0.3)
    losses[:12], losses[300:324] = 2.3, 9.0  # two blocks, as after a worker is replaced
    assert told(losses) == []


def test_a_run_that_diverges_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Changes of four workers are added up at a rate that is right for one."""
    x, y = line(4096)
    with pytest.warns(ShoalWarning, match="known to overshoot there with 4 workers"):
        history = shoal.fit(
            linear(optimizer=keras.optimizers.SGD(0.1)), x, y, epochs=3, batch_size=16,
            strategy="downpour", workers=4, cluster="inline", run=str(tmp_path), seed=1,
            verbose=2,
        )  # fmt: skip
    told = [w for w in history.run.summary().warnings if "diverges" in w]
    assert len(told) == 1
    assert told[0].startswith("downpour diverges: the loss of the last exchanges is")
    assert "strategy='diloco', or compile with learning_rate=0.025" in told[0]
    assert capsys.readouterr().out.count(told[0]) == 1
    events = read_events(Folder.at(history.run.url))
    [event] = [e for e in events if e.get("cause") == "divergence"]
    assert event["now"] > event["least"] > 0
    assert event["epoch"] <= 1
