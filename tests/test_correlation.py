"""Convolutions as kernels for NVIDIA GPUs, run without one, against `lax.conv_general_dilated`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pjax
from pjax import devices as _devices
from pjax import optim
from pjax.experiments import models
from pjax.rules.convolution import Convolution
from pjax.rules.kernels import convolution as correlation
from pjax.rules.kernels.convolution import Correlation, correlate, pull_kernel

pytestmark = pytest.mark.usefixtures("kernels")

ROWS = (0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)  # NHWC, HWIO, NHWC
SAME = (1, 1), (1, 1)

# Shapes of input and kernel, and padding.
CASES = {
    "same": ((3, 5, 7, 16), (3, 3, 16, 16), SAME),
    "more than a tile": ((11, 9, 13, 16), (3, 3, 16, 16), SAME),
    "one channel": ((3, 6, 5, 1), (3, 3, 1, 16), SAME),
    "one channel, even kernel": ((2, 9, 8, 1), (2, 4, 1, 32), ((0, 1), (2, 0))),
    "one by one": ((2, 5, 3, 16), (1, 1, 16, 16), ((0, 0), (0, 0))),
    "five by five": ((1, 6, 7, 1), (5, 5, 1, 16), ((2, 2), (2, 2))),
    "valid": ((1, 10, 6, 16), (3, 3, 16, 16), ((0, 0), (0, 0))),
    "lopsided": ((2, 5, 6, 16), (2, 3, 16, 16), ((3, 0), (0, 4))),
    "cropped": ((2, 7, 6, 16), (2, 3, 16, 16), ((-1, 0), (1, -2))),
}


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def made(name):
    x, kernel, padding = CASES[name]
    rule = convolution(x, kernel, padding)
    shape = rule._correlation
    assert shape is not None
    return rule, shape, normal(0, x), normal(1, kernel)


def convolution(x, kernel, padding=SAME, axes=ROWS, dtypes=("float32", "float32"), **given):
    ones = dict.fromkeys(("strides", "input_dilation", "kernel_dilation"), (1, 1))
    return Convolution((x, kernel), dtypes, padding=padding, axes=axes, **(ones | given))


def plain(rule, x, y):
    return lax.conv_general_dilated(
        x, y, (1, 1), rule.padding, dimension_numbers=lax.ConvDimensionNumbers(*ROWS), precision="highest"
    )


def assert_close(found, expected):
    assert found.dtype == expected.dtype == jnp.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_correlations_are_convolutions_of_jax(name):
    rule, shape, x, y = made(name)
    assert_close(correlate(shape, (x, y), interpret=True), plain(rule, x, y))


@pytest.mark.parametrize("name", CASES)
def test_their_transposes_in_the_kernel(name):
    rule, shape, x, y = made(name)
    c = normal(2, rule.out)
    (expected,) = jax.linear_transpose(lambda y: plain(rule, x, y), y)(c)
    assert_close(pull_kernel(shape, x, c, interpret=True), expected)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][0][-1] > 1])
def test_their_transposes_in_the_images(name):
    rule, shape, x, y = made(name)
    c = normal(2, rule.out)
    (expected,) = jax.linear_transpose(lambda x: plain(rule, x, y), x)(c)
    assert_close(correlate(shape.transposed, (c, y), backwards=True, interpret=True), expected)


@pytest.mark.parametrize("name", ["same", "one channel"])
def test_the_sum_of_several(name):
    rule, shape, x, y = made(name)
    terms = [(x, y), (normal(2, x.shape), normal(3, y.shape)), (normal(4, x.shape), y)]
    expected = sum(plain(rule, *term) for term in terms)
    assert_close(correlate(shape, *terms, interpret=True), expected)


@pytest.mark.parametrize("name", ["same", "one channel"])
def test_few_programs_share_out_many_tiles(name, monkeypatch):
    monkeypatch.setattr(correlation, "_PROGRAMS", 2)
    rule, _, x, y = made(name)
    x = normal(0, (41, *x.shape[1:]))
    rule = convolution(x.shape, y.shape)
    c = normal(2, rule.out)
    (expected,) = jax.linear_transpose(lambda y: plain(rule, x, y), y)(c)
    assert_close(pull_kernel(rule._correlation, x, c, interpret=True), expected)


@pytest.mark.parametrize("axes", [(0, 0), (1, None)])
@pytest.mark.parametrize("name", ["lopsided", "one channel"])
def test_stacked(name, axes):
    rule, shape, x, y = made(name)
    c = normal(2, rule.out)

    def stacked(x, axis):
        return x if axis is None else jnp.stack([x, 2 - x], axis)

    arguments = stacked(x, axes[0]), stacked(y, axes[1])
    found = jax.vmap(lambda x, y: correlate(shape, (x, y), interpret=True), axes)(*arguments)
    assert_close(found, jax.vmap(lambda x, y: plain(rule, x, y), axes)(*arguments))

    def transposed(x, c):
        return jax.linear_transpose(lambda y: plain(rule, x, y), y)(c)[0]

    arguments = stacked(x, axes[0]), stacked(c, axes[1])
    found = jax.vmap(lambda x, c: pull_kernel(shape, x, c, interpret=True), axes)(*arguments)
    assert_close(found, jax.vmap(transposed, axes)(*arguments))


IMAGES, KERNEL = (64, 28, 28, 16), (3, 3, 16, 16)


@pytest.mark.parametrize(
    ("rule", "is_taken"),
    [
        (convolution(IMAGES, KERNEL), True),
        (convolution((64, 28, 28, 1), (3, 3, 1, 16)), True),
        (convolution(IMAGES, KERNEL, precision=(lax.Precision.DEFAULT,) * 2), True),
        (convolution(IMAGES, (16, 16, 3, 3), axes=(ROWS[0], (0, 1, 2, 3), ROWS[2])), True),
        (convolution(IMAGES, KERNEL, precision=(lax.Precision.HIGHEST,) * 2), False),
        (convolution((2, 28, 28, 16), KERNEL), False),
        (convolution(IMAGES, KERNEL, strides=(1, 2)), False),
        (convolution(IMAGES, KERNEL, input_dilation=(1, 2)), False),
        (convolution(IMAGES, KERNEL, kernel_dilation=(2, 1)), False),
        (convolution(IMAGES, (3, 3, 8, 16), groups=2), False),
        (convolution((64, 28, 28, 8), (3, 3, 8, 16)), False),
        (convolution(IMAGES, (3, 3, 16, 10)), False),
        (convolution((64, 28, 28, 256), (3, 3, 256, 256)), False),
        (convolution(IMAGES, (5, 5, 16, 16)), False),
        (convolution((64, 16, 28, 28), KERNEL, axes=((0, 1, 2, 3), ROWS[1], (0, 1, 2, 3))), False),
        (convolution((0, 28, 28, 16), KERNEL), False),
        (convolution((2**18, 2, 2, 16), KERNEL, ((0, 0), (0, 0))), False),
        (convolution((2**18, 28, 28, 16), KERNEL), False),
        (
            convolution(
                (64, 784, 16), (3, 16, 16), ((1, 1),), ((0, 2, 1), (2, 1, 0), (0, 2, 1)),
                strides=(1,), input_dilation=(1,), kernel_dilation=(1,),
            ),
            False,
        ),
    ],
)  # fmt: skip
def test_which_convolutions_have_kernels(rule, is_taken):
    x, y = (jax.ShapeDtypeStruct(s, jnp.float32) for s in rule.shapes)
    assert lowered_has_kernels(rule.pair, x, y) == is_taken
    if is_taken:
        out = jax.ShapeDtypeStruct(rule.out, jnp.float32)
        assert lowered_has_kernels(lambda x, c: rule.pull(1, x, c), x, out)
        assert not lowered_has_kernels(rule.pair, x, jax.ShapeDtypeStruct(y.shape, jnp.bfloat16))


def lowered_has_kernels(fn, *args):
    traced = jax.jit(lambda *args: fn(*args)).trace(*args)
    return "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture
def usual():
    """A convolution that has kernels, and the shapes of its inputs."""
    rule = convolution(IMAGES, KERNEL)
    return rule, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in rule.shapes)


def test_no_kernels_where_more_precision_is_asked_for_of_all_products(usual):
    rule, x, y = usual
    with jax.default_matmul_precision("highest"):
        assert not lowered_has_kernels(rule.pair, x, y)
    with jax.default_matmul_precision("default"):
        assert lowered_has_kernels(rule.pair, x, y)


def test_no_kernels_where_there_are_several_devices(usual, monkeypatch):
    rule, x, y = usual
    monkeypatch.setattr(_devices, "several", lambda: True)
    assert not lowered_has_kernels(rule.pair, x, y)


def test_no_kernels_where_there_is_no_gpu(usual, monkeypatch):
    rule, x, y = usual
    monkeypatch.setattr(_devices, "ANYWHERE", False)
    monkeypatch.setattr(jax, "devices", lambda: [])
    assert not lowered_has_kernels(rule.pair, x, y)


@pytest.mark.parametrize(("version", "is_taken"), [("9.0", True), ("7.5", False), ("gfx90a", False)])
def test_kernels_are_for_some_gpus(version, is_taken, monkeypatch):
    class Device:
        platform = "gpu"
        compute_capability = version

    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    assert _devices.has_kernels("convolution") == is_taken


def test_sums_of_many_are_left_to_the_compiler(usual):
    rule, x, y = usual
    assert lowered_has_kernels(lambda x, y: rule.pairs((x, y), (x, y)), x, y)
    assert not lowered_has_kernels(lambda x, y: rule.pairs(*[(x, y)] * 3), x, y)


def test_kernels_where_float64_is_allowed(usual, x64):  # noqa: ARG001
    rule, x, y = usual
    c = jax.ShapeDtypeStruct(rule.out, jnp.float32)
    assert lowered_has_kernels(rule.pair, x, y)
    assert lowered_has_kernels(lambda x, c: rule.pull(1, x, c), x, c)
    assert lowered_has_kernels(lambda y, c: rule.pull(0, y, c), y, c)
    assert not lowered_has_kernels(rule.pair, x, jax.ShapeDtypeStruct(y.shape, jnp.float64))


def test_the_transpose_in_images_of_one_channel_has_no_kernel():
    shape = Correlation(64, (28, 28), (3, 3), (1, 1), (28, 28), 1, 16)
    assert shape.fits
    assert not shape.transposed.fits
    rule = convolution((64, 28, 28, 1), (3, 3, 1, 16))
    y, c = (jax.ShapeDtypeStruct(s, jnp.float32) for s in (rule.shapes[1], rule.out))
    assert not lowered_has_kernels(lambda y, c: rule.pull(0, y, c), y, c)


@pytest.mark.parametrize(
    "solver",  # without warnings from the program, which would be for one platform
    [optim.AlternatingProjections(), optim.DouglasRachford(check=False)],
    ids=["AP", "DR"],
)
@pytest.mark.parametrize("width", [16, 5])
def test_a_network_is_lowered_with_kernels_for_its_convolutions(solver, width):
    model = models.make("cnn", (28, 28, 1), (width, width), 3)
    x, y = jnp.ones((64, 28, 28, 1)), jnp.zeros(64, jnp.int32)

    @jax.jit
    def update(params):
        return solver.update(lambda p: pjax.cross_entropy(model.apply(p, x), y), params, solver.init(params))

    traced = update.trace(model.init(jax.random.key(0)))
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda", "rocm")}
    assert ("triton" in text["cuda"]) == (width == 16)
    assert ("stablehlo.convolution" in text["cuda"]) == (width != 16)
    for name in ("cpu", "rocm"):
        assert "triton" not in text[name]
        assert "stablehlo.convolution" in text[name]
