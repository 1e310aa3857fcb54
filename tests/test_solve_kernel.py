"""The multipliers of a table of dot products in one kernel are those of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import optim
from pjax.experiments import models
from pjax.optim import solver as _solver
from pjax.rules import contraction
from pjax.rules.dot import multiplier, sum_and_difference
from pjax.rules.kernels import multiplier as solve_kernel

pytestmark = pytest.mark.usefixtures("kernels")

RNG = np.random.default_rng(0)
LENGTH = 5


def numbers(*shape, scale=1.0):
    return jnp.asarray(scale * RNG.normal(size=shape), jnp.float32)


def given(rows, columns, scale=1.0):
    """Products of vectors that are there, a displacement of them, and what is asked."""
    x, y = numbers(rows, LENGTH, scale=scale), numbers(columns, LENGTH, scale=scale)
    drift = numbers(rows, columns, scale=0.1 * scale**2)
    norms = (x * x).sum(-1), (y * y).sum(-1)
    return drift, x @ y.T - drift, numbers(rows, columns, scale=scale**2), norms


def expected(drift, point, goal, norms, weight):
    plus, minus = sum_and_difference(norms[0][:, None] + norms[1], point + drift)
    found = multiplier(plus, minus, goal - drift, weight)
    reached = goal - found.lam / weight
    return found.other, reached, found.along(0, LENGTH).sum(1), found.along(1, LENGTH).sum(0)


def check(arguments, weight=1.0):
    found = solve_kernel.solve(*arguments, LENGTH, weight, interpret=True)
    for got, want in zip(found, expected(*arguments, weight), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shape", [(64, 16), (300, 16), (7, 8), (1000, 64)])
def test_tables_of_many_sizes(shape, scale, monkeypatch):
    monkeypatch.setattr(solve_kernel, "_PROGRAMS", 3)
    check(given(*shape, scale))


def test_sums_in_parts(monkeypatch):
    monkeypatch.setattr(solve_kernel, "_TOGETHER", 64)
    monkeypatch.setattr(solve_kernel, "_PROGRAMS", 96)
    check(given(500, 16))


def test_weights():
    check(given(100, 16), weight=9.0)


def test_spheres():
    drift, _, goal, norms = given(64, 8)
    nothing = tuple(jnp.zeros_like(n) for n in norms)
    zero = jnp.zeros_like(drift)
    check((zero, zero, jnp.where(jnp.arange(8) % 2 == 0, 5.0, -5.0) + zero, nothing))
    # x = -y, which have to grow
    check((zero, zero - 2.0, goal + 9.0, tuple(n * 0 + 2.0 for n in norms)))


def test_nan_stays():
    drift, point, goal, norms = given(64, 8)
    found = solve_kernel.solve(drift, point, goal.at[3, 2].set(jnp.nan), norms, LENGTH, 1.0, interpret=True)
    bad = np.zeros((64, 8), bool)
    bad[3, 2] = True
    for got, want in zip(found, (bad, bad, bad.any(1), bad.any(0)), strict=True):
        np.testing.assert_array_equal(np.isnan(got), want)


def test_what_it_is_for(monkeypatch):
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

    def on_cuda(*args, default, cpu=None, cuda=None):  # noqa: ARG001
        used.append(cuda is not None)
        return (cuda or default)(*args)

    monkeypatch.setattr(contraction, "on_one_device", on_cuda)
    solve = solve_kernel.solve
    monkeypatch.setattr(solve_kernel, "solve", lambda *args: solve(*args, interpret=True))
    found = solver.update(loss, params, solver.init(params))[0]
    assert sum(used) == 4  # for each convolution, the kernel and what is made of it; not for the readout
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


def test_programs_for_a_gpu_have_the_kernel(monkeypatch):
    fresh(monkeypatch)
    params, loss = cnn()
    solver = optim.AlternatingProjections(steps_per_update=2)
    traced = jax.jit(lambda p: solver.update(loss, p, solver.init(p))).trace(params)
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda")}
    assert "xla.gpu.triton" in text["cuda"]
    assert "triton" not in text["cpu"]
