"""Kernels for NVIDIA GPUs, run without one: they do what the formulas do in several passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas

import pjax
from pjax import devices as _devices
from pjax import optim
from pjax.engines.edges.stored import Split
from pjax.experiments import models
from pjax.optim import solver as _solver
from pjax.rules import Max, contraction, max
from pjax.rules.convolution import Convolution
from pjax.rules.dot import Dot, multiplier, sum_and_difference
from pjax.rules.dot_general import DotGeneral
from pjax.rules.kernels import convolution as correlation
from pjax.rules.kernels import edges as split_kernel
from pjax.rules.kernels import maximum as max_kernel
from pjax.rules.kernels import multiplier as solve_kernel
from pjax.rules.kernels import recurrence
from pjax.rules.kernels.convolution import Correlation, correlate, pull_kernel
from pjax.rules.kernels.edges import Blocks

pytestmark = pytest.mark.usefixtures("kernels")


def interpreted(kernel):
    """A kernel run without a GPU."""

    def run(*args, **settings):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pallas, "pallas_call", functools.partial(pallas.pallas_call, interpret=True))
            return getattr(kernel, "__wrapped__", kernel)(*args, **settings)

    return run


# --- Convolutions, against `lax.conv_general_dilated` ---

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
    "three channels": ((3, 6, 5, 3), (3, 3, 3, 16), SAME),
    "three channels, many features": ((2, 5, 9, 3), (3, 3, 3, 32), SAME),
    "two channels, lopsided": ((2, 5, 6, 2), (2, 3, 2, 16), ((3, 0), (0, 4))),
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
    assert_close(interpreted(correlate)(shape, (x, y)), plain(rule, x, y))


@pytest.mark.parametrize("name", CASES)
def test_their_transposes_in_the_kernel(name):
    rule, shape, x, y = made(name)
    c = normal(2, rule.out)
    (expected,) = jax.linear_transpose(lambda y: plain(rule, x, y), y)(c)
    assert_close(interpreted(pull_kernel)(shape, x, c), expected)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][0][-1] > 1])
def test_their_transposes_in_the_images(name):
    rule, shape, x, y = made(name)
    c = normal(2, rule.out)
    (expected,) = jax.linear_transpose(lambda x: plain(rule, x, y), x)(c)
    assert_close(interpreted(correlate)(shape.transposed, (c, y), backwards=True), expected)


@pytest.mark.parametrize("name", ["same", "one channel"])
def test_the_sum_of_several(name):
    rule, shape, x, y = made(name)
    terms = [(x, y), (normal(2, x.shape), normal(3, y.shape)), (normal(4, x.shape), y)]
    expected = sum(plain(rule, *term) for term in terms)
    assert_close(interpreted(correlate)(shape, *terms), expected)


@pytest.mark.parametrize("name", ["same", "one channel"])
def test_few_programs_share_out_many_tiles(name, monkeypatch):
    monkeypatch.setattr(correlation, "_PROGRAMS", 2)
    rule, _, x, y = made(name)
    x = normal(0, (41, *x.shape[1:]))
    rule = convolution(x.shape, y.shape)
    c = normal(2, rule.out)
    (expected,) = jax.linear_transpose(lambda y: plain(rule, x, y), y)(c)
    assert_close(interpreted(pull_kernel)(rule._correlation, x, c), expected)


@pytest.mark.parametrize("axes", [(0, 0), (1, None)])
@pytest.mark.parametrize("name", ["lopsided", "one channel"])
def test_stacked(name, axes):
    rule, shape, x, y = made(name)
    c = normal(2, rule.out)

    def stacked(x, axis):
        return x if axis is None else jnp.stack([x, 2 - x], axis)

    arguments = stacked(x, axes[0]), stacked(y, axes[1])
    found = jax.vmap(lambda x, y: interpreted(correlate)(shape, (x, y)), axes)(*arguments)
    assert_close(found, jax.vmap(lambda x, y: plain(rule, x, y), axes)(*arguments))

    def transposed(x, c):
        return jax.linear_transpose(lambda y: plain(rule, x, y), y)(c)[0]

    arguments = stacked(x, axes[0]), stacked(c, axes[1])
    found = jax.vmap(lambda x, c: interpreted(pull_kernel)(shape, x, c), axes)(*arguments)
    assert_close(found, jax.vmap(transposed, axes)(*arguments))


IMAGES, KERNEL = (64, 28, 28, 16), (3, 3, 16, 16)


@pytest.mark.parametrize(
    ("rule", "is_taken"),
    [
        (convolution(IMAGES, KERNEL), True),
        (convolution((64, 28, 28, 1), (3, 3, 1, 16)), True),
        (convolution((64, 28, 28, 3), (3, 3, 3, 32)), True),
        (convolution((64, 28, 28, 3), (5, 5, 3, 16)), False),
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


# --- Projections of many maxima ---

RNG = np.random.default_rng(0)


def numbers(*shape, scale=1.0):
    return jnp.asarray(scale * RNG.normal(size=shape), jnp.float32)


def given(rows, length, columns, scale=1.0):
    """Vectors, and numbers some of which are above all of them and some of which are below many."""
    z = numbers(rows, columns, scale=2 * scale)
    return (
        numbers(rows, length, columns, scale=scale),
        z,
        jnp.broadcast_to(0.5 + jnp.arange(columns), z.shape),
    )


def expected(x, z, w):
    move, back = max._moves(2, 0, jnp.moveaxis(x, 1, -1), z, w)
    return jnp.moveaxis(move, -1, 1), back


@jax.jit
def both(x, z, w):
    """What the kernel finds, and what is expected: one program for numbers of all scales."""
    return interpreted(max_kernel.displace)(x, z, w), expected(x, z, w)


def check(x, z, w):
    for got, want in zip(*both(x, z, w), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shape", [(3, 100, 16), (5, 784, 3), (2, 64, 1), (4, 33, 40)])
def test_tables_of_many_sizes(shape, scale):
    check(*given(*shape, scale))


def test_many_rounds():
    """The level passes one number after the other."""
    x = (2.0 ** -jnp.arange(20))[None, :, None] * jnp.ones((2, 1, 3))
    check(x.astype(jnp.float32), jnp.full((2, 3), -50.0), jnp.full((2, 3), 1e-3))


def test_equal_numbers():
    """Only the first of several largest is raised; all of them are lowered."""
    x = jnp.zeros((1, 10, 2)).at[0, 4:6].set(1.0)
    move, back = interpreted(max_kernel.displace)(x, jnp.array([[3.0, 0.0]]), jnp.ones((1, 2)))
    np.testing.assert_array_equal(np.flatnonzero(move[0, :, 0]), [4])
    np.testing.assert_allclose(move[0, 4, 0], 1.0)
    np.testing.assert_array_equal(np.flatnonzero(move[0, :, 1]), [4, 5])
    np.testing.assert_allclose(move[0, 4:6, 1], -1 / 3, rtol=1e-6)
    np.testing.assert_allclose(back, [[-1.0, 2 / 3]], rtol=1e-6)


@pytest.mark.parametrize("where", ["vector", "output"])
def test_nan_stays(where):
    x, z, w = given(3, 70, 4)
    if where == "vector":
        x = x.at[1, 5, 2].set(jnp.nan)
    else:
        z = z.at[1, 2].set(jnp.nan)
    found, wanted = interpreted(max_kernel.displace)(x, z, w), expected(x, z, w)
    assert np.isnan(wanted[0]).any()
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_what_it_is_for(monkeypatch):
    x = numbers(2)
    assert not max_kernel.fits((3, 100, 16), x)
    monkeypatch.setattr(max_kernel, "FEWEST", 1)
    assert max_kernel.fits((3, 100, 16), x)
    assert not max_kernel.fits((3, 9, 16), x)
    assert not max_kernel.fits((3, 10**5, 16), x)
    assert not max_kernel.fits((3, 100, 16), x.astype(jnp.bfloat16))


def on_cuda(used):
    def choose(*args, default, cpu=None, cuda=None):  # noqa: ARG001
        used.append(cuda is not None)
        return (cuda or default)(*args)

    return choose


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_axes_behind_the_vector(behind, sign, monkeypatch):
    x, shift, z = numbers(3, 2, 5, 70), numbers(3, 2, 5, 70, scale=0.1), numbers(3, 2, 5)
    rule = Max(sign, behind)
    arguments = (x,), (shift,), rule.forward(x), z, 3.0
    (wanted,), back = rule.displace(*arguments)
    used = []
    monkeypatch.setattr(max, "on_one_device", on_cuda(used))
    monkeypatch.setattr(max_kernel, "FEWEST", 1)
    displace = max_kernel.displace
    monkeypatch.setattr(max_kernel, "displace", interpreted(displace))
    (found,), found_back = rule.displace(*arguments)
    assert used == [True]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found_back, back, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("programs")
def test_programs_for_a_gpu_have_the_kernel(monkeypatch):
    monkeypatch.setattr(max_kernel, "FEWEST", 1)
    model = models.make("cnn", (9, 8, 1), (8, 8), 3)
    x, y = numbers(3, 9, 8, 1), jnp.arange(3)
    params = model.init(jax.random.key(0))
    solver = optim.AlternatingProjections(steps_per_update=2)

    def update(p):
        return solver.update(lambda p: pjax.cross_entropy(model.apply(p, x), y), p, solver.init(p))

    traced = jax.jit(update).trace(params)
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda")}
    assert "xla.gpu.triton" in text["cuda"]
    assert "triton" not in text["cpu"]


# --- Multipliers of a table of dot products ---

LENGTH = 5


def solve_given(rows, columns, scale=1.0):
    """Products of vectors that are there, a displacement of them, and what is asked."""
    x, y = numbers(rows, LENGTH, scale=scale), numbers(columns, LENGTH, scale=scale)
    drift = numbers(rows, columns, scale=0.1 * scale**2)
    norms = (x * x).sum(-1), (y * y).sum(-1)
    return drift, x @ y.T - drift, numbers(rows, columns, scale=scale**2), norms


def solve_expected(drift, point, goal, norms, weight):
    plus, minus = sum_and_difference(norms[0][:, None] + norms[1], point + drift)
    found = multiplier(plus, minus, goal - drift, weight)
    reached = goal - found.lam / weight
    return found.other, reached, found.along(0, LENGTH).sum(1), found.along(1, LENGTH).sum(0)


@functools.partial(jax.jit, static_argnums=(1, 2))
def solved(arguments, weight, sizes):  # noqa: ARG001 - the sizes that the kernel looks up
    return interpreted(solve_kernel.solve)(*arguments, LENGTH, weight), solve_expected(*arguments, weight)


def solve_check(arguments, weight=1.0):
    sizes = solve_kernel._PROGRAMS, solve_kernel._TOGETHER
    for got, want in zip(*solved(arguments, weight, sizes), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shape", [(64, 16), (300, 16), (7, 8), (1000, 64)])
def test_tables_of_many_sizes_solve(shape, scale, monkeypatch):
    monkeypatch.setattr(solve_kernel, "_PROGRAMS", 3)
    solve_check(solve_given(*shape, scale))


def test_sums_in_parts(monkeypatch):
    monkeypatch.setattr(solve_kernel, "_TOGETHER", 64)
    monkeypatch.setattr(solve_kernel, "_PROGRAMS", 96)
    solve_check(solve_given(500, 16))


def test_weights():
    solve_check(solve_given(100, 16), weight=9.0)


def test_spheres():
    drift, _, goal, norms = solve_given(64, 8)
    nothing = tuple(jnp.zeros_like(n) for n in norms)
    zero = jnp.zeros_like(drift)
    solve_check((zero, zero, jnp.where(jnp.arange(8) % 2 == 0, 5.0, -5.0) + zero, nothing))
    # x = -y, which have to grow
    solve_check((zero, zero - 2.0, goal + 9.0, tuple(n * 0 + 2.0 for n in norms)))


def test_nan_stays_solve():
    drift, point, goal, norms = solve_given(64, 8)
    found = interpreted(solve_kernel.solve)(drift, point, goal.at[3, 2].set(jnp.nan), norms, LENGTH, 1.0)
    bad = np.zeros((64, 8), bool)
    bad[3, 2] = True
    for got, want in zip(found, (bad, bad, bad.any(1), bad.any(0)), strict=True):
        np.testing.assert_array_equal(np.isnan(got), want)


def test_what_it_is_for_solve(monkeypatch):
    x = numbers(2, 3, 4, 16)
    assert not solve_kernel.fits(x.shape, 1.0, x)
    monkeypatch.setattr(solve_kernel, "FEWEST", 1)
    assert solve_kernel.fits(x.shape, 1.0, x)
    assert not solve_kernel.fits((2, 3, 4, 12), 1.0, x)
    assert not solve_kernel.fits(x.shape, jnp.ones(()), x)
    assert not solve_kernel.fits(x.shape, 1.0, x.astype(jnp.bfloat16))


def cnn():
    model = models.make("cnn", (5, 6, 1), (8, 8), 3)
    x, y = numbers(3, 5, 6, 1), jnp.arange(3)
    return model.init(jax.random.key(0)), lambda p: pjax.cross_entropy(model.apply(p, x), y)


def fresh(monkeypatch):
    monkeypatch.setattr(solve_kernel, "FEWEST", 1)
    monkeypatch.setattr(_solver, "_PROGRAMS", type(_solver._PROGRAMS)())


def test_a_network_does_the_same(monkeypatch):
    params, loss = cnn()
    solver = optim.AlternatingProjections(steps_per_update=3)
    wanted = solver.update(loss, params, solver.init(params))[0]
    fresh(monkeypatch)
    used = []
    monkeypatch.setattr(contraction, "on_one_device", on_cuda(used))
    solve = solve_kernel.solve
    monkeypatch.setattr(solve_kernel, "solve", interpreted(solve))
    found = solver.update(loss, params, solver.init(params))[0]
    assert sum(used) == 4  # for each convolution, the kernel and what is made of it; not for the readout
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


def test_programs_for_a_gpu_have_the_kernel_solve(monkeypatch):
    fresh(monkeypatch)
    params, loss = cnn()
    solver = optim.AlternatingProjections(steps_per_update=2)
    traced = jax.jit(lambda p: solver.update(loss, p, solver.init(p))).trace(params)
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda")}
    assert "xla.gpu.triton" in text["cuda"]
    assert "triton" not in text["cpu"]


# --- Projections of written-out edges ---

SPLIT_RNG = np.random.default_rng(0)
NO_BATCH = ((), ())
SHAPES = {
    "matrices": ((5, 7), (7, 3), ((1,), (0,)), NO_BATCH),
    "a power of two": ((4, 8), (8, 4), ((1,), (0,)), NO_BATCH),
    "long": ((3, 300), (300, 2), ((1,), (0,)), NO_BATCH),
    "one slot": ((3, 1), (1, 4), ((1,), (0,)), NO_BATCH),
    "one of each": ((1, 5), (5, 1), ((1,), (0,)), NO_BATCH),
    "transposed": ((6, 4), (9, 6), ((0,), (1,)), NO_BATCH),
    "more axes": ((2, 3, 6), (2, 5, 6), ((2,), (2,)), NO_BATCH),
    "two contracted": ((4, 2, 3), (3, 2, 5), ((1, 2), (1, 0)), NO_BATCH),
    "batch": ((6, 2, 4), (2, 4, 3), ((2,), (1,)), ((1,), (0,))),
}


def split_numbers(*shape):
    return jnp.asarray(SPLIT_RNG.normal(size=shape), jnp.float32)


def split_contraction(x, y, contract, batch):
    return DotGeneral((x, y), (jnp.dtype("float32"),) * 2, contract, batch)


def kernel(rule, inputs, rest, residual, factor=1.0, **settings):
    def project(inputs, rest, residual):
        terms = tuple(((factor, r),) for r in rest)
        return interpreted(split_kernel.project)(rule, inputs, terms, residual, **settings)

    return jax.jit(project)(inputs, rest, residual)


def edge_by_edge(rule, inputs, rest, residual, weight=1.0):
    """The same by the rule for one dot product, from all edges written out."""
    base = [rule.expand(i, at) for i, at in enumerate(inputs)]
    x, y = (b + r for b, r in zip(base, rest, strict=True))
    here = (x * y).sum(-1)
    goal = residual + (base[0] * base[1]).sum(-1) - here
    moves, move = Dot().displace((x, y), (jnp.zeros_like(x), jnp.zeros_like(y)), here, goal, weight)
    return moves, -move * weight


def split_check(rule, inputs, rest, residual, weight=1.0, **settings):
    found = kernel(rule, inputs, rest, residual, weight=weight, **settings)
    moves, lam = jax.jit(edge_by_edge, static_argnums=0)(rule, inputs, rest, residual, weight)
    np.testing.assert_allclose(found.lam, lam, atol=1e-5)
    squared = sum((m * m).sum(-1) for m in moves)
    np.testing.assert_allclose(found.squared, squared, rtol=1e-4, atol=1e-5)
    for i in (0, 1):
        size = float(jnp.abs(moves[i]).max())
        np.testing.assert_allclose(found.moves[i], moves[i], rtol=1e-4, atol=1e-5 * size)
        total = rule.gather(i, found.moves[i])
        np.testing.assert_allclose(found.totals[i], total, rtol=1e-4, atol=1e-5 * size)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_every_contraction(name):
    rule = split_contraction(*SHAPES[name])
    edges = (*rule.out, rule.length)
    split_check(
        rule,
        [split_numbers(*s) for s in rule.shapes],
        (split_numbers(*edges), split_numbers(*edges)),
        3 * split_numbers(*rule.out),
    )


@pytest.mark.parametrize("blocks", [Blocks(1, 1, 1), Blocks(2, 3, 1), Blocks(4, 2, 1), Blocks(8, 5, 2)])
def test_every_division_of_the_work(blocks):
    rule = split_contraction(*SHAPES["matrices"])
    edges = (*rule.out, rule.length)
    split_check(
        rule,
        [split_numbers(*s) for s in rule.shapes],
        (split_numbers(*edges), split_numbers(*edges)),
        split_numbers(*rule.out),
        blocks=blocks,
    )


def test_a_term_with_a_factor():
    rule = split_contraction(*SHAPES["matrices"])
    inputs, rest = [split_numbers(*s) for s in rule.shapes], [split_numbers(5, 3, 7) for _ in range(2)]
    residual = split_numbers(5, 3)
    found = kernel(rule, inputs, rest, residual, factor=-2.0)
    same = kernel(rule, inputs, [-2 * r for r in rest], residual)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, same)


def test_narrow_edges():
    """They are read as they are, and moves are written in their type; sums are of moves before that."""
    rule = split_contraction(*SHAPES["matrices"])
    inputs, rest = [split_numbers(*s) for s in rule.shapes], (split_numbers(5, 3, 7), split_numbers(5, 3, 7))
    rest, residual = [r.astype(jnp.bfloat16) for r in rest], 9 * split_numbers(5, 3)
    found = kernel(rule, inputs, rest, residual)
    wanted = kernel(rule, inputs, [r.astype(jnp.float32) for r in rest], residual)
    for got, want in zip(found.moves, wanted.moves, strict=True):
        np.testing.assert_array_equal(got, got.astype(jnp.bfloat16).astype(jnp.float32))
        np.testing.assert_allclose(got, want, rtol=2**-8, atol=1e-6)
    for got, want in ((found.totals, wanted.totals), (found.lam, wanted.lam)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)


def test_weights_and_outputs_that_nobody_reads():
    rule = split_contraction(*SHAPES["matrices"])
    inputs, rest = [split_numbers(*s) for s in rule.shapes], (split_numbers(5, 3, 7), split_numbers(5, 3, 7))
    residual, weight = 9 * split_numbers(5, 3), 1 + jnp.arange(15.0).reshape(5, 3)
    split_check(rule, inputs, rest, residual, weight=weight)
    split_check(rule, inputs, rest, residual, weight=7.0)
    read = jnp.arange(3) != 1
    found = kernel(rule, inputs, rest, residual, read=read)
    wanted = kernel(rule, inputs, rest, residual)
    assert (found.lam[:, 1] == 0).all()
    assert (found.moves[0][:, 1] == 0).all()
    np.testing.assert_allclose(found.moves[1][:, ::2], wanted.moves[1][:, ::2], rtol=1e-6)


def test_spheres_split():
    rule = split_contraction((4, 6), (6, 3), ((1,), (0,)), NO_BATCH)
    x = split_numbers(4, 6).at[3].set(0)
    rest = (jnp.zeros((4, 3, 6)), rule.expand(0, x) * jnp.array([1.0, -1.0, 0.0])[:, None])
    residual = jnp.array([-99.0, 99.0, 1.0]) * jnp.ones((4, 1))
    found = split_check(rule, (x, jnp.zeros((6, 3))), rest, residual)  # y is x, -x, and 0
    assert (jnp.abs(found.lam[:, :2]) == 1).all()
    assert (jnp.abs(found.lam[:3, 2]) < 1).all()
    assert (jnp.abs(found.moves[0][3, :2]) > 1).all()  # from zero


def test_nan_stays_split():
    rule = split_contraction(*SHAPES["matrices"])
    x, y = (split_numbers(*s) for s in rule.shapes)
    rest, residual = (split_numbers(5, 3, 7), split_numbers(5, 3, 7)), split_numbers(5, 3)
    found = kernel(rule, (x.at[1, 2].set(jnp.nan), y), rest, residual.at[3, 2].set(jnp.nan))
    bad = np.zeros((5, 3), bool)
    bad[1], bad[3, 2] = True, True
    for array in (found.lam, found.squared, found.moves[0][..., 0], found.moves[1][..., 0]):
        np.testing.assert_array_equal(np.isnan(array), bad)


def test_what_does_not_fit_is_left_to_the_compiler(monkeypatch):
    rule = split_contraction(*SHAPES["matrices"])
    term = ((1.0, split_numbers(5, 3, 7)),)
    assert not split_kernel.fits(rule, (term, term))
    monkeypatch.setattr(split_kernel, "FEWEST", rule.edges)
    assert split_kernel.fits(rule, (term, term))
    assert not split_kernel.fits(rule, (term, ()))
    assert not split_kernel.fits(rule, (term, (*term, (1.0, split_numbers(5, 3, 7)))))
    assert not split_kernel.fits(rule, (term, term), jnp.ones((5, 3), jnp.bfloat16))
    long = split_kernel.LONGEST + 1
    rule = split_contraction((1, long), (long, 1), ((1,), (0,)), NO_BATCH)
    assert not split_kernel.fits(rule, (((1.0, jnp.ones((1, 1, long))),),) * 2)


def mlp():
    model = models.make("mlp", (4,), (6, 5), 3)
    x, y = split_numbers(7, 4), jnp.arange(7) % 3
    return model.init(jax.random.key(0)), lambda p: pjax.cross_entropy(model.apply(p, x), y)


def rnn():
    model = models.make("rnn", (5,), (6,), 4)
    x = jnp.arange(15).reshape(3, 5) % 4
    return model.init(jax.random.key(0)), lambda p: pjax.cross_entropy(model.apply(p, x), (x + 1) % 4)


def update(solver, loss, params):
    return solver.update(loss, params, solver.init(params))


@pytest.mark.parametrize(("make", "consensus"), [(mlp, "paper"), (rnn, "exact")])
def test_a_solver_does_the_same(make, consensus, monkeypatch):
    params, loss = make()
    solver = optim.DouglasRachford(steps_per_update=2, consensus=consensus)
    wanted = update(solver, loss, params)
    used = []

    def one_pass(self, rule, at, inputs, drift, goal):
        used.append(rule)
        rest = self.rest[0].terms, self.rest[1].terms
        return interpreted(split_kernel.project)(rule, inputs, rest, goal - drift, at.weight, at.read)

    monkeypatch.setattr(Split, "_in_passes", one_pass)
    monkeypatch.setattr(_solver, "_PROGRAMS", type(_solver._PROGRAMS)())
    found = update(solver, loss, params)
    assert used
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("make", [mlp, rnn])
def test_programs_for_a_gpu_have_the_kernel_split(make, monkeypatch):
    monkeypatch.setattr(split_kernel, "FEWEST", 0)
    params, loss = make()
    solver = optim.DouglasRachford(steps_per_update=2)
    traced = jax.jit(lambda p: update(solver, loss, p)).trace(params)
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda")}
    assert "xla.gpu.triton" in text["cuda"]
    assert "triton" not in text["cpu"]


# --- Recurrent networks, to be differentiated ---

NETWORKS = {
    "two layers": ((16, 16), False),
    "three layers": ((16, 16, 16), False),
    "three layers, skip": ((16, 16, 16), True),
    "two layers in parts": ((32, 32), False),
    "two layers in parts, skip": ((32, 32), True),
}


def recurrent(widths, skip=False, batch=32):
    """The gradients of a network, and its logits, with and without kernels."""
    model, plain = (models.make("rnn", (5,), widths, 7, skip=skip, differentiated=d) for d in (True, False))
    x = jax.random.randint(jax.random.key(0), (batch, 5), 0, 7)
    wish = split_numbers(batch, 5, 7)
    params = jax.tree.map(lambda p: p + 0.02, model.init(jax.random.key(1)))  # biases, too

    def differentiated(model):
        def loss(params):
            logits = model.apply(params, x)
            return (logits * wish).sum(), logits

        return jax.grad(loss, has_aux=True)

    return differentiated(model), differentiated(plain), params


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_recurrent_networks(name, monkeypatch):
    used = []
    monkeypatch.setattr(models, "on_one_device", on_cuda(used))
    monkeypatch.setattr(recurrence, "_COLUMNS", 16)
    found, plain, params = recurrent(*NETWORKS[name])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
        interpreted(jax.jit(found))(params),
        plain(params),
    )
    assert used == [True]


def test_gradients_of_several_recurrent_networks_at_once(monkeypatch):
    monkeypatch.setattr(models, "on_one_device", on_cuda([]))
    found, plain, params = recurrent((16, 16))
    several = jax.tree.map(lambda p: jnp.stack([p, -p, 2 * p]), params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-3),
        interpreted(jax.jit(jax.vmap(found)))(several),
        jax.vmap(plain)(several),
    )


@pytest.mark.parametrize(
    ("shape", "widths", "dtype", "fits"),
    [
        ((64, 256), (256,) * 3, jnp.float32, True),
        ((64, 256), (256,) * 2, jnp.float32, False),
        ((64, 256), (128,) * 5, jnp.float32, True),
        ((64, 256), (128, 128, 256), jnp.float32, False),
        ((64, 256), (192,) * 3, jnp.float32, False),
        ((64, 250), (128,) * 3, jnp.float32, False),
        ((64, 256), (128,) * 3, jnp.bfloat16, False),
        ((0, 256), (128,) * 3, jnp.float32, False),
        ((2**16, 2**8), (128,) * 3, jnp.float32, False),
    ],
)
def test_for_which_recurrent_networks_there_are_kernels(shape, widths, dtype, fits):
    assert recurrence.fits(shape, widths, dtype) == fits


def test_recurrent_networks_without_kernels_where_more_precision_is_asked_for():
    found, _, params = recurrent((16, 16))
    with jax.default_matmul_precision("highest"):
        text = jax.jit(found).trace(params).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" not in text
    text = jax.jit(found).trace(params).lower(lowering_platforms=("cuda",)).as_text()
    assert "xla.gpu.triton" in text
