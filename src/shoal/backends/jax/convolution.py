"""Convolutions on processors by matrix products, where XLA's own are slow.

XLA is quick where a layer computes its output. For the gradient of a kernel it turns
the images around, so that a channel is an image and the output's gradient a kernel of
that size; for the gradient of the input of a layer with strides it fills in zeros, and
multiplies them, too; and where images have three channels its products are too thin.
Here the first is a sum of products of shifted images, a few at a time so that they stay
in the cache; the second is assembled from its phases, each a convolution without
strides; the third is a product for each row of the kernel. Results are the same except
for the order of their sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array: TypeAlias = Any
Pads: TypeAlias = Sequence[tuple[int, int]]

PLACES = 1024  # positions of images that are multiplied at once
MOST_TAPS = 128  # positions of a kernel: each is a product of its own
THIN, FEW = (2, 3), 16  # channels, filters: between them XLA's products are slow
WIDE = 16  # channels: with fewer, zeros cost XLA no time


_IS_OURS = ContextVar("_IS_OURS", default=False)


@contextmanager
def ours() -> Generator[None]:
    """Context in which convolutions of programs for processors are lowered like this.

    It is for one thread: XLA shares its own convolutions among several.
    """
    _install()
    token = _IS_OURS.set(True)
    try:
        yield
    finally:
        _IS_OURS.reset(token)


@cache
def _install() -> None:
    """Installs the rules, unless JAX's internal names have changed."""
    try:
        from jax.interpreters import mlir

        primitive: Any = lax.conv_general_dilated_p
        rules: Any = mlir._platform_specific_lowerings  # pyright: ignore
        before: Any = rules["cpu"][primitive].rule

        def rule(ctx: Any, lhs: Any, rhs: Any, **given: Any) -> Any:
            one, other = ctx.avals_in
            way = way_of(one, other, given) if _IS_OURS.get() else None
            if way is None:
                return before(ctx, lhs, rhs, **given)
            lowered: Any = mlir.lower_fun(way, multiple_results=False)
            return lowered(ctx, lhs, rhs)

        mlir.register_lowering(primitive, rule, platform="cpu")
    except (ImportError, AttributeError, KeyError, TypeError):
        return


def way_of(
    lhs: Any, rhs: Any, given: Mapping[str, Any]
) -> Callable[[Array, Array], Array] | None:
    """Chooses another way to compute a convolution; None means XLA's.

    Args:
        lhs: Shape and dtype of the first argument.
        rhs: Shape and dtype of the second argument.
        given: The other parameters of `jax.lax.conv_general_dilated_p`.
    """
    is_plain = lhs.dtype == rhs.dtype == np.float32 and given["precision"] is None
    if not is_plain or given["preferred_element_type"] not in (None, np.float32):
        return None
    if given["feature_group_count"] != 1 or given["batch_group_count"] != 1:
        return None
    if 0 in lhs.shape or 0 in rhs.shape:
        return None
    axes = lhs.ndim - 2
    places = tuple(range(axes))
    inner = tuple(axis + 1 for axis in places)
    spec = tuple(map(tuple, given["dimension_numbers"]))
    strides, fill = tuple(given["window_strides"]), tuple(given["lhs_dilation"])
    dilation = tuple(given["rhs_dilation"])
    pads = tuple((int(before), int(after)) for before, after in given["padding"])
    ones = (1,) * axes
    turned = (axes + 1, 0, *inner)
    if spec == (turned, turned, (axes, axes + 1, *places)) and fill == ones:
        taps = _taps(lhs.shape[1:-1], rhs.shape[1:-1], strides, pads, dilation)
        if not 0 < math.prod(taps) <= MOST_TAPS:
            return None
        of_some = partial(of_kernel, taps=taps, strides=strides)
        return partial(of_some, pads=pads, dilation=dilation)
    images = (0, axes + 1, *inner)
    into, back = (axes + 1, axes, *places), (axes, axes + 1, *places)
    if spec[0] != images or spec[2] != images or spec[1] not in (into, back):
        return None
    if fill != ones:
        is_wide = rhs.shape[spec[1][0]] >= WIDE and strides == dilation == ones
        return partial(of_input, spec=spec, pads=pads, fill=fill) if is_wide else None
    is_thin = lhs.shape[-1] in THIN and rhs.shape[-1] <= FEW and strides == ones
    if is_thin and spec[1] == into and math.prod(rhs.shape[:-2]) > 1:
        return partial(of_thin, pads=pads, dilation=dilation)
    return None


