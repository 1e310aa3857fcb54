"""The sets, each against an independent search and against its definition; and values in them."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import pjax
from pjax import nn, optim, sets
from pjax.errors import GraphError, InputError
from pjax.testing import check_set
from tests import oracle
from tests.oracle import SOLVERS

# --- The sets ---


def even(x):
    return 2 * jnp.round(x / 2)


RNG = np.random.default_rng(0)
MASK = RNG.random(5) < 0.5
CASES = {
    "box": (sets.Box(-0.3, 2.0), (3,)),
    "box below": (sets.Box(lower=RNG.normal(size=3)), (3,)),
    "box above": (sets.Box(upper=1.0), ()),
    "non-negative": (sets.NonNegative(), (4,)),
    "balls": (sets.Ball(np.array([0.0, 1.5])), (2, 3)),
    "spheres": (sets.Sphere(np.array([0.0, 2.0, 1e-3])), (3, 2)),
    "simplices": (sets.Simplex(np.array([0.0, 1.0, 1e4])), (3, 5)),
    "one-hot": (sets.OneHot(), (4,)),
    "sparse": (sets.Sparse(2), (5,)),
    "integers": (sets.Integers(), (3,)),
    "ternary": (sets.Integers(-1, 1, step=0.25), (3,)),
    "known": (sets.Known(MASK, RNG.normal(size=5)), (5,)),
    "permutation": (sets.Permutation(), (4, 4)),
    "own": (sets.Own(even, axes=0, convex=False), (2,)),
}


# Permutations take long to compile, and in float64 they are enumerated below.
CHECKS = [(name, dtype) for name in CASES for dtype in ("float32", "float64")]
CHECKS.remove(("permutation", "float64"))


@pytest.mark.parametrize(("name", "dtype"), CHECKS)
def test_no_member_is_nearer(name, dtype):
    into, shape = CASES[name]
    assert check_set(into, shape, samples=96, dtype=dtype).points == 96


def test_every_set_is_checked():
    mine = {kind for kind in sets.Set.__subclasses__() if kind.__module__.startswith("pjax.")}
    assert mine == {type(into) for into, _ in CASES.values()}


# --- Each against its definition, all members written out or described without its projection ---


def ugly(*shape):
    """Points of many sizes, with ties and zeros."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(64, *shape)) * 10.0 ** rng.integers(-4, 6, size=(64, *[1] * len(shape)))
    x[::4] = np.round(rng.normal(size=x[::4].shape))
    x[1] = 0
    x[2] = 1
    return x


def nearest_of(members, x):
    members = np.asarray(members, float)
    distance = ((members[None] - x[:, None]) ** 2).reshape(len(x), len(members), -1).sum(-1)
    return distance.min(1)


def squared(into, x):
    found = np.asarray(into.project(jnp.asarray(x)))
    return ((found - x) ** 2).reshape(len(x), -1).sum(-1), found


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("n", [1, 5])
def test_permutations_by_enumeration(n):
    x = ugly(n, n)
    everything = [np.eye(n)[list(order)] for order in itertools.permutations(range(n))]
    distance, found = squared(sets.Permutation(), x)
    np.testing.assert_allclose(distance, nearest_of(everything, x), rtol=1e-12)
    assert ((found.sum(1) == 1) & (found.sum(2) == 1) & np.isin(found, (0, 1)).all((1, 2))[:, None]).all()


