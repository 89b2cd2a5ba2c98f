"""Words of Threefry are those of the paper, and of JAX, from every maker."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from shoal.backends.jax import random_bits as jax_random
from shoal.backends.jax.random_bits import BLOCKS, PARITY, ROTATIONS, install, words

Array = npt.NDArray[np.uint32]
random: Any = jax.random

# Of the authors: counts, key, words.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def hashed(keys: tuple[Any, Any], one: Array, two: Array) -> tuple[Array, Array]:
    """The same by NumPy, which wraps as the paper does."""
    all_keys = (*keys, keys[0] ^ keys[1] ^ np.uint32(PARITY))
    one, two = one + all_keys[0], two + all_keys[1]
    for block in range(BLOCKS):
        for bits in ROTATIONS[block % 2]:
            one = one + two
            two = one ^ (two << np.uint32(bits) | two >> np.uint32(32 - bits))
        one = one + all_keys[(block + 1) % 3]
        two = two + all_keys[(block + 2) % 3] + np.uint32(block + 1)
    return one, two


@pytest.mark.parametrize(("counts", "key", "expected"), KNOWN)
def test_known_words(counts: Any, key: Any, expected: Any) -> None:
    given = [jnp.asarray([n], jnp.uint32) for n in (*key, *counts)]
    assert tuple(int(word[0]) for word in jax.jit(words)(*given)) == expected


def test_every_pattern_of_bits_passes() -> None:
    """NaN and denormal numbers too: one word in 128 is one when read as a float."""
    one = np.arange(1 << 18, dtype=np.uint32)
    two = one[::-1].copy()
    keys = np.uint32(7), np.uint32(0xDEADBEEF)
    found = jax.jit(words)(*map(jnp.asarray, (*keys, one, two)))
    for ours, theirs in zip(found, hashed(keys, one, two), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        with np.errstate(invalid="ignore"):
            assert np.isnan(np.asarray(theirs).view(np.float32)).any()


@pytest.fixture
def installed() -> None:
    install()
    jax.clear_caches()  # of programs that were made before


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("size", [0, 1, 2, 7, 600])
def test_numbers_of_jax_are_made_of_them(size: int) -> None:
    """Counts go in as two halves, an odd one with a zero behind it."""
    key = random.PRNGKey(3)
    with jax.threefry_partitionable(False):
        found = random.bits(key, (size,))
        text = jax.jit(lambda k: random.bits(k, (8,))).lower(key).as_text()
    half = -(-size // 2)
    counts = np.zeros(2 * half, np.uint32)
    counts[:size] = np.arange(size)
    one, two = map(np.uint32, np.asarray(key))
    expected = np.concatenate(hashed((one, two), counts[:half], counts[half:]))[:size]
    np.testing.assert_array_equal(found, expected)
    assert "complex" in text  # it is not JAX's own way


@pytest.mark.usefixtures("installed")
def test_keys_in_batches() -> None:
    keys = random.split(random.PRNGKey(5), 3)
    both = jax.vmap(lambda key: random.uniform(key, (5,)))(keys)
    for key, row in zip(keys, both, strict=True):
        np.testing.assert_array_equal(random.uniform(key, (5,)), row)
    assert jax.vmap(lambda key: random.bits(key, (5,)))(keys[:0]).shape == (0, 5)


@pytest.mark.usefixtures("installed")
def test_programs_that_are_spread_over_devices() -> None:
    from jax.sharding import Mesh, PartitionSpec

    spec = PartitionSpec("all")
    keys = random.split(random.PRNGKey(5), 2)
    mesh = Mesh(np.array(jax.devices()[:1]), ("all",))
    draw = jax.vmap(lambda key: random.bits(key, (4,)))
    spread = jax.shard_map(draw, mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(jax.jit(spread)(keys), draw(keys))


def test_a_jax_version_with_other_private_names_is_left_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jax.interpreters import mlir

    monkeypatch.delattr(mlir, "register_lowering")
    jax_random.install.__wrapped__()
