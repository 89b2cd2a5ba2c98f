"""What is drawn: lowest and highest of each slice, first and last, at most N points."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as some

from shoal.ui.charts import Mark, Series, draw, sampled, ticks

NUMBERS = some.floats(-1e9, 1e9, allow_nan=False)


@given(some.lists(NUMBERS, max_size=400), some.integers(4, 60))
def test_samples_keep_what_stands_out(values: list[float], most: int):
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


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm():
    points = [(0.0, 0.0), (1.0, 0.01), (2.0, 100.0), (3.0, -1.0)]
    text = draw([Series(name="x", points=points)], x_label="x", title="x", is_log=True)
    assert text.count(",") >= 2
    assert draw([Series(name="x", points=[(0.0, 0.0)])], x_label="x", title="x",
                is_log=True) == ""  # fmt: skip
