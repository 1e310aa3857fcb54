"""Values in sets: inside functions, at their end, by every method."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import nn, optim, sets
from pjax.errors import GraphError, InputError
from tests import oracle
from tests.oracle import SOLVERS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4))
Y = RNG.normal(size=(3, 3))


# --- On arrays ---


def test_the_result_is_the_nearest_point():
    x = jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)
    np.testing.assert_array_equal(pjax.constrain(x, sets.NonNegative()), np.maximum(x, 0))
    ball = pjax.constrain(x, sets.Ball(0.5))
    np.testing.assert_allclose(ball, x * (0.5 / np.linalg.norm(x)), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (2, 0), (1,)])
def test_slices_along_axes(axis):
    x = RNG.normal(size=(3, 4, 2)).astype(np.float32)
    found = np.asarray(pjax.constrain(x, sets.OneHot(), axis=axis))
    axes = {a % 3 for a in np.atleast_1d(axis)}
    rest = [a for a in range(3) if a not in axes]
    for place in np.ndindex(*(x.shape[a] for a in rest)):
        at = tuple(place[rest.index(a)] if a in rest else slice(None) for a in range(3))
        assert found[at].sum() == 1
        assert x[at][found[at] == 1] == x[at].max()


def test_matrices_along_axes():
    x = RNG.normal(size=(4, 2, 4)).astype(np.float32)
    found = pjax.constrain(x, sets.Permutation(), axis=(0, 2))
    np.testing.assert_array_equal(found.swapaxes(0, 1), sets.Permutation().project(x.swapaxes(0, 1)))


def test_arrays_of_a_set_belong_to_entries_or_to_members():
    x = jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)
    radius = jnp.array([0.5, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(
        np.linalg.norm(pjax.constrain(x, sets.Sphere(radius), axis=0), axis=0), radius, rtol=1e-6
    )
    lower = jnp.array([[0.0], [0.5], [1.0]])
    np.testing.assert_array_equal(pjax.constrain(x, sets.Box(lower)), jnp.maximum(x, lower))


def test_under_vmap_and_jit_with_sets_that_differ():
    x = jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)
    mask = jnp.asarray(RNG.random((3, 4)) < 0.5)
    run = jax.jit(jax.vmap(lambda x, mask: pjax.constrain(x, sets.Known(mask, 7.0))))
    np.testing.assert_array_equal(run(x, mask), jnp.where(mask, 7.0, x))
    spheres = jax.vmap(sets.Sphere)(jnp.arange(3.0))
    lengths = jnp.linalg.norm(jax.vmap(pjax.constrain)(x, spheres), axis=-1)
    np.testing.assert_allclose(lengths, [0.0, 1.0, 2.0], rtol=1e-6)
    inner = jax.vmap(lambda column: pjax.constrain(column, sets.Simplex()), in_axes=1, out_axes=1)(x)
    np.testing.assert_allclose(inner, pjax.constrain(x, sets.Simplex(), axis=0), rtol=1e-6)


def test_gradients_are_those_of_the_projection():
    slope = jax.grad(lambda x: pjax.constrain(x, sets.Box(0.0, 1.0)).sum())(jnp.array([-1.0, 0.5, 2.0]))
    np.testing.assert_array_equal(slope, [0.0, 1.0, 0.0])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_types_are_kept(dtype):
    assert pjax.constrain(jnp.ones(3, dtype), sets.Ball(0.5)).dtype == dtype


# --- As constraints, by every method ---


def _inside(p):
    """In the middle of a network; some numbers of a slice have more readers than others."""
    w = pjax.constrain(p["w"], sets.Box(np.full((4, 3), -0.4), np.linspace(0.1, 0.6, 3)))
    v = pjax.constrain(p["v"], sets.Ball(np.array([0.5, 1.0, 0.7])), axis=1)
    corner = pjax.constrain(p["v"].T, sets.Simplex(), axis=0)[1:]  # some of each member is not read
    hidden = (X @ w) @ v + v[0]
    return pjax.squared_error(hidden, Y, scale=1.0), pjax.squared_error(corner.sum(), 0.4)


def _at_the_end(p):
    """Sets alone, and beside a loss."""
    known = sets.Known(np.array([True, False, False]), np.array([0.2, 0.0, 0.0]))
    return (
        pjax.constrain(p["v"], sets.Simplex(), axis=0),
        [pjax.constrain(p["v"], known), pjax.constrain(p["w"].T, sets.Sparse(5))],
        pjax.squared_error(X @ p["w"], Y, scale=1.0).mean(),
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("fn", "name"),
    [(_inside, "AP"), (_inside, "DR"), (_at_the_end, "DM")],
)
def test_every_method_does_what_it_is_defined_to_do(fn, name):
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(4, 3)), "v": rng.normal(size=(3, 3))}
    consensus = "exact" if fn is _at_the_end else "paper"
    make = functools.partial(SOLVERS[name], steps_per_update=3, consensus=consensus)
    explicit, _ = make(edges="explicit").update(fn, params)
    expected = oracle.update(make(edges="explicit"), fn, params)
    implicit, _ = make(**({"history": 6} if name in ("DR", "DM") else {})).update(fn, params)
    for key in params:
        assert np.abs(expected[key] - params[key]).max() > 1e-3
        np.testing.assert_allclose(explicit[key], expected[key], atol=1e-9)
        np.testing.assert_allclose(implicit[key], expected[key], atol=1e-9)


@pytest.mark.parametrize(
    ("name", "consensus"),
    [("AP", "paper"), ("AP", "exact"), ("CP", "paper"), ("DR", "exact"), ("DM", "paper")],
)
def test_solve_finds_a_common_point(name, consensus):
    def fn(x):
        low = pjax.constrain(x, sets.Box(upper=0.4))
        return pjax.constrain(x, sets.Simplex()), pjax.squared_error(low[:2].sum(), 0.7)

    start = jnp.array([3.0, 1.0, -2.0, 0.1])
    solution = pjax.solve(fn, start, SOLVERS[name](consensus=consensus), max_steps=2000, tolerance=1e-6)
    assert solution.converged
    x = np.asarray(solution.params)
    np.testing.assert_allclose([x.sum(), x[:2].sum()], [1.0, 0.7], atol=1e-3)
    assert x.min() > -1e-3
    assert x.max() < 0.4 + 1e-3


def test_the_loss_of_a_set_is_the_squared_distance():
    x = jnp.array([3.0, -1.0])
    solution = pjax.solve(lambda x: pjax.constrain(x, sets.NonNegative()), x, optim.AlternatingProjections())
    np.testing.assert_array_equal(solution.params, [3.0, 0.0])
    np.testing.assert_allclose(solution.loss, 0.5)  # the mean of 0 and 1
    both = pjax.solve(lambda x: pjax.constrain(x, sets.Sphere(1.0)), x, optim.AlternatingProjections())
    np.testing.assert_allclose(both.loss, (np.sqrt(10) - 1) ** 2, rtol=1e-6)


def test_what_is_returned_may_be_reshaped_and_read():
    """A value that is also used stays a node, and is asked for as well."""

    def fn(x):
        inside = pjax.constrain(x, sets.NonNegative())
        return inside.reshape(2, 2).T, pjax.squared_error(inside.sum(), 3.0)

    ops = sorted(target.op for target in pjax.trace(fn, jnp.ones(4)))
    assert ops == ["member", "squared_error"]
    solution = pjax.solve(fn, -jnp.ones(4), optim.AlternatingProjections(), tolerance=1e-5)
    np.testing.assert_allclose(solution.params, 0.75, atol=1e-3)


def test_computations_built_by_hand():
    x = pjax.parameter([3.0, -1.0, 0.5], name="x")
    inside = pjax.constrain(x, sets.Simplex())
    assert isinstance(inside, pjax.Computation)
    np.testing.assert_allclose(inside.value, [1.0, 0.0, 0.0])
    fn, params = pjax.as_function([inside, pjax.constrain(x[:1], sets.Box(upper=0.5))])
    solution = pjax.solve(fn, params, optim.DouglasRachford(), tolerance=1e-6)
    assert solution.converged
    np.testing.assert_allclose(solution.params["x"].sum(), 1.0, atol=1e-4)


def test_batches_of_problems_by_vmap():
    mask = jnp.array([[True, False, False], [False, False, True]])

    def solve(mask):
        def fn(x):
            return pjax.constrain(x, sets.Simplex()), pjax.constrain(x, sets.Known(mask, 0.5))

        return pjax.solve(fn, jnp.zeros(3), optim.DouglasRachford(), tolerance=1e-6)

    found = jax.vmap(solve)(mask)
    assert found.converged.all()
    np.testing.assert_allclose(found.params, [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], atol=1e-4)


def _even(x):
    return 2 * jnp.round(x / 2)


@pytest.mark.parametrize("into", [sets.Integers(), sets.Own(_even, axes=0, convex=False)])
def test_sets_that_are_not_convex(into):
    a = jnp.array([[1.0, 1.0], [1.0, -1.0]])

    def fn(x):
        return pjax.constrain(x, into), pjax.squared_error(a @ x, jnp.array([6.0, -2.0]))

    solver = optim.DouglasRachford(constants="fixed")
    solution = pjax.solve(fn, jnp.array([0.3, 9.1]), solver, tolerance=1e-5)
    assert solution.converged
    np.testing.assert_allclose(solution.params, [2.0, 4.0], atol=1e-3)


# --- In networks ---


class Constrained(nn.Module):
    def __init__(self, into):
        super().__init__()
        self.into = into
        self.weight = nn.Linear(2, 8).weight
        self.relu = nn.ReLU(8)
        self.out = nn.Linear(8, 2)

    def __call__(self, x):
        return self.out(self.relu(x @ pjax.constrain(self.weight, self.into)))


AP = optim.AlternatingProjections(steps_per_update=10)
EP = optim.ExtrapolatedProjections(learning_rate=0.1)


@pytest.mark.parametrize(
    ("into", "optimizer"),
    [(sets.NonNegative(), AP), (sets.NonNegative(), EP), (sets.Integers(-1, 1), EP), (sets.Sparse(6), AP)],
)
def test_networks_learn_with_weights_in_a_set(into, optimizer):
    x = jax.random.normal(jax.random.key(1), (64, 2))
    y = (x[:, 0] > 0.3).astype(int)
    model = Constrained(into)
    params = model.init(jax.random.key(0))
    state = optimizer.init(params)
    update = jax.jit(lambda p, s: optimizer.update(lambda p: nn.cross_entropy(model.apply(p, x), y), p, s))
    first = None
    for _ in range(12):
        params, state, loss = update(params, state)
        first = loss if first is None else first
    assert loss < 0.8 * first
    inside = pjax.constrain(params["weight"], into)
    np.testing.assert_allclose(pjax.constrain(inside, into), inside, atol=1e-6)


def test_soft_steps_do_not_lead_away_from_the_set():
    """Of what is asked of a value outside of the set, nothing leads further away, and all else is asked."""
    x = jnp.array([-1.0, -1.0, 2.0, 2.0])

    def fn(x):
        goal = jnp.array([-5.0, 5.0, -5.0, 5.0])
        return pjax.squared_error(pjax.constrain(x, sets.NonNegative()), goal, scale=1.0)

    class Plain:
        def init(self, params):
            del params
            return ()

        def update(self, gradient, state, params):
            del params
            return jax.tree.map(lambda g: -g, gradient), state

    solver = optim.ExtrapolatedProjections(outer=Plain())
    moved, _, _ = solver.update(fn, x, solver.init(x))
    np.testing.assert_array_equal(np.sign(moved - x), [0, 1, -1, 1])


# --- What is refused ---


@pytest.mark.parametrize(
    ("run", "match"),
    [
        (lambda: pjax.constrain(jnp.ones(3), "box"), "expected a set, such as"),
        (lambda: pjax.constrain(jnp.arange(3), sets.NonNegative()), "must be floating-point numbers"),
        (lambda: pjax.constrain(jnp.array([jnp.inf]), sets.NonNegative()), "finite values, got inf"),
        (lambda: pjax.constrain(jnp.ones(3), sets.NonNegative(), axis=0), "one by one and has no axis"),
        (lambda: pjax.constrain(jnp.ones(3), sets.Simplex(), axis=1), "got axis=1 for 1 axes"),
        (lambda: pjax.constrain(jnp.ones((3, 3)), sets.Simplex(), axis=(0, 0)), "got axis="),
        (lambda: pjax.constrain(jnp.ones(3), sets.Permutation()), "two axes"),
        (lambda: pjax.constrain(jnp.ones((2, 3)), sets.Permutation()), "must be square; got 2 rows"),
        (lambda: pjax.constrain(jnp.ones(3), sets.Sparse(4)), "constrains nothing"),
        (lambda: pjax.constrain(jnp.ones(3), sets.Box(np.zeros(2))), "lower has shape"),
        (lambda: pjax.constrain(jnp.ones((3, 2)), sets.Ball(np.ones(2)), axis=1), "radius has shape"),
        (lambda: pjax.constrain(1.0, sets.Simplex()), "one axis or several"),
    ],
)
def test_bad_arguments(run, match):
    with pytest.raises(InputError, match=match):
        run()


def test_a_set_that_depends_on_a_parameter_is_refused():
    with pytest.raises(GraphError, match=r"the set of 'constrain' at .*test_constrain.py:\d+ depends"):
        pjax.trace(lambda x: pjax.constrain(x, sets.Box(x)), jnp.ones(3))


def test_a_function_may_go_on_after_its_set():
    """To a scalar, which is minimised in the set."""
    solver = optim.DouglasRachford(steps_per_update=200)
    found, _ = solver.update(lambda x: pjax.constrain(x, sets.NonNegative()).sum(), jnp.ones(3))
    np.testing.assert_allclose(pjax.constrain(found, sets.NonNegative()), 0, atol=1e-5)