def test_large_permutations_against_scipy():
    x = np.random.default_rng(0).normal(size=(3, 30, 30)).astype(np.float32)
    found = np.asarray(jax.jit(sets.Permutation().project)(x))
    for matrix, mine in zip(x, found, strict=True):
        rows, columns = linear_sum_assignment(-matrix)
        np.testing.assert_allclose((mine * matrix).sum(), matrix[rows, columns].sum(), rtol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("k", [1, 2, 5])
def test_sparse_by_enumeration(k):
    x = ugly(5)
    masks = np.array([np.isin(range(5), kept) for kept in itertools.combinations(range(5), k)])
    distance, found = squared(sets.Sparse(k), x)
    np.testing.assert_allclose(distance, ((~masks * x[:, None]) ** 2).sum(-1).min(1), rtol=1e-12)
    assert ((found != 0).sum(-1) <= k).all()


def test_many_entries_take_no_more_memory_than_the_vector():
    x = jnp.zeros(20_000)
    compiled = jax.jit(sets.Sparse(2_000).project).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 10 * x.nbytes


@pytest.mark.usefixtures("x64")
def test_one_hot_and_bounded_integers_by_enumeration():
    x = ugly(4)
    np.testing.assert_allclose(squared(sets.OneHot(), x)[0], nearest_of(np.eye(4), x), rtol=1e-12)
    levels = list(itertools.product([-0.5, 0.0, 0.5], repeat=4))
    distance, _ = squared(sets.Integers(-1, 1, step=0.5), x)
    np.testing.assert_allclose(distance, nearest_of(levels, x), rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("total", [1.0, 50.0])
def test_the_simplex_by_its_corners(total):
    """A point of a convex set is nearest exactly if no corner is on the far side of it."""
    x = ugly(6)
    _, p = squared(sets.Simplex(total), x)
    np.testing.assert_allclose(p.sum(-1), total, rtol=1e-9)
    assert (p >= 0).all()
    corners = total * np.eye(6)
    beyond = ((x - p)[:, None] * (corners[None] - p[:, None])).sum(-1).max(1)
    assert (beyond <= 1e-9 * total * (1 + np.abs(x).max(1))).all()


@pytest.mark.usefixtures("x64")
def test_ball_and_sphere_by_directions():
    x = ugly(3)
    directions = np.random.default_rng(0).normal(size=(20000, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    for into, inside in ((sets.Sphere(2.0), False), (sets.Ball(2.0), True)):
        distance, p = squared(into, x)
        length = np.linalg.norm(p, axis=-1)
        assert (length <= 2 + 1e-12).all() if inside else np.allclose(length, 2)
        best = nearest_of(2 * directions, x)
        if inside:
            best = np.where(np.linalg.norm(x, axis=-1) <= 2, 0, best)
        assert (distance <= best + 1e-9).all()
        assert (distance >= best - 0.1 * (1 + np.sqrt(best))).all()


@pytest.mark.parametrize(
    ("into", "x", "first"),
    [
        (sets.Sparse(1), [2.0, -2.0, 2.0], [2.0, 0.0, 0.0]),
        (sets.OneHot(), [1.0, 1.0], [1.0, 0.0]),
        (sets.Permutation(), [[1.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]),
        (sets.Integers(), [0.5, 1.5, -0.5], [0.0, 1.0, -1.0]),
        (sets.Sphere(3.0), [0.0, 0.0], [3.0, 0.0]),
        (sets.Simplex(), [7.0, 7.0], [0.5, 0.5]),
    ],
)
def test_ties(into, x, first):
    np.testing.assert_array_equal(jax.jit(into.project)(jnp.array(x)), first)


def test_large_whole_numbers_stay():
    x = jnp.array([2.0**23 + 1, -(2.0**24) + 2, 1e30], jnp.float32)
    np.testing.assert_array_equal(sets.Integers().project(x), x)


def test_lengths_do_not_overflow():
    x = jnp.array([3e30, 4e30], jnp.float32)
    for into in (sets.Ball(5.0), sets.Sphere(5.0)):
        np.testing.assert_allclose(into.project(x), [3.0, 4.0], rtol=1e-6)
    tiny = jnp.array([3e-36, 4e-36], jnp.float32)
    np.testing.assert_allclose(sets.Sphere(5.0).project(tiny), [3.0, 4.0], rtol=1e-6)


@pytest.mark.parametrize("into", [sets.Ball(5.0), sets.Sphere(5.0)])
def test_lengths_of_the_largest_numbers(into):
    x = jnp.array([[1.5e38, 2e38], [-3e38, 0.0], [1e38, 1e-38]], jnp.float32)
    expected = [[3.0, 4.0], [-5.0, 0.0], [5.0, 0.0]]
    for project in (into.project, jax.jit(into.project)):
        np.testing.assert_allclose(project(x), expected, rtol=1e-6)


def test_bounds_of_whole_numbers_may_be_large():
    x = jnp.array([-5.0, 1.4, 3e30], jnp.float32)
    for zero in (0, np.int64(0)):
        np.testing.assert_allclose(sets.Integers(zero, 2**40).project(x), [0.0, 1.0, 2.0**40])


def test_bounds_may_be_lists_and_whole_numbers_stay_whole():
    found = sets.Box([0, 1], [1, 2]).project(jnp.array([3, 0]))
    assert jnp.issubdtype(found.dtype, jnp.integer)
    assert found.tolist() == [1, 1]


@pytest.mark.parametrize("make", [lambda x: sets.Box(x, 1.0), lambda x: sets.Simplex(1 - x)])
def test_a_set_that_turns_out_to_be_empty_has_no_solution(make):
    def converges(x):
        return pjax.solve(lambda v: pjax.constrain(v, make(x)), jnp.zeros(2), optim.DouglasRachford())

    found = jax.vmap(converges)(jnp.array([1.0, 2.0]))
    assert found.status.tolist() == [pjax.Status.CONVERGED, pjax.Status.NOT_FINITE]


def test_the_simplex_far_away():
    x = jnp.array([1e9, 1e9 - 64.0, -1e30], jnp.float32)
    np.testing.assert_array_equal(sets.Simplex().project(x), [1.0, 0.0, 0.0])


# --- What is refused ---


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: sets.Box(1.0, 0.0), "lower must not be above upper"),
        (lambda: sets.Box(upper=math.inf), "upper must be finite"),
        (lambda: sets.Box(np.zeros(3), np.ones(2)), r"do not fit, \(3,\) and \(2,\)"),
        (lambda: sets.Ball(-1.0), "radius must be finite and at least 0; got -1"),
        (lambda: sets.Sphere(np.array([1.0, np.nan])), "radius must be finite"),
        (lambda: sets.Simplex(-1.0), "total must be finite and at least 0"),
        (lambda: sets.Sparse(0), "k must be a whole number of at least 1, got 0"),
        (lambda: sets.Sparse(2.0), "got 2.0"),
        (lambda: sets.Integers(0.5, 2), "bounds must be whole numbers or None; got 0.5"),
        (lambda: sets.Integers(2, 1), "low must not be above high"),
        (lambda: sets.Integers(step=0.0), "step must be a positive finite number"),
        (lambda: sets.Integers(step="half"), "step must be a positive finite number; got 'half'"),
        (lambda: sets.Known(np.ones(2), np.ones(2)), "mask must be booleans; got float"),
        (lambda: sets.Known(True, np.inf), "values must be finite"),
        (lambda: sets.Own(3), "nearest must be a function of an array; got 3"),
        (lambda: sets.Own(even, axes=3), "axes must be a whole number from 0 to 2, got 3"),
        (lambda: sets.Own(lambda x: x[:1]).project(jnp.ones(2)), "must keep the shape"),
    ],
)
def test_bad_settings(make, match):
    with pytest.raises(InputError, match=match):
        make()


# --- What the checker must catch ---


@dataclasses.dataclass(frozen=True)
class Wrong(sets.Set):
    """A set whose projection goes wrong."""

    def project(self, x):
        return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1) / 2


@dataclasses.dataclass(frozen=True)
class Smallest(Wrong):
    def project(self, x):
        return jax.nn.one_hot(jnp.argmin(x, axis=-1), x.shape[-1], dtype=x.dtype)


@dataclasses.dataclass(frozen=True)
class Radial(Wrong):
    """Onto the box, but towards the middle of it."""

    def project(self, x):
        return x / jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), 1)


