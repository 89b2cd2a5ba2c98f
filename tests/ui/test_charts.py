"""What is drawn: lowest and highest of each slice, first and last, at most N points."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from shoal.ui.charts import (
    Mark,
    Numbers,
    Points,
    Series,
    draw,
    sampled,
    smoothed,
    ticks,
    within,
)
from shoal.ui.curves import forward, merged_loss
from shoal.ui.exchanges import Column, Exchanges
from shoal.ui.pages.series import _values

NUMBERS = some.floats(-1e9, 1e9, allow_nan=False)


def add(to: Exchanges, samples: float, rows: int, loss: float, rank: int) -> None:
    to.add(t=[samples], time=[samples], samples=[samples], rows=[rows], loss=[loss],
           rank=[rank], staleness=[0])  # fmt: skip


def pairs_of(points: Points) -> list[tuple[float, float]]:
    return list(zip(points.x.tolist(), points.y.tolist(), strict=True))


@given(some.lists(NUMBERS, max_size=400), some.integers(4, 60))
def test_samples_keep_lowest_and_highest_values(values: list[float], most: int):
    points = [(float(at), value) for at, value in enumerate(values)]
    found = pairs_of(sampled(Points.of_pairs(points), most))
    assert len(found) <= max(4, most)
    assert found == sorted(found)
    assert set(found) <= set(points)
    if points:
        assert (found[0], found[-1]) == (points[0], points[-1])
        assert max(y for _, y in found) == max(values)
        assert min(y for _, y in found) == min(values)


@given(NUMBERS, some.floats(1e-6, 1e9))
def test_ticks_lie_between(low: float, span: float):
    found = ticks(low, low + span)
    slack = 1e-6 * max(1.0, abs(low), span)
    assert len(found) <= 12
    assert all(low - slack <= tick <= low + span + slack for tick in found)


def test_a_chart_is_well_formed_whatever_its_names():
    points = [(float(at), 1.0 / (at + 1)) for at in range(9)]
    hostile = '</svg><script>alert(1)</script>"&'
    text = draw(
        [
            Series(name=hostile, points=Points.of_pairs(points)),
            Series(name="none", points=Points()),
        ],
        [Mark(x=3.0, text=hostile), Mark(x=99.0, text="outside")],
        x_label=hostile,
        title=hostile,
    )
    tree = ElementTree.fromstring(text)
    assert not list(tree.iter("script"))
    assert len(tree.findall("polyline")) == 1
    assert "outside" not in text


def test_a_logarithmic_axis_leaves_out_values_up_to_zero():
    points = [(0.0, 0.0), (1.0, 0.01), (2.0, 100.0), (3.0, -1.0)]
    lines = [Series(name="x", points=Points.of_pairs(points))]
    text = draw(lines, x_label="x", title="x", is_log=True)
    assert text.count(",") >= 2
    lines = [Series(name="x", points=Points.of([0], [0]))]
    assert draw(lines, x_label="x", title="x", is_log=True) == ""


@given(some.lists(NUMBERS, max_size=200), some.floats(0.0, 0.99))
@example([1.0] * 3000, 0.99)
def test_smoothing_is_the_exponential_mean(values: list[float], factor: float):
    means: list[float] = []
    mean = weight = 0.0
    for value in values:
        mean = factor * mean + (1 - factor) * value
        weight = factor * weight + (1 - factor)
        means.append(mean / weight)
    found = smoothed(Points.of(range(len(values)), values), factor)
    assert found.x.tolist() == list(range(len(values)))
    assert found.y.tolist() == pytest.approx(
        means, rel=1e-9, abs=1e-9 * max(map(abs, values), default=0.0)
    )


@given(some.lists(NUMBERS, min_size=1, max_size=200), some.floats(0.0, 0.99))
def test_smoothing_stays_between_lowest_and_highest(values: list[float], factor: float):
    points = [(float(at), value) for at, value in enumerate(values)]
    found = pairs_of(smoothed(Points.of_pairs(points), factor))
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert [x for x, _ in found] == [x for x, _ in points]
    assert all(min(values) - slack <= y <= max(values) + slack for _, y in found)
    assert found[0][1] == pytest.approx(points[0][1])


@given(some.lists(NUMBERS, max_size=100), NUMBERS, NUMBERS)
def test_a_window_has_its_points_and_a_neighbour_at_each_side(
    xs: list[float], one: float, other: float
):
    low, high = sorted((one, other))
    points = [(x, 0.0) for x in sorted(xs)]
    found = pairs_of(within(Points.of_pairs(points), (low, high)))
    inside = [point for point in points if low <= point[0] <= high]
    assert [point for point in found if low <= point[0] <= high] == inside
    assert len(found) <= len(inside) + 2


@given(some.lists(some.tuples(NUMBERS, NUMBERS), max_size=60))
def test_what_a_rollback_undid_is_left_out(points: list[tuple[float, float]]):
    found = pairs_of(forward(Points.of_pairs(points)))
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    if points:
        assert found[-1] == points[-1]
        assert len(found) <= len(points)


LOSSES = some.lists(some.floats(0.0, 100.0), min_size=1, max_size=60)


@given(LOSSES, some.integers(1, 4), some.integers(0, 60))
def test_a_merged_loss_lies_between_those_of_workers(
    losses: list[float], workers: int, back_at: int
):
    found = Exchanges()
    total = 0.0
    for at, loss in enumerate(losses):
        total = 0.0 if at == back_at else total  # a rollback
        total += 64
        add(found, total, 64, loss, at % workers)
    points = pairs_of(merged_loss(found, "samples"))
    slack = 1e-9 * max(losses)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert all(min(losses) - slack <= y <= max(losses) + slack for _, y in points)


SOME_LOSSES = some.lists(
    some.tuples(
        some.one_of(some.floats(0.0, 100.0), some.just(math.nan), some.just(math.inf)),
        some.integers(0, 3),
        some.integers(0, 64),
    ),
    max_size=60,
)


@given(SOME_LOSSES)
def test_a_merged_loss_is_the_mean_of_as_many_exchanges_as_workers(
    exchanges: list[tuple[float, int, int]],
):
    found = Exchanges()
    expected: list[tuple[float, float]] = []
    seen, total, weight = set[int](), 0.0, 0
    for at, (loss, rank, rows) in enumerate(exchanges):
        add(found, at, rows, loss, rank)
        if not math.isfinite(loss):
            continue
        seen.add(rank)
        total, weight = total + loss * rows, weight + rows
        if (at + 1) % len(seen) == 0:
            expected += [(at, total / weight)] if weight else []
            total = weight = 0
    points = merged_loss(found, "samples")
    assert points.x.tolist() == [x for x, _ in expected]
    assert points.y.tolist() == pytest.approx([y for _, y in expected])


@pytest.mark.parametrize(
    "value", [0.0, 1.0, -0.1, 1 / 3, 12345.678, 3e-7, 2e20, 344064]
)
def test_values_of_charts_have_six_digits(value: float):
    assert _values(np.array([value])) == [pytest.approx(value, rel=1e-5)]
    assert len(str(_values(np.array([value]))[0]).replace("-", "")) <= 12


@given(some.lists(some.lists(NUMBERS, max_size=90), max_size=9))
def test_a_column_has_what_was_added(parts: list[list[float]]):
    column, whole = Column(np.float64), list[float]()
    earlier = list[tuple[Numbers, list[float]]]()
    for part in parts:
        earlier.append((column.values, list(whole)))
        column.extend(np.array(part, np.float64))
        whole += part
        assert column.values.tolist() == whole
        assert len(column) == len(whole)
    for values, was in earlier:
        assert values.tolist() == was
