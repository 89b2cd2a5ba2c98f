"""Soak and chaos judge as they say: what grows, what is lost, what is left behind."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chaos_report import Hit, Result, faults_of, goodput
from benchmarks.soak import Look, growth, judge

FLAT = Look(
    seconds=3.0, memory_mib=380.0, workers_mib=0.0, descriptors=6, threads=20,
    processes=0, files=0,
)  # fmt: skip


@given(st.floats(-5.0, 5.0), st.integers(4, 60), st.floats(-100.0, 100.0))
def test_a_line_grows_by_its_slope(slope: float, count: int, start: float) -> None:
    grown = growth([start + slope * at for at in range(count)])
    assert grown.middle == pytest.approx(slope * (count - 1), abs=1e-6)
    assert grown.low <= grown.middle <= grown.high


def test_a_few_odd_values_do_not_bend_the_line() -> None:
    values = [380.0] * 51
    values[7], values[50] = 460.0, 460.0
    assert growth(values).middle == 0.0


def test_noise_alone_is_no_growth() -> None:
    noise = random.Random(1)
    looks = [FLAT._replace(memory_mib=380 + noise.gauss(0, 1)) for _ in range(100)]
    assert all(is_well for _, is_well in judge(looks, 50).values())


@pytest.mark.parametrize("name", ["descriptors", "threads", "processes", "files"])
def test_one_thing_more_in_ten_fits_is_found(name: str) -> None:
    looks = [FLAT._replace(**{name: 6 + at // 10}) for at in range(100)]
    found = judge(looks, 50)
    assert [what for what, (_, is_well) in found.items() if not is_well] == [name]


def test_a_tenth_of_a_mebibyte_a_fit_is_found() -> None:
    looks = [FLAT._replace(memory_mib=380 + at / 10) for at in range(100)]
    assert not judge(looks, 50)["memory_mib"][1]


def test_growth_before_the_settled_fit_does_not_count() -> None:
    looks = [FLAT._replace(memory_mib=380 + min(at, 49)) for at in range(100)]
    assert all(is_well for _, is_well in judge(looks, 50).values())


# ---------------------------------------------------------------------- chaos


def exchanged(at: float, samples: int, epoch: int = 0) -> dict[str, Any]:
    columns = ["rank", "epoch", "samples"]
    rows = [[0, epoch, samples]]
    return {"kind": "exchanges", "time": at, "columns": columns, "rows": rows}


CALM = Result(
    strategy="aeasgd",
    expected=200,
    began=1000.0,
    seconds=10.0,
    accuracy=0.98,
    hits=[],
    events=[
        exchanged(1005.0, 100),
        {"kind": "epoch_ended", "time": 1006.0, "epoch": 0, "samples": 100},
        exchanged(1009.0, 100, epoch=1),
    ],
    leftovers=[],
)


def test_samples_that_are_rolled_back_are_not_committed() -> None:
    rollback = {"kind": "rollback", "time": 1007.0, "committed": {"0": 100}}
    lost = [*CALM.events[:2], exchanged(1006.5, 60, epoch=1), rollback, CALM.events[2]]
    wild = replace(CALM, events=lost)
    assert [samples for _, samples in wild.curve] == [0, 100, 100, 160, 100, 200]
    assert faults_of(CALM, wild) == []


def test_goodput_is_the_share_of_the_undisturbed_pace() -> None:
    wild = replace(CALM, seconds=20.0, hits=[Hit(1001.0, "worker", "SIGKILL", 7)])
    assert goodput(CALM, wild, 20.0) == pytest.approx(0.5)
    assert goodput(CALM, wild, 8.0) == pytest.approx(100 / (20 * 8))
    assert wild.hit_s == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"error": "WorkerLost: no"}, "did not end: WorkerLost: no"),
        ({"events": CALM.events[:2]}, "committed 100 samples of 200"),
        ({"accuracy": 0.969}, "lost more than a point of accuracy"),
        ({"leftovers": ["port 99"]}, "left behind: port 99"),
    ],
)
def test_a_promise_that_is_broken_is_named(fields: dict[str, Any], what: str) -> None:
    assert faults_of(CALM, replace(CALM, **fields)) == [what]
