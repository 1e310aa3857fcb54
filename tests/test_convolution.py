"""Convolutions and windows, against `lax.conv_general_dilated` and loops."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from pjax.errors import InputError
from pjax.rules import dot_general
from pjax.rules.convolution import Convolution
from pjax.rules.dot_general import DotGeneral
from pjax.rules.windows import explicit_padding, windows

# --- Convolutions as contractions, against JAX's and their transposes ---

ROWS = (0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)  # NHWC, HWIO, NHWC

# Shapes of input and kernel, axes, and settings that are not the default.
CASES = {
    "same": ((2, 5, 6, 3), (3, 3, 3, 4), ROWS, {"padding": ((1, 1), (1, 1))}),
    "one channel": ((3, 6, 5, 1), (3, 3, 1, 4), ROWS, {"padding": ((1, 1), (1, 1))}),
    "many channels": ((2, 4, 4, 8), (3, 3, 8, 2), ROWS, {"padding": ((1, 1), (1, 1))}),
    "one by one": ((2, 4, 3, 5), (1, 1, 5, 2), ROWS, {}),
    "as large as the input": ((2, 4, 3, 2), (4, 3, 2, 3), ROWS, {}),
    "even kernel": ((2, 5, 5, 2), (2, 4, 2, 3), ROWS, {"padding": ((0, 1), (1, 2))}),
    "strides that leave a rest": ((2, 8, 7, 2), (3, 2, 2, 3), ROWS, {"strides": (3, 2)}),
    "strides longer than the kernel": ((1, 9, 8, 2), (2, 1, 2, 3), ROWS, {"strides": (4, 3)}),
    "padding beyond the kernel": ((1, 3, 4, 2), (2, 2, 2, 2), ROWS, {"padding": ((3, 2), (0, 4))}),
    "cropped": ((2, 6, 7, 2), (2, 3, 2, 2), ROWS, {"padding": ((-1, 0), (1, -2))}),
    "dilated kernel": (
        (2, 9, 8, 2),
        (3, 2, 2, 3),
        ROWS,
        {"kernel_dilation": (2, 3), "padding": ((1, 2), (0, 1)), "strides": (1, 2)},
    ),
    "dilated input": (
        (2, 3, 4, 2),
        (3, 2, 2, 3),
        ROWS,
        {"input_dilation": (2, 3), "padding": ((2, 1), (0, 1)), "strides": (1, 2)},
    ),
    "dilated both": (
        (2, 3, 4, 2),
        (2, 3, 2, 3),
        ROWS,
        {"input_dilation": (3, 2), "kernel_dilation": (2, 1), "padding": ((1, 0), (2, 2))},
    ),
    "groups": ((2, 5, 5, 6), (3, 2, 2, 9), ROWS, {"groups": 3, "padding": ((1, 1), (0, 1))}),
    "groups, strided": ((2, 5, 6, 4), (2, 2, 2, 4), ROWS, {"groups": 2, "strides": (2, 1)}),
    "depthwise": ((2, 4, 4, 3), (3, 3, 1, 3), ROWS, {"groups": 3}),
    "features first": (
        (2, 3, 5, 6),
        (4, 3, 3, 2),
        ((0, 1, 2, 3),) * 3,
        {"padding": ((1, 1), (1, 0)), "strides": (1, 2)},
    ),
    "odd axes": (
        (6, 3, 2, 5),
        (2, 4, 3, 3),
        ((2, 1, 3, 0), (1, 2, 3, 0), (3, 0, 2, 1)),
        {"padding": ((1, 2), (0, 1)), "strides": (2, 1), "kernel_dilation": (1, 2)},
    ),
    "line": (
        (2, 9, 3),
        (4, 3, 2),
        ((0, 2, 1), (2, 1, 0), (0, 2, 1)),
        {"strides": (2,), "padding": ((1, 3),)},
    ),
    "space": (
        (2, 3, 4, 5, 2),
        (2, 3, 2, 2, 3),
        ((0, 4, 1, 2, 3), (4, 3, 0, 1, 2), (0, 4, 1, 2, 3)),
        {"strides": (1, 2, 1), "padding": ((1, 0), (1, 1), (0, 0))},
    ),
    "no output": ((2, 2, 2, 3), (3, 3, 3, 4), ROWS, {}),
}


def made(name, dtype):
    x, kernel, axes, given = CASES[name]
    ones = (1,) * (len(x) - 2)
    settings = {
        "strides": ones,
        "padding": tuple((0, 0) for _ in ones),
        "input_dilation": ones,
        "kernel_dilation": ones,
        **given,
    }
    return Convolution((x, kernel), (dtype, dtype), axes=axes, **settings)


def plain(rule, x, y):
    return lax.conv_general_dilated(
        x,
        y,
        rule.strides,
        rule.padding,
        rule.input_dilation,
        rule.kernel_dilation,
        lax.ConvDimensionNumbers(*rule.axes),
        rule.groups,
    )


def normal(seed, shape, dtype):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def assert_close(found, expected, dtype):
    assert found.dtype == expected.dtype == dtype
    assert found.shape == expected.shape
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def arrays(rule, dtype):
    """An input, a kernel, another of each, and weights for the outputs."""
    return [normal(i, s, dtype) for i, s in enumerate((*rule.shapes, *rule.shapes, rule.out))]


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_that_of_jax(name, dtype):
    rule = made(name, dtype)

    def both(x, y, u, v, c):
        out, back = jax.vjp(lambda x, y: plain(rule, x, y), x, y)
        yield rule.pair(x, y), out
        yield rule.pairs((x, y), (u, v)), out + plain(rule, u, v)
        pulled = back(c)
        yield rule.pull(0, y, c), pulled[0]
        yield rule.pull(1, x, c), pulled[1]

    for found, expected in jax.jit(lambda *xs: list(both(*xs)))(*arrays(rule, dtype)):
        assert_close(found, expected, dtype)


@pytest.mark.parametrize("name", CASES)
def test_the_parts_of_a_convolution_are_those_of_its_edges(name, dtype):
    rule = made(name, dtype)

    def both(x, y, u, v, c):  # noqa: ARG001
        wide = rule.expand(0, x), rule.expand(1, y)
        yield (wide[0] * wide[1]).sum(-1), plain(rule, x, y)
        for i, q in enumerate((x, y)):
            yield jnp.broadcast_to(rule.reduce(i, q), rule.out), wide[i].sum(-1)
            edges = jnp.broadcast_to(c[..., None], (*rule.out, rule.length))
            total = rule.scatter(i, c)
            yield jnp.broadcast_to(total, q.shape), rule.gather(i, edges)
            yield rule.pull(i, (y, x)[i], c), rule.gather(i, edges * wide[1 - i])
            counts = jnp.asarray(rule.count(i), q.dtype)
            yield jnp.broadcast_to(counts, q.shape), rule.gather(i, jnp.ones_like(edges))

    for found, expected in jax.jit(lambda *xs: list(both(*xs)))(*arrays(rule, dtype)):
        assert_close(found, expected, dtype)


@pytest.mark.parametrize("name", ["same", "one channel", "odd axes", "groups"])
def test_under_vmap(name):
    rule = made(name, "float32")
    x, y, c = (normal(i, (2, *s), "float32") for i, s in enumerate((*rule.shapes, rule.out)))
    for fn, args in (
        (rule.pair, (x, y)),
        (lambda y, c: rule.pull(0, y, c), (y, c)),
        (lambda x, c: rule.pull(1, x, c), (x, c)),
    ):
        for axes in ((0, 0), (0, None), (None, 0)):
            batched = [a if axis == 0 else a[0] for a, axis in zip(args, axes, strict=True)]
            expected = [
                fn(*(a[k] if axis == 0 else a[0] for a, axis in zip(args, axes, strict=True)))
                for k in range(2)
            ]
            assert_close(jax.vmap(fn, axes)(*batched), jnp.stack(expected), "float32")


@pytest.mark.parametrize("name", ["same", "features first", "odd axes", "dilated both"])
def test_convolutions_on_cpu_come_in_the_order_that_is_fast(name):
    """The compiler does not reorder axes inside loops, and is slow there in all orders but one."""
    rule = made(name, "float32")
    x, y, c = (jax.ShapeDtypeStruct(s, "float32") for s in (*rule.shapes, rule.out))
    orders = set()
    for fn, args in (
        (lambda x, y: rule.pairs((x, y), (x, y)), (x, y)),
        (lambda y, c: rule.pull(0, y, c), (y, c)),
        (lambda x, c: rule.pull(1, x, c), (x, c)),
    ):
        program = jax.jit(fn).trace(*args).lower(lowering_platforms=("cpu",)).as_text()
        found = re.findall(r"dim_numbers = (.*?), window", program)
        assert len(found) == 1
        orders.update(found)
    assert orders == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"}


@pytest.mark.usefixtures("kernels")
def test_other_devices_take_the_convolution_as_it_is():
    rule = made("features first", "float32")
    x, y, c = (jax.ShapeDtypeStruct(s, "float32") for s in (*rule.shapes, rule.out))
    for fn, args in ((rule.pair, (x, y)), (lambda y, c: rule.pull(0, y, c), (y, c))):
        program = jax.jit(fn).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
        assert "transpose" not in program.split("stablehlo.convolution")[0]
        assert "dim_numbers = [b, f, 0, 1]x" in program


DOTS = {
    "few edges": ((6, 5), (5, 3), ((1,), (0,)), ((), ())),
    "few edges, a stack of them": ((2, 6, 5), (2, 5, 3), ((2,), (1,)), ((0,), (0,))),
    "few edges, other axes": ((5, 6, 4), (3, 4, 5), ((0, 2), (2, 1)), ((), ())),
    "long": ((64, 784), (784, 32), ((1,), (0,)), ((), ())),
    "long, transposed": ((784, 64), (32, 784), ((0,), (1,)), ((), ())),
    "long, of a length without parts": ((64, 787), (787, 32), ((1,), (0,)), ((), ())),
}


@pytest.mark.parametrize("name", DOTS)
def test_matrix_products_on_a_gpu_are_the_same(name, monkeypatch):
    x_shape, y_shape, contract, batch = DOTS[name]
    rule = DotGeneral((x_shape, y_shape), (np.float32,) * 2, contract, batch)
    x, dx, y, dy = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate((x_shape, x_shape, y_shape, y_shape))
    )
    expected = (
        lax.dot_general(x, y, (contract, batch)),
        lax.dot_general(x, dy, (contract, batch)) + lax.dot_general(dx, y, (contract, batch)),
    )
    taken = []

    def on_cuda(*args, default, cuda):
        taken.append(cuda is not None)
        return (cuda or default)(*args)

    monkeypatch.setattr(dot_general, "on_one_device", on_cuda)
    for got, want in zip((rule.pair(x, y), rule.pairs((x, dy), (dx, y))), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    assert taken == ["without parts" not in name] * 2


@pytest.mark.parametrize("shape", [(784, 8), (2, 96, 8), (7, 3)])
def test_sums_over_columns_in_parts(shape):
    front = tuple(range(len(shape) - 2))
    contract = (len(shape) - 1,), (len(shape) - 2,)
    rule = DotGeneral(((*shape[:-2], 4, shape[-2]), shape), (np.float32,) * 2, contract, (front, front))
    q = jax.random.normal(jax.random.key(0), shape)
    np.testing.assert_allclose(rule.reduce(1, q), q.sum(-2, keepdims=True), rtol=1e-4, atol=1e-4)


# --- Windows ---


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
    reach = [(w - 1) * d + 1 for w, d in zip(window, dilate, strict=True)]
    pads = explicit_padding(padding, reach, strides, x.shape)
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
    assert explicit_padding("SAME", (5,), (1,), (5,)) == ((2, 2),)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: explicit_padding("FULL", (3,), (1,), (5,)), "Unknown padding 'FULL'"),
        (lambda: explicit_padding([(1, 1)], (3, 3), (1, 1), (5, 5)), "padding needs one entry"),
        (lambda: explicit_padding([1, 1], (3, 3), (1, 1), (5, 5)), "pairs"),
        (lambda: explicit_padding(1.5, (3,), (1,), (5,)), "pairs"),
        (lambda: explicit_padding("SAME", (3,), (0,), (5,)), "strides must be positive"),
        (lambda: explicit_padding("SAME", (1, 1), (1,), (3,)), "window needs one entry"),
        (lambda: explicit_padding("SAME", (0,), (1,), (3,)), "window must be positive"),
        (lambda: windows(jnp.ones(3), (1,), (1,), ((-2, -2),)), "crops more"),
    ],
)
def test_wrong_arguments_are_explained(call, words):
    with pytest.raises(InputError, match=words):
        call()
