"""What the published implementation gets wrong outside the projections; one test for each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pjax

pytestmark = pytest.mark.usefixtures("x64")
AP = pjax.optim.AlternatingProjections(steps_per_update=1)


def moves(fn, params, solver=AP):
    new, _ = solver.update(fn, params)
    return jax.tree.map(lambda a, b: np.asarray(a - b), new, params)


def test_two_constants_of_the_same_shape_are_not_merged():
    ones, twos = jnp.ones(3), 2 * jnp.ones(3)

    def fn(w):
        return pjax.squared_error(w * ones, ones), pjax.squared_error(w * twos, 2 * twos)

    w, loss = pjax.optim.AlternatingProjections(steps_per_update=1).update(fn, jnp.ones(3))
    np.testing.assert_allclose(loss, (0 + 4) / 2)
    assert (w > 1).all()  # the first is satisfied, the second is not


def test_fan_out_is_counted():
    """A weight that one reader in ten wants to move gets a tenth of its move."""

    def fn(readers):
        def of(w):
            return pjax.squared_error(jnp.broadcast_to(w, (readers,)), jnp.ones(readers).at[0].set(11.0))

        return of

    for readers in (1, 2, 10):
        np.testing.assert_allclose(moves(fn(readers), jnp.ones(())), 10 / readers)


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


def test_disjoint_slices_do_not_halve_the_step():
    def fn(w):
        return pjax.squared_error(w[:2], 3 * jnp.ones(2)), pjax.squared_error(w[2:], 5 * jnp.ones(2))

    np.testing.assert_allclose(moves(fn, jnp.zeros(4)), [3, 3, 5, 5])


def test_repeated_embedding_rows_are_averaged():
    ids = np.array([1, 1, 3])
    wanted = jnp.array([[2.0, 2], [4, 4], [7, 7]])
    new = moves(lambda table: pjax.squared_error(table[ids], wanted), jnp.zeros((4, 2)))
    np.testing.assert_allclose(new, [[0, 0], [3, 3], [0, 0], [7, 7]])


@pytest.mark.parametrize("axis", [-1, 1, (0, -1), None])
def test_sum_over_negative_axes(axis):
    w = jnp.arange(6.0).reshape(2, 3)
    assert pjax.sum(w, axis=axis).shape == np.sum(w, axis=axis).shape

    def fn(w):
        return pjax.squared_error(pjax.sum(w, axis=axis), pjax.sum(jnp.ones((2, 3)), axis=axis))

    solver = pjax.optim.AlternatingProjections(steps_per_update=100)
    new, _ = solver.update(fn, w)
    np.testing.assert_allclose(np.sum(new, axis=axis), np.sum(np.ones((2, 3)), axis=axis), atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_repeat_along_any_axis(axis):
    w = jnp.arange(6.0).reshape(2, 3)
    wanted = jnp.repeat(w + 1, 3, axis=axis)
    np.testing.assert_allclose(moves(lambda w: pjax.squared_error(pjax.repeat(w, 3, axis), wanted), w), 1)


def test_repeat_averages_what_its_copies_want():
    wanted = jnp.array([1.0, 2, 6, 10, 20, 60])
    new = moves(lambda w: pjax.squared_error(pjax.repeat(w, 3), wanted), jnp.zeros(2))
    np.testing.assert_allclose(new, [3, 30])


@pytest.mark.parametrize("axes", [(-1, 0, 1), (1, -1, 0), (-2, -1, -3), (2, 0, 1)])
def test_transpose_with_negative_axes(axes):
    w = jnp.arange(24.0).reshape(2, 3, 4)
    wanted = jnp.transpose(w * w, axes)
    np.testing.assert_allclose(
        moves(lambda w: pjax.squared_error(pjax.transpose(w, axes), wanted), w), w * w - w
    )


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


def test_update_returns_the_mean_loss_of_the_given_parameters():
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.array([1.0, 0, 2])
    w = jnp.array([0.5, -1.0])

    def fn(w):
        return pjax.squared_error(x @ w, y)

    for steps in (1, 7):
        solver = pjax.optim.DouglasRachford(steps_per_update=steps)
        np.testing.assert_allclose(solver.update(fn, w)[1], np.mean((x @ w - y) ** 2), rtol=1e-12)


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
