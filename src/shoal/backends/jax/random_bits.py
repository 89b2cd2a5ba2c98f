"""Random numbers of JAX on processors, for three quarters of their cost.

The bits are the same. XLA makes one kernel for each output of a loop. Threefry has two,
and each needs all of the work, which is therefore done twice. Here both words are
packed into one complex number: one kernel. It lies in a loop of one iteration, whose
count XLA cannot know; otherwise every reader of the words, also for the gradient, would
be fused with their computation and repeat it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

Words: TypeAlias = Any
"""A uint32 array of JAX."""

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
BLOCKS = 5  # blocks of four rounds


@cache
def install() -> None:
    """Makes programs for processors compute words this way from now on.

    If JAX's internal names have changed, nothing is installed.
    """
    try:
        from jax.extend.random import threefry2x32_p
        from jax.interpreters import mlir

        rule: Any = mlir.lower_fun(words, multiple_results=True)
        mlir.register_lowering(threefry2x32_p, rule, platform="cpu")
    except (ImportError, AttributeError, TypeError):
        return


def words(
    key1: Words, key2: Words, count1: Words, count2: Words
) -> tuple[Words, Words]:
    """Returns both words of Threefry-2x32 with 20 rounds, for each pair of counts.

    Shapes: all four broadcast to that of both results.

    References:
        Salmon, Moraes, Dror, Shaw (2011), "Parallel random numbers: as easy as 1, 2,
        3", doi:10.1145/2063384.2063405.

    Example:
        >>> zero = jnp.zeros(1, jnp.uint32)
        >>> [hex(int(word[0])) for word in words(zero, zero, zero, zero)]
        ['0x6b200159', '0x99ba4efe']
    """
    given = (key1, key2, count1, count2)
    # Derived from an argument: if that is spread over devices, so is this.
    nothing = (key1 ^ key1) + (key2 ^ key2) + (count1 ^ count1) + (count2 ^ count2)
    packed = lax.fori_loop(
        0,
        _one(key1),
        lambda _, __: _pack(*_mixed(*given)),
        _pack(nothing, nothing),
    )
    return _word(lax.real(packed)), _word(lax.imag(packed))


def _mixed(
    key1: Words, key2: Words, count1: Words, count2: Words
) -> tuple[Words, Words]:
    keys = (key1, key2, key1 ^ key2 ^ np.uint32(PARITY))
    one, two = count1 + keys[0], count2 + keys[1]
    for block in range(BLOCKS):
        for bits in ROTATIONS[block % 2]:
            one = one + two
            left = lax.shift_left(two, np.uint32(bits))
            two = left | lax.shift_right_logical(two, np.uint32(32 - bits))
            two = one ^ two
        one = one + keys[(block + 1) % 3]
        two = two + keys[(block + 2) % 3] + np.uint32(block + 1)
    return one, two


def _one(value: Words) -> Any:
    """Returns one, as a value that no compiler can know."""
    odd = lax.bitwise_or(value, np.uint32(1))
    return jnp.min(odd, initial=1).astype(jnp.int32)


def _pack(one: Words, two: Words) -> Any:
    """Moves bits unchanged; the floats are never used in arithmetic."""
    return lax.complex(*(lax.bitcast_convert_type(w, jnp.float32) for w in (one, two)))


def _word(part: Any) -> Words:
    return lax.bitcast_convert_type(part, jnp.uint32)
