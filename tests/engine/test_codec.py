"""Codecs: errors of vectors are bounded, and nothing is lost in the long run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.engine.transport.buffers import Buffers, Sizes
from shoal.engine.transport.codec import (
    BLOCK,
    CODECS,
    LARGEST,
    Codec,
    ConnectionCodec,
    VectorDecoder,
    VectorEncoder,
    connection_codec,
)
from shoal.engine.transport.segments import SEGMENT
from shoal.strategies import get
from shoal.vectors import Vector

SIZES = st.sampled_from([1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
EACH = pytest.mark.parametrize("name", CODECS)


def floats(size: int, most: float = 1e6) -> st.SearchStrategy[Vector]:
    return arrays(np.float32, size, elements=st.floats(-most, most, width=32))


def said(codec: Codec, values: Vector) -> Vector:
    data = np.empty(codec.size(values.size), np.uint8)
    codec.encode(values, data)
    return codec.decode(data)


def bound(name: str, values: Vector) -> Vector:
    """Bound of the error of each number."""
    if name == "bfloat16":
        return np.maximum(np.abs(values) / 256, 1e-40)
    padded = np.zeros(-(-values.size // BLOCK) * BLOCK, np.float32)
    padded[: values.size] = np.abs(values)
    largest = padded.reshape(-1, BLOCK).max(axis=1).repeat(BLOCK)[: values.size]
    return largest / 254 * 1.0001 + 1e-35


@EACH
@given(SIZES.flatmap(floats))
def test_no_decoded_number_is_off_by_more_than_the_codecs_bound(
    name: str, values: Vector
) -> None:
    found = said(CODECS[name], values)
    assert np.all(np.abs(found - values) <= bound(name, values))


@EACH
def test_the_largest_and_the_smallest_numbers(name: str) -> None:
    values = np.array([LARGEST, -LARGEST, 1e-45, 0.0, -0.0], np.float32)
    assert np.isfinite(said(CODECS[name], values)).all()
    assert not said(CODECS[name], np.zeros(5, np.float32)).any()
    tiny = np.full(5, 1e-39, np.float32)
    assert np.all(np.abs(said(CODECS[name], tiny)) <= 2e-39)


@EACH
@given(st.data())
def test_encoded_changes_add_up_to_the_exact_sum(
    name: str, data: st.DataObject
) -> None:
    """What was decoded, and what is left over, add up to what was sent."""
    size, codec = data.draw(SIZES), CODECS[name]
    sender = VectorEncoder(codec, size, is_place=False)
    receiver = VectorDecoder(codec, size, is_place=False)
    meant, got = np.zeros(size), np.zeros(size)
    largest, into = 0.0, np.empty(size, np.float32)
    for _ in range(6):
        values = data.draw(floats(size, 10.0))
        coded = sender.pack(values)
        assert coded is not None
        assert len(coded) == receiver.size < 4 * size + 4
        receiver.unpack(coded, into)
        meant += values
        got += into
        largest = max(largest, float(np.abs(values).max()))
        # One rounding of the last message, however many there were.
        assert np.abs(meant - got).max() <= 2 * largest / 127 + 1e-4


@EACH
@given(st.data())
def test_decoded_weights_follow_the_exact_ones(name: str, data: st.DataObject) -> None:
    """The other end is as near as the rounding of the last difference."""
    size, codec = data.draw(SIZES), CODECS[name]
    sender = VectorEncoder(codec, size, is_place=True)
    receiver = VectorDecoder(codec, size, is_place=True)
    place = data.draw(floats(size, 1000.0))
    assert sender.pack(place) is None
    there = place.copy()
    for _ in range(6):
        place = place + data.draw(floats(size, 1.0))
        coded = sender.pack(place)
        assert coded is not None
        before = there.copy()
        receiver.unpack(coded, there)
        move = place - before
        assert np.all(np.abs(there - place) <= bound(name, move) + 1e-3)
    for _ in range(4):  # it stands still: what was left out arrives
        coded = sender.pack(place)
        assert coded is not None
        receiver.unpack(coded, there)
    np.testing.assert_allclose(there, place, rtol=1e-6, atol=1e-6)


@EACH
@pytest.mark.parametrize("is_place", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_vectors_with_huge_or_non_finite_numbers_go_unencoded(
    name: str, is_place: bool, bad: float
) -> None:
    sender = VectorEncoder(CODECS[name], 4, is_place=is_place)
    receiver = VectorDecoder(CODECS[name], 4, is_place=is_place)
    good, ill = np.ones(4, np.float32), np.array([1, bad, 1, 1], np.float32)
    there = good.copy()
    sender.pack(good)
    assert sender.pack(ill) is None
    there[:] = ill
    for number in range(3):  # and it is well again soon
        values = good * np.float32(number)
        coded = sender.pack(values)
        if coded is None:
            there[:] = values
        else:
            receiver.unpack(coded, there)
    np.testing.assert_allclose(there, good * 2, rtol=0.02)


@EACH
@pytest.mark.parametrize("other", ["a snapshot", "a gradient that is not finite"])
def test_the_error_of_a_change_survives_an_unencoded_vector(
    name: str, other: str
) -> None:
    """A checkpoint, or one overflow of a scaled loss, causes no rounding."""
    sender = VectorEncoder(CODECS[name], 3, is_place=False)
    receiver = VectorDecoder(CODECS[name], 3, is_place=False)
    values = np.array([1.0, 0.0123, -0.3377], np.float32)
    first, rest = np.empty(3, np.float32), np.empty(3, np.float32)
    coded = sender.pack(values)
    assert coded is not None
    receiver.unpack(coded, first)
    assert not np.array_equal(first, values)
    if other == "a snapshot":
        sender.sent(np.full(3, 7.0, np.float32))
    else:
        assert sender.pack(np.full(3, np.inf, np.float32)) is None
    coded = sender.pack(np.zeros(3, np.float32))
    assert coded is not None
    receiver.unpack(coded, rest)
    np.testing.assert_allclose(first + rest, values, atol=2e-5)


@EACH
def test_a_long_vector_is_encoded_by_segments(name: str) -> None:
    size = 2 * SEGMENT + 77
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    sender = VectorEncoder(CODECS[name], size, is_place=False)
    receiver = VectorDecoder(CODECS[name], size, is_place=False)
    coded, into = sender.pack(values), np.empty(size, np.float32)
    assert coded is not None
    receiver.unpack(coded, into)
    assert np.all(np.abs(into - values) <= bound("int8", values))
    assert len(coded) / values.nbytes == pytest.approx(
        {"bfloat16": 0.5, "int8": 0.254}[name], abs=0.001
    )


# ------------------------------------------------------------------ parcels


@EACH
@pytest.mark.parametrize("strategy", ["aeasgd", "downpour", "all_reduce", "local_sgd"])
def test_a_message_and_a_reply(name: str, strategy: str) -> None:
    sizes = Sizes(vector=300, statistics=3, metrics=2, digest="", codec=name)
    here, there = Buffers(sizes, None), Buffers(sizes, None)
    worker = ConnectionCodec(here, get(strategy), is_server=False)
    server = ConnectionCodec(there, get(strategy), is_server=True)
    for number in range(4):
        here.message[:] = np.arange(300) * number / 300
        here.message_statistics[:] = number
        here.metrics[:] = 10.0 + number
        parts = worker.pack()
        if parts is None:
            assert number == 0
            there.up[:] = here.up
        else:
            body = memoryview(b"".join(parts) + b"more")
            assert server.unpack(body) == len(body) - 4
        np.testing.assert_allclose(there.message, here.message, atol=0.02)
        assert there.message_statistics.tolist() == [number] * 3
        assert there.metrics.tolist() == [10.0 + number] * 2
        there.reply[:] = here.message
        there.reply_statistics[:] = -number
        parts = server.pack()
        if parts is None:
            assert number == 0 or strategy == "all_reduce"
            here.down[:] = there.down
        else:
            assert worker.unpack(memoryview(b"".join(parts)))
        np.testing.assert_allclose(here.reply, there.reply, atol=0.02)
        assert here.reply_statistics.tolist() == [-number] * 3


def test_a_frame_shorter_than_a_vector_is_refused() -> None:
    sizes = Sizes(vector=300, statistics=3, metrics=2, digest="", codec="int8")
    server = ConnectionCodec(Buffers(sizes, None), get("downpour"), is_server=True)
    for body in (b"", bytes(300), bytes(308)):
        with pytest.raises(ValueError, match="encoded vector"):
            server.unpack(memoryview(body))


def test_nothing_is_encoded_by_default() -> None:
    sizes = Sizes(vector=3, statistics=0, metrics=0, digest="")
    assert connection_codec(Buffers(sizes, None), get("aeasgd"), is_server=True) is None
