"""Memory of vectors: parts do not overlap, are aligned, in a slot or outside of one."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shoal.engine.transport.buffers import Buffers, Sizes, aligned_bytes
from shoal.engine.transport.shared_memory import Slot

SIZES = st.builds(
    Sizes,
    vector=st.integers(1, 100),
    statistics=st.integers(0, 40),
    metrics=st.integers(0, 20),
    digest=st.just(""),
)


def parts(buffers: Buffers) -> list[np.ndarray]:
    return [
        buffers.message, buffers.message_statistics, buffers.metrics,
        buffers.reply, buffers.reply_statistics,
    ]  # fmt: skip


@given(SIZES)
def test_parts_do_not_overlap_and_start_at_cache_lines(sizes: Sizes) -> None:
    buffers = Buffers(sizes, None)
    for number, part in enumerate(parts(buffers)):
        part[:] = number
        assert part.size == 0 or part.ctypes.data % 64 == 0
    for number, part in enumerate(parts(buffers)):
        assert set(part.tolist()) <= {number}
    buffers.close()


@given(SIZES)
def test_without_a_slot_messages_go_over_the_socket(sizes: Sizes) -> None:
    buffers = Buffers(sizes, None)
    assert len(buffers.inline_up) == sizes.up_bytes
    assert len(buffers.inline_down) == sizes.down_bytes
    buffers.message[:] = 7
    text = bytes(buffers.inline_up)[: 4 * sizes.vector]
    assert np.frombuffer(text, np.float32).tolist() == [7] * sizes.vector
    buffers.close()


def test_both_ends_of_a_slot_see_the_same_bytes() -> None:
    sizes = Sizes(vector=5, statistics=3, metrics=2, digest="")
    made = Slot.make(sizes.slot_bytes)
    assert made is not None
    theirs = Slot.attach(str(made[0].path), sizes.slot_bytes, made[1])
    ends = Buffers(sizes, made[0]), Buffers(sizes, theirs)
    for number in range(5):
        parts(ends[0])[number][:] = number
        assert set(parts(ends[1])[number].tolist()) == {number}
    assert [len(end.inline_up) + len(end.inline_down) for end in ends] == [0, 0]
    for end in ends:
        end.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_close_while_a_program_still_reads_its_input(is_shared: bool) -> None:
    # The backend keeps the last mean of all_reduce, a view; closing raised BufferError.
    sizes = Sizes(vector=5, statistics=0, metrics=0, digest="")
    made = Slot.make(sizes.slot_bytes) if is_shared else None
    buffers = Buffers(sizes, made[0] if made else None)
    mean = buffers.reply
    mean[:] = 1
    buffers.close()
    assert mean.tolist() == [1] * 5


@given(st.integers(1, 300))
def test_aligned_bytes(size: int) -> None:
    found = aligned_bytes(size)
    assert found.size == size
    assert found.ctypes.data % 64 == 0
