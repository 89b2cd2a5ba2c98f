from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.runs.events import (
    EXCHANGE_FIELDS,
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
def test_encoded_events_are_decoded(events: list[dict]):
    assert list(decode(b"".join(map(encode, events)))) == events


def test_numpy_values_become_json():
    event = {"a": np.float32(0.5), "b": np.arange(2), "c": {1}, "d": object}
    found = json.loads(encode(event))
    assert (found["a"], found["b"], found["c"]) == (0.5, [0, 1], [1])
    assert "object" in found["d"]


def test_nan_and_infinity_become_null():
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


def test_only_later_segments_are_read(tmp_path: Path):
    folder = Folder.at(tmp_path)
    for number in range(3):
        folder.write(segment_name(number), encode({"kind": "x", "at": number}))
    assert [event["at"] for event in read_events(folder, after=0)] == [1, 2]


def as_json_reads_it(line: bytes) -> list[Any]:
    try:
        found = json.loads(line, parse_constant=lambda _: None)
    except ValueError:
        return []
    return [found] if isinstance(found, dict) else []


@given(some.dictionaries(some.text(), plain | some.floats()), some.booleans())
def test_lines_are_read_as_json_reads_them(event: dict[str, Any], ascii: bool):
    line = json.dumps(event, ensure_ascii=ascii).encode(errors="surrogatepass")
    assert repr(list(decode(line))) == repr(as_json_reads_it(line))


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1e999}', b'{"a":-0,"b":-0.0}', b'{"a":"\\ud800"}', b'{"a":NaN}',
        b'\xef\xbb\xbf{"a":1}', b'{"a":01}', b'{"a":1,}', b'{"a":"\x01"}', b'{"a":1',
        b'{"a":1}\x00', b'{"a":1,"a":2}', b'{"a":%s}' % (b"[" * 300 + b"]" * 300),
        b'{"a":0.1234567890123456789}', b'{"a":12345678901234567890123}', b"\xff{}",
    ],
)  # fmt: skip
def test_odd_lines_are_read_as_json_reads_them(line: bytes):
    assert repr(list(decode(line))) == repr(as_json_reads_it(line))