@dataclasses.dataclass(frozen=True)
class Nan(Wrong):
    def project(self, x):
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (Wrong, "projecting again"),
        (Smallest, "projecting again"),
        (Radial, "no better point"),
        (Nan, "finite"),
    ],
)
def test_the_checker_catches(kind, match):
    jax.tree_util.register_dataclass(kind, data_fields=[], meta_fields=[])
    with pytest.raises(AssertionError, match=f"{kind.__name__}: failed: .*{match}"):
        check_set(kind(), (3,), samples=64)


# --- Values in sets: inside functions, at their end, by every method ---

VALUES_RNG = np.random.default_rng(0)
X = VALUES_RNG.normal(size=(3, 4))
Y = VALUES_RNG.normal(size=(3, 3))


# --- On arrays ---


def test_the_result_is_the_nearest_point():
    x = jnp.asarray(VALUES_RNG.normal(size=(3, 4)), jnp.float32)
    np.testing.assert_array_equal(pjax.constrain(x, sets.NonNegative()), np.maximum(x, 0))
    ball = pjax.constrain(x, sets.Ball(0.5))
    np.testing.assert_allclose(ball, x * (0.5 / np.linalg.norm(x)), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (2, 0), (1,)])
def test_slices_along_axes(axis):
    x = VALUES_RNG.normal(size=(3, 4, 2)).astype(np.float32)
    found = np.asarray(pjax.constrain(x, sets.OneHot(), axis=axis))
    axes = {a % 3 for a in np.atleast_1d(axis)}
    rest = [a for a in range(3) if a not in axes]
    for place in np.ndindex(*(x.shape[a] for a in rest)):
        at = tuple(place[rest.index(a)] if a in rest else slice(None) for a in range(3))
        assert found[at].sum() == 1
        assert x[at][found[at] == 1] == x[at].max()


