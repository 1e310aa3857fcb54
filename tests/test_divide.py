"""Division of two numbers that both move. `test_primitives` checks the projection over all scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjax.rules import Divide


@pytest.mark.parametrize("size", [1e-3, 1e-6])
def test_tiny_residuals_survive_float32(size):
    rng = np.random.default_rng(0)
    x, y = 10 * rng.normal(size=(2, 200)).astype(np.float32)
    y = np.where(np.abs(y) < 1, np.float32(3), y)
    dx, dy, dz = size * rng.normal(size=(3, 200)).astype(np.float32)
    z = x.astype(np.float64) / y
    (mx, my), mz = Divide().displace((x, y), (dx, dy), z.astype(np.float32), dz, 3.0)
    with jax.enable_x64(True):
        wide = [np.asarray(v, np.float64) for v in (x, y, dx, dy, dz)]
        (tx, ty), tz = Divide().displace(tuple(wide[:2]), tuple(wide[2:4]), z, wide[4], 3.0)
    for got, want in ((mx, tx), (my, ty), (mz, tz)):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4 * size)


def test_the_divisor_stays_on_its_side():
    x, y = jnp.array([1.0, 1.0, -1.0, 5.0]), jnp.array([0.5, -0.5, 1e-3, -2.0])
    (_, end), z = Divide().project((x, y), jnp.array([-10.0, 10.0, 1e3, 1e4]), 10.0)
    assert bool((end * y > 0).all())
    assert bool(jnp.isfinite(z).all())
    # also where the shift has led across zero
    (_, move), _ = Divide().displace((x, y), (0 * x, -2 * y), x / y, 0 * x)
    assert bool(((-y + move) * y > 0).all())


def test_what_is_asked():
    x, y = jnp.array([1.0, 2.0, 0.0, 1.0]), jnp.array([4.0, -0.5, 0.0, 1e-30])
    goal = jnp.array([2.0, 1.0, 0.0, 1e20])
    one, two = Divide().ask((x, y), x / y, goal, 0.0)
    np.testing.assert_allclose(one[:2], [0.5, -2.0])
    np.testing.assert_allclose(two[:2], [-0.125, -8.0])
    assert (one[2], two[2]) == (0, 0)
    assert bool(jnp.isfinite(one).all() & jnp.isfinite(two).all())
