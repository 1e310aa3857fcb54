"""Smooth functions of whole arrays: their projection is local, so what is checked is what it promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjax.rules import Function, Joint


def normalised(x, c):
    return x / jnp.sqrt(c + jnp.sum(x * x))


RULE = Joint(Function("normalised", "normalised", normalised))


@pytest.fixture
def result(x64):
    del x64
    rng = np.random.default_rng(0)
    x, goal = jnp.asarray(rng.normal(size=(2, 5)))
    c, weight = jnp.array(0.5), jnp.asarray(rng.uniform(1, 9, 5))
    (end, kept), output = jax.jit(RULE.project)((x, c), goal, weight)
    return x, goal, c, weight, end, kept, output


def test_the_result_lies_on_the_graph(result):
    *_, c, _, end, kept, output = result
    assert kept == c
    np.testing.assert_allclose(output, normalised(end, c), rtol=1e-12)


def test_no_small_move_brings_it_nearer(result):
    x, goal, c, weight, end, _, _ = result

    def cost(end):
        return jnp.sum((end - x) ** 2) + jnp.sum(weight * (normalised(end, c) - goal) ** 2)

    least = cost(end)
    assert least < cost(x)
    for size in (1e-2, 1e-3, 1e-4):
        for move in np.random.default_rng(1).normal(size=(50, 5)):
            assert cost(end + size * move) > least


def test_tiny_shifts_to_first_order(x64):
    """The move is that of the tangent plane."""
    del x64
    rng = np.random.default_rng(2)
    x, dx, dz = jnp.asarray(rng.normal(size=(3, 5)) * [[1.0], [1e-6], [1e-6]])
    c = jnp.array(0.5)
    (move, _), back = RULE.displace((x, c), (dx, 0 * c), normalised(x, c), dz, 3.0)
    slope = jax.jacobian(normalised)(x, c)
    want = slope.T @ jnp.linalg.solve(slope @ slope.T + jnp.eye(5) / 3, dz - slope @ dx)
    np.testing.assert_allclose(move, want, rtol=1e-4, atol=1e-10)
    np.testing.assert_allclose(back, slope @ (dx + want) - dz, rtol=1e-4, atol=1e-10)
