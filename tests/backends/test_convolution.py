"""Convolutions by matrix products are those of XLA, but for the order of their sums."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

if keras.backend.backend() != "jax":
    pytest.skip("a matter of XLA on processors", allow_module_level=True)

import jax
import jax.numpy as jnp
from hypothesis import assume, given, settings
from hypothesis import strategies as some
from jax import lax

from shoal.backends.base import ComputeSpec
from shoal.backends.jax import convolution as jax_convolution
from shoal.backends.jax.backend import JaxBackend
from shoal.backends.jax.convolution import MOST_TAPS, WIDE, ours, way_of

NUMBERS = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC")}
NUMBERS[3] = ("NDHWC", "DHWIO", "NDHWC")


def layer(axes: int, **given_: Any) -> Any:
    """A layer without bias: images and kernel to output."""

    def convolve(images: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            images, kernel, dimension_numbers=NUMBERS[axes], **given_
        )

    return convolve


def with_slopes(convolve: Any, images: Any, kernel: Any) -> list[Any]:
    """What a layer makes of images, and the gradients for both arguments."""
    shape = jax.eval_shape(convolve, images, kernel).shape
    slopes = np.random.default_rng(1).standard_normal(shape).astype("f4")

    @jax.jit
    def both(images: Any, kernel: Any) -> Any:
        found, back = jax.vjp(convolve, images, kernel)
        return found, *back(slopes)

    return [*map(np.asarray, both(images, kernel))]


def asked_of(convolve: Any, images: Any, kernel: Any) -> list[Any]:
    """What becomes of the convolutions of a layer and of its gradients, in order."""
    made = jax.eval_shape(convolve, images, kernel)

    def both(images: Any, kernel: Any) -> Any:
        found, back = jax.vjp(convolve, images, kernel)
        return found, *back(jnp.ones(made.shape, made.dtype))

    traced = jax.make_jaxpr(both)(images, kernel)
    ways = list[Any]()
    for equation in traced.jaxpr.eqns:
        if equation.primitive is lax.conv_general_dilated_p:
            images, kernel = (v.aval for v in equation.invars)
            ways.append(way_of(images, kernel, equation.params))
    return ways


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype("f4")


@settings(max_examples=40)
@given(
    axes=some.integers(1, 3),
    batch=some.integers(1, 6),
    channels=some.sampled_from([1, 2, 3, 5, WIDE]),
    filters=some.sampled_from([1, 4, 17]),
    window=some.integers(1, 4),
    stride=some.integers(1, 3),
    dilation=some.integers(1, 2),
    padding=some.sampled_from(["SAME", "VALID", (1, 0), (0, 2), (2, 2)]),
    more=some.integers(0, 5),
)
def test_every_layer_has_the_same_output_and_gradients(
    axes: int, batch: int, channels: int, filters: int, window: int, stride: int,
    dilation: int, padding: Any, more: int,
) -> None:  # fmt: skip
    reach = (window - 1) * dilation
    # Beyond it XLA's own gradients are cut by a padding, and read what is not there.
    assume(isinstance(padding, str) or max(padding) <= reach)
    size = reach + 2 + more
    images = normal(batch, *(size + axis for axis in range(axes)), channels)
    kernel = normal(*(window,) * axes, channels, filters)
    convolve = layer(
        axes, window_strides=(stride,) * axes, rhs_dilation=(dilation,) * axes,
        padding=padding if isinstance(padding, str) else [padding] * axes,
    )  # fmt: skip
    theirs = with_slopes(convolve, images, kernel)
    with ours():
        found = with_slopes(convolve, images, kernel)
    for one, other in zip(found, theirs, strict=True):
        scale = max(1.0, float(np.abs(other).max(initial=0)))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize(
    ("channels", "filters", "stride", "which"),
    [
        (3, 8, 1, ("of_thin", "of_kernel", None)),
        (3, 32, 1, (None, "of_kernel", None)),
        (8, 8, 1, (None, "of_kernel", None)),
        (8, 8, 2, (None, "of_kernel", None)),
        (WIDE, 8, 2, (None, "of_kernel", "of_input")),
    ],
)
def test_fast_convolutions_of_xla_are_kept(
    channels: int, filters: int, stride: int, which: tuple[str | None, ...]
) -> None:
    convolve = layer(2, window_strides=(stride, stride), padding="SAME")
    ways = asked_of(
        convolve, normal(4, 16, 16, channels), normal(3, 3, channels, filters)
    )
    assert len(ways) == 3
    found = {None if way is None else way.func.__name__ for way in ways}
    assert found == {*which}


@pytest.mark.parametrize(
    ("given_", "dtype"),
    [
        ({"feature_group_count": 2}, "float32"),
        ({"precision": lax.Precision.HIGHEST}, "float32"),
        ({}, "bfloat16"),
    ],
)
def test_unusual_convolutions_are_left_to_xla(
    given_: dict[str, Any], dtype: str
) -> None:
    convolve = layer(1, window_strides=(1,), padding="SAME", **given_)
    kernel = normal(3, 4 // given_.get("feature_group_count", 1), 4)
    both = [jnp.asarray(array, dtype) for array in (normal(2, 9, 4), kernel)]
    assert {*asked_of(convolve, *both)} == {None}


def test_a_large_kernel_is_left_to_xla() -> None:
    size = int(MOST_TAPS**0.5) + 1
    convolve = layer(2, window_strides=(1, 1), padding="SAME")
    ways = asked_of(convolve, normal(1, 16, 16, 4), normal(size, size, 4, 4))
    assert ways == [None] * 3


@pytest.mark.parametrize("pad", [(1, 1), (2, 0), (0, 3)])
def test_phases_that_are_cut_off_are_right(pad: tuple[int, int]) -> None:
    """The gradient of the input is compared with its defining sum."""
    slopes, kernel = normal(2, 6, 4), normal(2, WIDE, 4)
    size = 2 * 5 + 2 - sum(pad)
    wanted = np.zeros((2, size, WIDE), np.float64)
    for place, tap in itertools.product(range(6), range(2)):
        at = 2 * place + tap - pad[0]
        if 0 <= at < size:
            wanted[:, at] += slopes[:, place] @ kernel[tap].T
    turned = jnp.asarray(kernel[::-1])
    numbers = lax.ConvDimensionNumbers((0, 2, 1), (1, 2, 0), (0, 2, 1))
    back = [(1 - pad[0], 1 - pad[1])]

    def convolve(slopes: Any) -> Any:
        return lax.conv_general_dilated(
            slopes, turned, (1,), back, lhs_dilation=(2,), dimension_numbers=numbers
        )

    with ours():
        found = jax.jit(convolve)(slopes)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [3, WIDE])
def test_images_that_are_smaller_than_the_kernel(channels: int) -> None:
    convolve = layer(2, window_strides=(1, 1), padding="VALID")
    images, kernel = normal(2, 2, 2, channels), normal(3, 3, channels, 4)
    with ours():
        output, *slopes = with_slopes(convolve, images, kernel)
    assert output.shape == (2, 0, 0, 4)
    assert not any(slope.any() for slope in slopes)


def test_channels_first_are_left_to_xla() -> None:
    def convolve(images: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(images, kernel, (2, 2), "SAME")

    assert asked_of(convolve, normal(2, 16, 8, 8), normal(4, 16, 3, 3)) == [None] * 3


def lowered(convolve: Any, *args: Any) -> str:
    return (
        jax.jit(lambda *a: jax.vjp(convolve, *a)[1](jnp.ones((4, 8, 8, 4))))
        .lower(*args)
        .as_text()
    )


def test_only_programs_within_are_changed() -> None:
    convolve = layer(2, window_strides=(1, 1), padding="SAME")
    args = normal(4, 8, 8, 5), normal(3, 3, 5, 4)
    before = lowered(convolve, *args)
    with ours():
        within = lowered(convolve, *args)
    assert within.count("stablehlo.convolution") < before.count("stablehlo.convolution")
    assert lowered(convolve, *args) == before


@pytest.mark.parametrize("has_one_thread", [True, False])
@pytest.mark.parametrize("is_gradient", [True, False])
def test_workers_of_one_thread_use_it(
    monkeypatch: pytest.MonkeyPatch, has_one_thread: bool, is_gradient: bool
) -> None:
    asked = list[Any]()
    monkeypatch.setattr(jax_convolution, "way_of", lambda *a: asked.append(a))
    layers = keras.layers
    net = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(1)]
    )
    net.compile("sgd", "mse")
    data = normal(4, 8, 8, 3), np.ones((4, 1), np.float32)
    net.train_on_batch(*data)
    spec = ComputeSpec(
        window=2,
        batch_size=4,
        loss_at=(0,),
        is_alone=False,
        has_one_thread=has_one_thread,
    )
    JaxBackend(net, spec).warm_up(data, is_gradient=is_gradient)
    assert bool(asked) is has_one_thread


def test_programs_for_images_in_batches() -> None:
    convolve = layer(2, window_strides=(1, 1), padding="SAME")
    images, kernel = normal(3, 2, 8, 8, 3), normal(3, 3, 3, 4)
    theirs = [np.asarray(convolve(some_, kernel)) for some_ in images]
    with ours():
        both = jax.jit(jax.vmap(convolve, (0, None)))(images, kernel)
    np.testing.assert_allclose(both, theirs, rtol=1e-4, atol=1e-5)


def test_a_jax_version_with_other_private_names_is_left_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jax.interpreters import mlir

    monkeypatch.delattr(mlir, "register_lowering")
    jax_convolution._install.__wrapped__()
