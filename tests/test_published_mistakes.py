"""What the published implementation gets wrong. Ours must not; one test for each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pjax
from pjax.losses import CrossEntropy
from pjax.rules import Dot, Quantize, SumRelu

# --- Projections ---

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


# --- Outside the projections ---

ENGINE_MARK = pytest.mark.usefixtures("x64")


AP = pjax.optim.AlternatingProjections(steps_per_update=1)


def moves(fn, params, solver=AP):
    new, _ = solver.update(fn, params)
    return jax.tree.map(lambda a, b: np.asarray(a - b), new, params)


@ENGINE_MARK
def test_two_constants_of_the_same_shape_are_not_merged():
    ones, twos = jnp.ones(3), 2 * jnp.ones(3)

    def fn(w):
        return pjax.squared_error(w * ones, ones), pjax.squared_error(w * twos, 2 * twos)

    w, loss = pjax.optim.AlternatingProjections(steps_per_update=1).update(fn, jnp.ones(3))
    np.testing.assert_allclose(loss, (0 + 4) / 2)
    assert (w > 1).all()  # the first is satisfied, the second is not


@ENGINE_MARK
def test_fan_out_is_counted():
    """A weight that one reader in ten wants to move gets a tenth of its move."""

    def fn(readers):
        def of(w):
            return pjax.squared_error(jnp.broadcast_to(w, (readers,)), jnp.ones(readers).at[0].set(11.0))

        return of

    for readers in (1, 2, 10):
        np.testing.assert_allclose(moves(fn(readers), jnp.ones(())), 10 / readers)


@ENGINE_MARK
def test_fan_out_weights_the_output_of_a_node():
    """The projection onto a node's set weights its output by the number of edges that leave it."""

    def fn(w):
        h = pjax.identity(w)
        return pjax.squared_error(jnp.broadcast_to(h, (4,)), 5 * jnp.ones(4))

    def first(consensus):
        return moves(
            fn, jnp.ones(()), pjax.optim.AlternatingProjections(steps_per_update=1, consensus=consensus)
        )

    np.testing.assert_allclose(first("paper"), 4 / 2)
    np.testing.assert_allclose(first("exact"), 4 * 4 / 5)


@ENGINE_MARK
def test_disjoint_slices_do_not_halve_the_step():
    def fn(w):
        return pjax.squared_error(w[:2], 3 * jnp.ones(2)), pjax.squared_error(w[2:], 5 * jnp.ones(2))

    np.testing.assert_allclose(moves(fn, jnp.zeros(4)), [3, 3, 5, 5])


@ENGINE_MARK
def test_repeated_embedding_rows_are_averaged():
    ids = np.array([1, 1, 3])
    wanted = jnp.array([[2.0, 2], [4, 4], [7, 7]])
    new = moves(lambda table: pjax.squared_error(table[ids], wanted), jnp.zeros((4, 2)))
    np.testing.assert_allclose(new, [[0, 0], [3, 3], [0, 0], [7, 7]])


@ENGINE_MARK
@pytest.mark.parametrize("axis", [-1, 1, (0, -1), None])
def test_sum_over_negative_axes(axis):
    w = jnp.arange(6.0).reshape(2, 3)
    assert pjax.sum(w, axis=axis).shape == np.sum(w, axis=axis).shape

    def fn(w):
        return pjax.squared_error(pjax.sum(w, axis=axis), pjax.sum(jnp.ones((2, 3)), axis=axis))

    solver = pjax.optim.AlternatingProjections(steps_per_update=100)
    new, _ = solver.update(fn, w)
    np.testing.assert_allclose(np.sum(new, axis=axis), np.sum(np.ones((2, 3)), axis=axis), atol=1e-6)


@ENGINE_MARK
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_repeat_along_any_axis(axis):
    w = jnp.arange(6.0).reshape(2, 3)
    wanted = jnp.repeat(w + 1, 3, axis=axis)
    np.testing.assert_allclose(moves(lambda w: pjax.squared_error(pjax.repeat(w, 3, axis), wanted), w), 1)


@ENGINE_MARK
def test_repeat_averages_what_its_copies_want():
    wanted = jnp.array([1.0, 2, 6, 10, 20, 60])
    new = moves(lambda w: pjax.squared_error(pjax.repeat(w, 3), wanted), jnp.zeros(2))
    np.testing.assert_allclose(new, [3, 30])


@ENGINE_MARK
@pytest.mark.parametrize("axes", [(-1, 0, 1), (1, -1, 0), (-2, -1, -3), (2, 0, 1)])
def test_transpose_with_negative_axes(axes):
    w = jnp.arange(24.0).reshape(2, 3, 4)
    wanted = jnp.transpose(w * w, axes)
    np.testing.assert_allclose(
        moves(lambda w: pjax.squared_error(pjax.transpose(w, axes), wanted), w), w * w - w
    )


@ENGINE_MARK
@pytest.mark.parametrize("size", [4, 5, 6])
def test_same_convolution_with_stride_two(size):
    x, k = jnp.ones((1, size, size, 1)), jnp.ones((3, 3, 1, 2))
    out = pjax.conv(x, k, 2, "SAME")
    half = -(-size // 2)
    assert out.shape == (1, half, half, 2)
    other = lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(out, other)
    solver = pjax.optim.AlternatingProjections(steps_per_update=3)
    _, loss = solver.update(lambda k: pjax.squared_error(pjax.conv(x, k, 2, "SAME"), other + 1), k)
    np.testing.assert_allclose(loss, 1)


@ENGINE_MARK
def test_update_returns_the_mean_loss_of_the_given_parameters():
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.array([1.0, 0, 2])
    w = jnp.array([0.5, -1.0])

    def fn(w):
        return pjax.squared_error(x @ w, y)

    for steps in (1, 7):
        solver = pjax.optim.DouglasRachford(steps_per_update=steps)
        np.testing.assert_allclose(solver.update(fn, w)[1], np.mean((x @ w - y) ** 2), rtol=1e-12)


@ENGINE_MARK
@pytest.mark.parametrize("solver", [pjax.optim.AlternatingProjections, pjax.optim.DouglasRachford])
def test_pixels_that_no_window_covers_keep_their_values(solver):
    """A stride larger than the kernel leaves pixels uncovered."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 7, 7, 1)))
    k = jnp.ones((2, 2, 1, 1))

    def fn(x):
        out = pjax.conv(x, k, 3, "VALID")
        return pjax.squared_error(out, jnp.ones_like(out))

    new, _ = solver(steps_per_update=5).update(fn, x)
    covered = np.isin(np.arange(7), [0, 1, 3, 4])
    covered = (covered[:, None] & covered[None])[None, :, :, None]
    moved = np.asarray(new != x)
    assert not moved[~covered].any()
    assert moved[covered].all()
