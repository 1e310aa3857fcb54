"""Projections that the published implementation gets wrong. Ours must not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjax.losses import CrossEntropy
from pjax.rules import Dot, Quantize, SumRelu

SCALES = [0.1, 1.0, 10.0, 100.0]


def cost(start, end, z0, z):
    return (
        sum(((np.asarray(e, np.float64) - s) ** 2).sum(-1) for s, e in zip(start, end, strict=True))
        + (z - z0) ** 2
    )


def best_dot(x, y, z):
    """The nearest point of the graph of the dot product, by bisection of the optimality condition."""
    low, high = -np.ones_like(z), np.ones_like(z)
    p, m = ((x + y) ** 2).sum(-1), ((x - y) ** 2).sum(-1)
    for _ in range(100):
        lam = (low + high) / 2
        below = p / (4 * (1 - lam) ** 2) - m / (4 * (1 + lam) ** 2) + lam < z
        low, high = np.where(below, lam, low), np.where(below, high, lam)
    plus, minus = (x + y) / (1 - lam)[:, None], (x - y) / (1 + lam)[:, None]
    ends = (plus + minus) / 2, (plus - minus) / 2
    return cost((x, y), ends, z, (ends[0] * ends[1]).sum(-1))


def check_dot(x, y, z, tolerance):
    ends, end = Dot().project((jnp.asarray(x), jnp.asarray(y)), jnp.asarray(z))
    wide = [np.asarray(v, np.float64) for v in (x, y, z)]
    found = cost(wide[:2], ends, wide[2], np.asarray(end, np.float64))
    best = best_dot(*wide)
    assert (found <= best * (1 + tolerance) + 1e-9 * (wide[2] ** 2 + 1e-12)).all()
    product = (np.asarray(ends[0], np.float64) * np.asarray(ends[1], np.float64)).sum(-1)
    before, after = ([np.linalg.norm(v, axis=-1) for v in pair] for pair in ((x, y), ends))
    size = np.abs(z) + (before[0] + after[0]) * (before[1] + after[1])  # what rounding can change
    assert (np.abs(product - end) <= 1e-6 * size).all()


@pytest.mark.parametrize("scale", SCALES)
def test_dot_of_length_one(scale):
    """The published rule is wrong for up to 13 % of these."""
    rng = np.random.default_rng(0)
    x, y = (scale * rng.normal(size=(2000, 1)).astype(np.float32) for _ in range(2))
    check_dot(x, y, (scale * rng.normal(size=2000)).astype(np.float32), 1e-3)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("factor", [3, 10, 100])
def test_dot_with_a_distant_target(scale, factor):
    """Wrong for 89 to 100 % of these: plain Newton from zero leaves the interval."""
    rng = np.random.default_rng(1)
    x, y = (scale * rng.normal(size=(2000, 8)).astype(np.float32) for _ in range(2))
    z = factor * ((x * x).sum(-1) + (y * y).sum(-1)) / 2 * rng.choice([-1, 1], 2000)
    check_dot(x, y, z.astype(np.float32), 1e-3)


@pytest.mark.parametrize(
    ("x", "y", "z"), [([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], 4.0), ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 1.0)]
)
def test_dot_never_gives_nan(x, y, z):
    (a, b), c = Dot().project((jnp.array(x), jnp.array(y)), jnp.array(z))
    assert bool(jnp.isfinite(jnp.stack([*a, *b, c])).all())
    np.testing.assert_allclose(jnp.dot(a, b), c, atol=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_relu_with_a_negative_target(scale):
    """Wrong for 16 % of points, all with a negative target: the clipped branch was not the one compared."""
    rng = np.random.default_rng(2)
    x = (scale * rng.normal(size=(4000, 5))).astype(np.float32)
    z = (scale * rng.normal(size=4000)).astype(np.float32)
    (end,), out = SumRelu((1,)).project((jnp.asarray(x),), jnp.asarray(z))
    found = cost((x.astype(np.float64),), (end,), z.astype(np.float64), np.asarray(out, np.float64))
    # Every point of the graph above the same direction: sum t, output max(0, t).
    s = x.astype(np.float64).sum(-1)
    t = scale * np.concatenate([[0.0], np.linspace(-30, 30, 6001)])[:, None]
    best = ((t - s) ** 2 / 5 + (np.maximum(t, 0) - z) ** 2).min(0)
    assert (found <= best + 1e-5 * scale**2).all()
    np.testing.assert_allclose(np.maximum(np.asarray(end).sum(-1), 0), out, atol=1e-5 * scale)


@pytest.mark.parametrize("scale", SCALES)
def test_quantize_to_sixteen_levels(scale):
    """Wrong for 2 to 40 % of points."""
    rng = np.random.default_rng(3)
    x, z = (scale * rng.normal(size=(2, 4000))).astype(np.float32)
    (end,), out = Quantize(levels=16).project((jnp.asarray(x),), jnp.asarray(z))
    levels = np.linspace(-1, 1, 16)
    middle = (levels[1:] + levels[:-1]) / 2
    low, high = np.append(-np.inf, middle), np.append(middle, np.inf)
    gap = np.clip(x[:, None], low, high) - x[:, None]
    best = (gap**2 + (levels - z[:, None]) ** 2).min(-1)
    found = (np.asarray(end, np.float64) - x) ** 2 + (np.asarray(out, np.float64) - z) ** 2
    np.testing.assert_allclose(found, best, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_cross_entropy_at_five(scale):
    """Wrong for 10 to 100 % of points: the fixed-point iteration is no contraction."""
    rng = np.random.default_rng(4)
    x = (scale * rng.normal(size=(1000, 10))).astype(np.float32)
    y = rng.integers(0, 10, 1000)
    end = np.asarray(CrossEntropy(5.0).project(jnp.asarray(x), jnp.asarray(y)), np.float64)
    p = np.asarray(jax.nn.softmax(jnp.asarray(end), axis=-1), np.float64)
    gap = end - x - 5 * (np.eye(10)[y] - p)
    # The cost is strongly convex, so a small residual bounds the distance to the minimum.
    assert np.abs(gap).max() <= 1e-4 * max(scale, 1)