def _taps(
    lhs: Sequence[int],
    rhs: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Returns the positions of a convolution's result."""
    return tuple(
        max(0, (size + sum(pad) - ((window - 1) * apart + 1)) // stride + 1)
        for size, window, stride, pad, apart in zip(
            lhs, rhs, strides, pads, dilation, strict=True
        )
    )


def of_kernel(
    images: Array,
    slopes: Array,
    *,
    taps: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilation: Sequence[int],
) -> Array:
    """The gradient of a kernel.

    Args:
        images: Input of the layer, `(batch, *places, channels)`.
        slopes: Gradient of the layer's output, `(batch, *places there, filters)`.
        taps: Positions of the kernel.
        strides: Distance between two taps.
        pads: Padding of the images.
        dilation: The layer's strides.

    Returns:
        `(*taps, channels, filters)`.
    """
    there = slopes.shape[1:-1]

    def of_few(images: Array, slopes: Array) -> Array:
        row = _rows(
            _padded(images, pads), taps[-1], strides[-1], there[-1], dilation[-1]
        )
        all_but_last = tuple(range(len(there) + 1))
        numbers = ((all_but_last, all_but_last), ((), ()))
        return jnp.stack(
            [
                lax.dot_general(
                    _part(row, tap, strides, there, dilation), slopes, numbers
                )
                for tap in itertools.product(*map(range, taps[:-1]))
            ]
        )

    few = _few(images.shape[0], math.prod(there))
    total = _summed(of_few, few, images, slopes)
    return total.reshape(*taps, images.shape[-1], slopes.shape[-1])


def of_input(
    slopes: Array, kernel: Array, *, spec: Any, pads: Pads, fill: Sequence[int]
) -> Array:
    """The gradient of the input of a layer with strides.

    Args:
        slopes: Gradient of the layer's output, `(batch, *places, filters)`.
        kernel: The kernel turned around, with the axes of `spec`.
        spec: Dimension numbers of the convolution.
        pads: Padding of the slopes after zeros are filled in.
        fill: The layer's strides.

    Returns:
        `(batch, *places there, channels)`.
    """
    there = [
        (size - 1) * stride + 1 + sum(pad) - (window - 1)
        for size, stride, pad, window in zip(
            slopes.shape[1:-1], fill, pads, kernel.shape[:-2], strict=True
        )
    ]
    lengths = [-(-size // stride) for size, stride in zip(there, fill, strict=True)]
    numbers = lax.ConvDimensionNumbers(*spec)
    shape = (slopes.shape[0], *lengths, kernel.shape[spec[1][0]])
    found = list[Array]()
    for phase in itertools.product(*map(range, fill)):
        part, around = kernel, list[tuple[int, int]]()
        for axis, (pad, stride) in enumerate(zip(pads, fill, strict=True)):
            first = (pad[0] - phase[axis]) % stride
            begin = min(first, part.shape[axis])
            part = lax.slice_in_dim(part, begin, None, stride, axis)
            before = (pad[0] - phase[axis] - first) // stride
            taps = part.shape[axis]
            after = lengths[axis] - slopes.shape[axis + 1] - before + taps - 1
            around.append((before, after))
        given, left = slopes, around
        if any(min(pair) < 0 for pair in around):
            # XLA's convolutions may read beyond an edge that such a padding cuts off.
            given, left = _padded(slopes, around), [(0, 0)] * len(fill)
        found.append(
            lax.conv_general_dilated(
                given, part, (1,) * len(fill), left, dimension_numbers=numbers
            )
            if 0 not in part.shape
            else jnp.zeros(shape, np.float32)  # no tap of the kernel meets this phase
        )
    whole = _interleaved(found, fill)
    return whole[(slice(None), *(slice(size) for size in there))]


def _interleaved(phases: Sequence[Array], fill: Sequence[int]) -> Array:
    """Assembles whole images from phases, each of which has every n-th position."""
    batch, *lengths, channels = phases[0].shape
    count = len(fill)
    whole = jnp.stack(phases).reshape(*fill, batch, *lengths, channels)
    # From (*phases, batch, *places, channels): each phase axis goes behind its place
    # axis.
    pairs = [(count + 1 + axis, axis) for axis in range(count)]
    order = (count, *itertools.chain.from_iterable(pairs), 2 * count + 1)
    sizes = [length * stride for length, stride in zip(lengths, fill, strict=True)]
    return whole.transpose(order).reshape(batch, *sizes, channels)


def of_thin(
    images: Array, kernel: Array, *, pads: Pads, dilation: Sequence[int]
) -> Array:
    """The output of a layer without strides whose images have few channels.

    Args:
        images: `(batch, *places, channels)`.
        kernel: Kernel, `(*window, channels, filters)`.
        pads: Padding of the images.
        dilation: Dilation of the window.

    Returns:
        `(batch, *places there, filters)`.
    """
    window = kernel.shape[:-2]
    there = _taps(images.shape[1:-1], window, (1,) * len(window), pads, dilation)
    rows = kernel.reshape(*window[:-1], -1, kernel.shape[-1])

    def of_few(images: Array) -> Array:
        row = _rows(_padded(images, pads), window[-1], dilation[-1], there[-1], 1)
        found: Array = 0.0
        for place in itertools.product(*map(range, window[:-1])):
            found = (
                found
                + _part(row, place, dilation, there, (1,) * len(there)) @ rows[place]
            )
        return found

    few = _few(images.shape[0], math.prod(there))
    if few == images.shape[0]:
        return of_few(images)
    found = lax.map(of_few, _in_parts(images, few))
    return found.reshape(images.shape[0], *found.shape[2:])


def _rows(padded: Array, taps: int, between: int, count: int, apart: int) -> Array:
    """Shifts along the last axis, side by side: `(batch, *places, taps * channels)`."""
    axis = padded.ndim - 2
    shifted = [_cut(padded, axis, tap * between, count, apart) for tap in range(taps)]
    return jnp.concatenate(shifted, -1)


def _part(
    row: Array,
    place: Sequence[int],
    between: Sequence[int],
    there: Sequence[int],
    apart: Sequence[int],
) -> Array:
    """Returns the part of the images under one tap of all axes but the last."""
    for axis, tap in enumerate(place):
        row = _cut(row, axis + 1, tap * between[axis], there[axis], apart[axis])
    return row


def _padded(images: Array, pads: Pads) -> Array:
    around = [(before, after, 0) for before, after in pads]
    return lax.pad(images, np.float32(0), [(0, 0, 0), *around, (0, 0, 0)])


def _cut(array: Array, axis: int, start: int, count: int, apart: int) -> Array:
    """Returns every n-th position of an axis."""
    return lax.slice_in_dim(array, start, start + (count - 1) * apart + 1, apart, axis)


def _few(batch: int, places: int) -> int:
    """Returns how many images are processed at once: as many as fit the cache."""
    most = max(1, min(batch, PLACES // max(1, places)))
    return next(count for count in range(most, 0, -1) if batch % count == 0)


def _in_parts(array: Array, few: int) -> Array:
    return array.reshape(-1, few, *array.shape[1:])


def _summed(work: Callable[..., Array], few: int, *arrays: Array) -> Array:
    """Sums the results of `work` over a few images at a time."""
    if few == arrays[0].shape[0]:
        return work(*arrays)
    parts = [_in_parts(array, few) for array in arrays]
    shape = jax.eval_shape(work, *(part[0] for part in parts)).shape
    nothing = jnp.zeros(shape, np.float32)
    found, _ = lax.scan(lambda sum_, part: (sum_ + work(*part), None), nothing, parts)
    return found
