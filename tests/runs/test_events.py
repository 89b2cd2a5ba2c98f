from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from shoal.runs.events import (
    EXCHANGE_FIELDS,
    EventReader,
    decode,
    encode,
    exchange_records,
    pack_exchanges,
    read_events,
    segment_name,
)
from shoal.runs.folder import Folder

plain = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text()
    | some.floats(allow_nan=False, allow_infinity=False),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(some.lists(some.dictionaries(some.text(), plain), max_size=5))
def test_what_is_encoded_is_decoded(events: list[dict]):
    assert list(decode(b"".join(map(encode, events)))) == events


def test_numpy_values_become_json():
    event = {"a": np.float32(0.5), "b": np.arange(2), "c": {1}, "d": object}
    found = json.loads(encode(event))
    assert (found["a"], found["b"], found["c"]) == (0.5, [0, 1], [1])
    assert "object" in found["d"]


def test_what_is_no_number_becomes_null():
    event = {"loss": math.nan, "all": [math.inf, {"x": np.float32("nan")}, 1.0]}
    found = json.loads(encode(event), parse_constant=lambda name: 1 / 0)
    assert found == {"loss": None, "all": [None, {"x": None}, 1.0]}


def test_a_torn_line_is_passed_over():
    whole = encode({"kind": "a"})
    assert list(decode(whole + whole[:7])) == [{"kind": "a"}]
    assert list(decode(b"\xff\xfe\n3\n" + whole)) == [{"kind": "a"}]


def test_exchanges_are_packed_and_unpacked():
    records = [
        {"rank": 0, "samples": 640, "loss": np.float32(0.1), "t": 1.23456789},
        {"rank": 1, "samples": 320, "loss": math.nan, "round": 7, "sums": [1.0]},
    ]
    packed = pack_exchanges(records)
    assert packed["columns"] == [*EXCHANGE_FIELDS, "round"]
    line = json.loads(encode({"kind": "exchanges", **packed}))
    first, second = exchange_records([{"kind": "warning"}, line])
    assert (first["samples"], first["loss"], first["t"]) == (640, 0.1, 1.234568)
    assert (second["rank"], second["loss"], second["round"]) == (1, None, 7)
    assert first["round"] is None


def test_exchanges_are_compact():
    record: dict[str, float] = dict.fromkeys(EXCHANGE_FIELDS, 1.2345678901234)
    line = encode({"kind": "exchanges", **pack_exchanges([record] * 100)})
    assert len(line) < 100 * 125 + 300


@given(
    some.lists(some.lists(some.integers(0, 99), max_size=4), min_size=1, max_size=4),
    some.lists(some.integers(1, 60), max_size=12),
)
def test_a_reader_tells_each_event_once_wherever_it_stopped(
    segments: list[list[int]], cuts: list[int]
) -> None:
    """Lines are written in parts, and read after each part."""
    with tempfile.TemporaryDirectory() as place:
        folder, found = Folder.at(place), list[int]()
        (Path(place) / "events").mkdir()
        reader = EventReader(folder)

        def read() -> None:
            found.extend(e["at"] for e in reader.new())

        for number, values in enumerate(segments):
            path = Path(place) / segment_name(number)
            content = b"".join(encode({"kind": "x", "at": value}) for value in values)
            path.touch()
            for size in [*cuts, len(content)]:
                with path.open("ab") as file:
                    file.write(content[:size])
                content = content[size:]
                read()
        assert found == [value for values in segments for value in values]
        assert [e["at"] for e in read_events(folder)] == found
        behind = [value for values in segments[1:] for value in values]
        assert [e["at"] for e in read_events(folder, after=0)] == behind
        assert list(reader.new()) == []
