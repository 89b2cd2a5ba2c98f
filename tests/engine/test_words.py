"""What a peer that has the run's key may say: any JSON in any field."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine import words
from shoal.engine.wire import BadFrame, unpack_head

# What the server turns into a bad frame, which closes the connection.
REFUSED = (ArithmeticError, LookupError, TypeError, ValueError)

PUSH: dict[str, Any] = {
    "kind": "push", "lineage": 0, "sequence": 3, "pieces": [[0, 0, 8, 8]], "steps": 2,
    "samples": 8.0, "group": 0, "rows": None, "own": [], "assumed": [], "doubt": 0,
    "times": [0.1, 0.1, 0.0, 0.1],
}  # fmt: skip
FAILURE = {"kind": "failed", "error": "e", "traceback": "t", "step": 1}
JOIN = {"kind": "join", "pid": 7, "node": "here", "token": "a", "hint": 0}
READERS = [(words.push, PUSH), (words.failure, FAILURE), (words.names, JOIN)]

hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([10**400, -1, 1 << 63, "\x00", "nan", "Infinity", "9" * 300])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def numbers_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers_in(v)]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers_in(v)]
    return [value] if isinstance(value, (int, float)) else []


@pytest.mark.parametrize(("read", "head"), READERS)
def test_what_a_worker_of_ours_says_is_taken(read: Any, head: Any) -> None:
    assert read(head)


@pytest.mark.parametrize(("read", "head"), READERS)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_value_in_any_field_is_refused_or_finite(
    read: Any, head: Any, data: Any
) -> None:
    field = data.draw(st.sampled_from(sorted(set(head) - {"kind"})))
    value = data.draw(hostile)
    try:
        found = read({**head, field: value})
    except REFUSED:
        return
    assert all(math.isfinite(float(n)) for n in numbers_in(found))
    assert all(abs(n) < 1 << 62 or isinstance(n, float) for n in numbers_in(found))
    json.dumps(found, allow_nan=False)  # what reaches the records of a run


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "push", "samples": ' + "9" * 5000 + "}",
        '{"kind": "push", "pieces": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"kind": ["push"]}',
        '["push"]',
        '{"kind": "push"',
        "\x00",
    ],
    ids=["5,000 digits", "deep", "kind is a list", "no object", "cut", "no JSON"],
)
def test_heads_that_no_peer_of_ours_sends(text: str) -> None:
    with pytest.raises(BadFrame):
        unpack_head(text.encode())
