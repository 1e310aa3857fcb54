"""Linear functions of whole arrays: against a dense solve, and against random points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjax.rules import Function, LinearMap

MATRIX = np.tril(np.random.default_rng(0).normal(size=(6, 6))) + 3 * np.eye(6)
SEGMENTS = np.array([2, 0, 0, 1, 2, 2])


def pairs(x, y):
    """A Fourier transform of complex numbers, as real ones."""
    z = jnp.fft.fft(jax.lax.complex(x, y))
    return jnp.stack([z.real, z.imag])


MAPS = {
    "cumsum": (LinearMap(Function("cumsum", "cumsum", jnp.cumsum)), [(6,)], []),
    "segment sum": (
        LinearMap(Function("segments", "segment sum", lambda x, i: jax.ops.segment_sum(x, i, 4))),
        [(6, 2)],
        [SEGMENTS],
    ),
    "fourier": (LinearMap(Function("fft", "fft", pairs), moving=2), [(5,), (5,)], []),
    "windows": (
        LinearMap(
            Function(
                "windows",
                "window sum",
                lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (3,), (1,), "SAME"),
            )
        ),
        [(7,)],
        [],
    ),
    "triangular": (
        LinearMap(
            Function(
                "solve",
                "triangular solve",
                lambda b, a: jax.scipy.linalg.solve_triangular(a, b, lower=True),
            )
        ),
        [(6, 2)],
        [MATRIX],
    ),
}


def dense(rule, inputs, moving):
    """The matrix of the map."""

    def flat(v):
        parts = np.cumsum([x.size for x in inputs[:moving]])[:-1]
        arrays = [p.reshape(x.shape) for p, x in zip(jnp.split(v, parts), inputs, strict=False)]
        return rule.forward(*arrays, *inputs[moving:]).ravel()

    return np.asarray(jax.jacfwd(flat)(jnp.zeros(sum(x.size for x in inputs[:moving]))))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("even", [True, False])
def test_projection_is_that_of_a_dense_solve(name, even):
    rule, shapes, constants = MAPS[name]
    rng = np.random.default_rng(1)
    inputs = [jnp.asarray(rng.normal(size=s)) for s in shapes] + [jnp.asarray(c) for c in constants]
    goal = jnp.asarray(10 * rng.normal(size=rule.forward(*inputs).shape))
    weight = 7.0 if even else jnp.asarray(10 ** rng.uniform(0, 3, goal.shape))
    ends, end = rule.project(tuple(inputs), goal, weight)
    matrix = dense(rule, inputs, rule.moving)
    start = np.concatenate([np.ravel(x) for x in inputs[: rule.moving]])
    w = np.broadcast_to(weight, goal.shape).ravel()
    left = np.eye(len(start)) + matrix.T @ (w[:, None] * matrix)
    best = np.linalg.solve(left, start + matrix.T @ (w * goal.ravel()))
    got = np.concatenate([np.ravel(x) for x in ends[: rule.moving]])
    np.testing.assert_allclose(got, best, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(end.ravel(), matrix @ best, rtol=1e-9, atol=1e-8)
    for c, kept in zip(inputs[rule.moving :], ends[rule.moving :], strict=True):
        np.testing.assert_array_equal(c, kept)

    def cost(x):
        return np.sum((x - start) ** 2, -1) + np.sum(w * (x @ matrix.T - np.ravel(goal)) ** 2, -1)

    others = got + 10 ** rng.uniform(-6, 1, (500, 1)) * rng.normal(size=(500, len(got)))
    assert np.all(cost(others) >= cost(got) * (1 - 1e-12))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", MAPS)
def test_what_is_asked_is_the_transpose(name):
    rule, shapes, constants = MAPS[name]
    rng = np.random.default_rng(2)
    inputs = [jnp.asarray(rng.normal(size=s)) for s in shapes] + [jnp.asarray(c) for c in constants]
    output, pull = jax.vjp(rule.soft(0.25), *inputs)
    goal = jnp.asarray(rng.normal(size=output.shape))
    asked = pull(goal)
    got = np.concatenate([np.ravel(a) for a in asked[: rule.moving]])
    np.testing.assert_allclose(got, dense(rule, inputs, rule.moving).T @ goal.ravel(), atol=1e-12)


@pytest.mark.parametrize("size", [1e-3, 1e-6])
def test_tiny_residuals_survive_float32(size):
    rule = MAPS["cumsum"][0]
    rng = np.random.default_rng(0)
    x = 10 * rng.normal(size=20).astype(np.float32)
    dx, dz = size * rng.normal(size=(2, 20)).astype(np.float32)
    (move,), back = rule.displace((x,), (dx,), rule.forward(x), dz, 3.0)
    assert move.dtype == back.dtype == jnp.float32
    with jax.enable_x64(True):
        zero = np.zeros(20)
        (want,), want_back = rule.displace((zero,), (dx.astype(float),), zero, dz.astype(float), 3.0)
    np.testing.assert_allclose(move, want, rtol=1e-4, atol=1e-5 * size)
    np.testing.assert_allclose(back, want_back, rtol=1e-4, atol=1e-5 * size)


def test_nothing_to_do():
    rule = MAPS["cumsum"][0]
    (move,), back = rule.displace((jnp.ones(3),), (jnp.zeros(3),), jnp.arange(1.0, 4.0), jnp.zeros(3))
    np.testing.assert_array_equal(move, np.zeros(3))
    np.testing.assert_array_equal(back, np.zeros(3))


def test_functions_are_compared_by_their_keys():
    one, other = (LinearMap(Function("a", "a", lambda x: x)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != LinearMap(Function("b", "a", lambda x: x))