def test_matrices_along_axes():
    x = VALUES_RNG.normal(size=(4, 2, 4)).astype(np.float32)
    found = pjax.constrain(x, sets.Permutation(), axis=(0, 2))
    np.testing.assert_array_equal(found.swapaxes(0, 1), sets.Permutation().project(x.swapaxes(0, 1)))


def test_arrays_of_a_set_belong_to_entries_or_to_members():
    x = jnp.asarray(VALUES_RNG.normal(size=(3, 4)), jnp.float32)
    radius = jnp.array([0.5, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(
        np.linalg.norm(pjax.constrain(x, sets.Sphere(radius), axis=0), axis=0), radius, rtol=1e-6
    )
    lower = jnp.array([[0.0], [0.5], [1.0]])
    np.testing.assert_array_equal(pjax.constrain(x, sets.Box(lower)), jnp.maximum(x, lower))


def test_under_vmap_and_jit_with_sets_that_differ():
    x = jnp.asarray(VALUES_RNG.normal(size=(3, 4)), jnp.float32)
    mask = jnp.asarray(VALUES_RNG.random((3, 4)) < 0.5)
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
    with pytest.raises(GraphError, match=r"the set of 'constrain' at .*test_sets.py:\d+ depends"):
        pjax.trace(lambda x: pjax.constrain(x, sets.Box(x)), jnp.ones(3))


def test_a_function_may_go_on_after_its_set():
    """To a scalar, which is minimised in the set."""
    solver = optim.DouglasRachford(steps_per_update=200)
    found, _ = solver.update(lambda x: pjax.constrain(x, sets.NonNegative()).sum(), jnp.ones(3))
    np.testing.assert_allclose(pjax.constrain(found, sets.NonNegative()), 0, atol=1e-5)


@pytest.mark.parametrize(
    ("into", "shape", "options", "message"),
    [
        (sets.Ball, (3,), {}, "expected a set of pjax.sets"),
        (sets.Ball(2.0), (2.5,), {}, "each length of the shape must be a whole number"),
        (sets.Ball(2.0), (), {}, "has 1 axes"),
        (sets.Ball(2.0), (3,), {"samples": 0}, "samples must be a whole number"),
        (sets.Ball(2.0), (3,), {"dtype": np.float32}, "dtype must be one of float64, float32"),
    ],
)
def test_check_set_says_what_it_takes(into, shape, options, message):
    with pytest.raises(pjax.InputError, match=message):
        check_set(into, shape, **options)
