"""Functions of one number: any function, searched for the nearest point of its graph."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjax.errors import InputError
from pjax.rules import Function, Scalar, elementary

GELU = Scalar(Function("gelu", "gelu", jax.nn.gelu))


@pytest.mark.parametrize("size", [1e-3, 1e-6])
@pytest.mark.parametrize("rule", [elementary("tanh"), GELU], ids=lambda rule: rule.function.label)
def test_tiny_residuals_survive_float32(rule, size):
    rng = np.random.default_rng(0)
    x = (2 * rng.normal(size=200)).astype(np.float32)
    dx, dz = size * rng.normal(size=(2, 200)).astype(np.float32)
    (move,), back = rule.displace((x,), (dx,), rule.forward(x), dz, 3.0)
    assert move.dtype == back.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = [jnp.asarray(v, jnp.float64) for v in (x, dx, dz)]
        (want,), want_back = rule.displace((wide[0],), (wide[1],), rule.forward(wide[0]), wide[2], 3.0)
    np.testing.assert_allclose(move, want, rtol=1e-4, atol=2e-4 * size)
    np.testing.assert_allclose(back, want_back, rtol=1e-4, atol=2e-4 * size)


def test_constants_do_not_move():
    def power(x, exponent, flipped):
        return jnp.where(flipped, -1, 1) * x**exponent

    rule = Scalar(Function("power", "power", power))
    x, exponent = jnp.array([1.0, 2.0]), jnp.array([2.0, 3.0])
    ends, end = rule.project((x, exponent, jnp.array([False, True])), jnp.array([4.0, 0.0]), 2.0)
    np.testing.assert_array_equal(ends[1], exponent)
    np.testing.assert_array_equal(ends[2], [False, True])
    np.testing.assert_allclose(end, power(*ends), rtol=1e-6)
    assert ends[0][0] > 1
    assert ends[0][1] < 2


def test_what_is_asked():
    goal = jnp.array([2.0, 0.0, 1.0])
    (asked,) = elementary("sqrt").ask((jnp.array([4.0, 0.0, 0.0]),), jnp.array([2.0, 0.0, 0.0]), goal, 0.25)
    np.testing.assert_allclose(asked[0], 0.5)
    assert asked[1] == 0
    assert bool(jnp.isfinite(asked).all())
    assert Scalar(Function("a", "a", lambda x, c: c * x)).ask((goal, goal), goal, goal, 0.0)[1] is None


def test_functions_are_compared_by_their_keys():
    assert elementary("tanh") == elementary("tanh")
    assert hash(elementary("tanh")) == hash(elementary("tanh"))
    assert elementary("tanh") != elementary("exp")
    assert elementary("integer_pow", y=2) != elementary("integer_pow", y=3)


def test_unknown_functions():
    with pytest.raises(InputError, match="add"):
        elementary("add")
