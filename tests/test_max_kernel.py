"""The projections of many maxima in one kernel are those of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import optim
from pjax.experiments import models
from pjax.rules import Max, max
from pjax.rules.kernels import maximum as max_kernel

pytestmark = pytest.mark.usefixtures("kernels")

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


def check(x, z, w):
    for got, want in zip(max_kernel.displace(x, z, w, interpret=True), expected(x, z, w), strict=True):
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
    move, back = max_kernel.displace(x, jnp.array([[3.0, 0.0]]), jnp.ones((1, 2)), interpret=True)
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
    found, wanted = max_kernel.displace(x, z, w, interpret=True), expected(x, z, w)
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
    monkeypatch.setattr(max_kernel, "displace", lambda *args: displace(*args, interpret=True))
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
