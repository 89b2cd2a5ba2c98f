"""What is drawn: lowest and highest of each slice, first and last, at most N points."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.ui.charts import Mark, Series, draw, sampled, smoothed, ticks, within
from shoal.ui.curves import forward, merged_loss
from shoal.ui.live import Exchanges

NUMBERS = some.floats(-1e9, 1e9, allow_nan=False)


@given(some.lists(NUMBERS, max_size=400), some.integers(4, 60))
def test_samples_keep_lowest_and_highest_values(values: list[float], most: int):
    points = [(float(at), value) for at, value in enumerate(values)]
    found = sampled(points, most)
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
        [Series(name=hostile, points=points), Series(name="none", points=[])],
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
    text = draw([Series(name="x", points=points)], x_label="x", title="x", is_log=True)
    assert text.count(",") >= 2
    assert draw([Series(name="x", points=[(0.0, 0.0)])], x_label="x", title="x",
                is_log=True) == ""  # fmt: skip


@given(some.lists(NUMBERS, min_size=1, max_size=200), some.floats(0.0, 0.99))
def test_smoothing_stays_between_lowest_and_highest(values: list[float], factor: float):
    points = [(float(at), value) for at, value in enumerate(values)]
    found = smoothed(points, factor)
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
    found = within(points, (low, high))
    inside = [point for point in points if low <= point[0] <= high]
    assert [point for point in found if low <= point[0] <= high] == inside
    assert len(found) <= len(inside) + 2


@given(some.lists(some.tuples(NUMBERS, NUMBERS), max_size=60))
def test_what_a_rollback_undid_is_left_out(points: list[tuple[float, float]]):
    found = forward(points)
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
        found.samples.append(total)
        found.rows.append(64)
        found.loss.append(loss)
        found.rank.append(at % workers)
    points = merged_loss(found, "samples")
    slack = 1e-9 * max(losses)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert all(min(losses) - slack <= y <= max(losses) + slack for _, y in points)
