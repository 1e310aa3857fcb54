import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from pjax.errors import InputError
from pjax.rules.windows import explicit_padding, windows


def brute_force(x, window, strides, padding, dilation, fill):
    """Windows by looking up every position on its own."""
    sizes = [n + lo + hi for n, (lo, hi) in zip(x.shape, padding, strict=True)]
    out = [
        max((n - (w - 1) * d - 1) // s + 1, 0)
        for n, w, s, d in zip(sizes, window, strides, dilation, strict=True)
    ]
    result = np.full((*out, int(np.prod(window))), fill, x.dtype)
    for place in np.ndindex(*out):
        for k, offset in enumerate(np.ndindex(*window)):
            at = [
                p * s + o * d - lo
                for p, s, o, d, (lo, _) in zip(place, strides, offset, dilation, padding, strict=True)
            ]
            if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
                result[(*place, k)] = x[tuple(at)]
    return result


@st.composite
def cases(draw):
    ndim = draw(st.integers(1, 3))

    def per_axis(low, high):
        return tuple(draw(st.lists(st.integers(low, high), min_size=ndim, max_size=ndim)))

    padding = tuple(zip(per_axis(0, 2), per_axis(0, 2), strict=True))
    return per_axis(1, 6), per_axis(1, 3), per_axis(1, 3), padding, per_axis(1, 2)


@settings(max_examples=25, deadline=None)
@given(cases())
def test_windows_are_those_found_one_by_one(case):
    shape, window, strides, padding, dilation = case
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    found = jax.jit(lambda y: windows(y, window, strides, padding, dilation, fill=-1.0))(x)
    np.testing.assert_array_equal(found, brute_force(x, window, strides, padding, dilation, -1.0))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("dilation", [1, 2])
def test_windows_feed_reduce_window(padding, stride, size, dilation):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, size, size + 1)), jnp.float32)
    window, strides, dilate = (1, 3, 2), (1, stride, 2), (1, dilation, 1)
    pads = explicit_padding(padding, window, strides, x.shape, dilate)
    expected = lax.reduce_window(x, -np.inf, lax.max, window, strides, padding, window_dilation=dilate)
    found = windows(x, window, strides, pads, dilate, fill=-np.inf)
    np.testing.assert_array_equal(found.max(-1), expected)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_are_the_patches_of_a_convolution(padding, stride):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 7, 5, 3)), jnp.float32)
    expected = lax.conv_general_dilated_patches(
        x, (3, 2), (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    window, strides = (1, 3, 2, 1), (1, stride, stride, 1)
    found = windows(x, window, strides, explicit_padding(padding, window, strides, x.shape))
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-6)


def test_negative_padding_crops():
    x = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    padding = ((-1, 1), (1, -2))
    found = windows(jnp.asarray(x), (2, 2), (1, 2), padding, fill=7.0)
    expected = brute_force(
        np.pad(x[1:, :4], ((0, 1), (1, 0)), constant_values=7.0), (2, 2), (1, 2), [(0, 0)] * 2, (1, 1), 7.0
    )
    np.testing.assert_array_equal(found, expected)


def test_a_window_longer_than_the_axis_leaves_nothing():
    assert windows(jnp.ones((2, 5)), (3, 2), (1, 1), ((0, 0), (0, 0))).shape == (0, 4, 6)


def test_only_data_moves_and_the_transpose_counts_readers():
    x = jnp.ones((1, 5, 5, 2))
    args = ((1, 3, 3, 1), (1, 1, 1, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))

    def cut(y):
        return windows(y, *args)

    jaxpr = jax.make_jaxpr(cut)(x)
    used = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert set(used) <= {"pad", "slice", "concatenate", "reshape", "transpose"}
    assert used.count("slice") == 6
    (count,) = jax.linear_transpose(cut, x)(jnp.ones_like(cut(x)))
    expected = np.outer([2, 3, 3, 3, 2], [2, 3, 3, 3, 2])
    np.testing.assert_array_equal(count[0, :, :, 0], expected)


def test_windows_side_by_side_cost_one_slice():
    jaxpr = jax.make_jaxpr(lambda x: windows(x, (2, 2), (2, 2), ((0, 0), (0, 0))))(jnp.ones((5, 5)))
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["slice", "reshape", "transpose", "reshape"]


def test_under_jit_and_vmap():
    x = jnp.arange(24.0).reshape(2, 3, 4)

    def cut(y):
        return windows(y, (2, 3), (1, 1), ((1, 0), (1, 1)))

    expected = np.stack([cut(y) for y in x])
    np.testing.assert_array_equal(jax.jit(jax.vmap(cut))(x), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["SAME", "VALID", "SAME_LOWER", "same"]),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=3),
)
def test_explicit_padding_is_that_of_jax(padding, axes):
    window, strides, sizes = zip(*axes, strict=True)
    assert explicit_padding(padding, window, strides, sizes) == tuple(
        lax.padtype_to_pads(sizes, window, strides, padding)
    )


def test_explicit_padding_reads_numbers_and_dilation():
    assert explicit_padding(2, (3, 3), (1, 1), (5, 5)) == ((2, 2), (2, 2))
    assert explicit_padding([(0, 1), [2, 3]], (3, 3), (1, 1), (5, 5)) == ((0, 1), (2, 3))
    assert explicit_padding("SAME", (3,), (1,), (5,), (2,)) == ((2, 2),)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: explicit_padding("FULL", (3,), (1,), (5,)), "Unknown padding 'FULL'"),
        (lambda: explicit_padding([(1, 1)], (3, 3), (1, 1), (5, 5)), "padding needs one entry"),
        (lambda: explicit_padding([1, 1], (3, 3), (1, 1), (5, 5)), "pairs"),
        (lambda: explicit_padding(1.5, (3,), (1,), (5,)), "pairs"),
        (lambda: explicit_padding("SAME", (3,), (0,), (5,)), "strides must be positive"),
        (lambda: windows(jnp.ones(3), (1, 1), (1,), ((0, 0),)), "window needs one entry"),
        (lambda: windows(jnp.ones(3), (0,), (1,), ((0, 0),)), "window must be positive"),
        (lambda: windows(jnp.ones(3), (1,), (1,), ((-2, -2),)), "crops more"),
    ],
)
def test_wrong_arguments_are_explained(call, words):
    with pytest.raises(InputError, match=words):
        call()
