"""The sets, each against an independent search and against its definition."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from pjax import sets
from pjax.errors import InputError
from pjax.testing import check_set


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


def test_the_simplex_far_away():
    x = jnp.array([1e9, 1e9 - 64.0, -1e30], jnp.float32)
    np.testing.assert_array_equal(sets.Simplex().project(x), [1.0, 0.0, 0.0])


# --- What is refused ---


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: sets.Box(1.0, 0.0), "lower must not be above upper"),
        (lambda: sets.Box(upper=math.inf), "upper must be finite"),
        (lambda: sets.Ball(-1.0), "radius must be finite and at least 0; got -1"),
        (lambda: sets.Sphere(np.array([1.0, np.nan])), "radius must be finite"),
        (lambda: sets.Simplex(-1.0), "total must be finite and at least 0"),
        (lambda: sets.Sparse(0), "k must be a whole number of at least 1; got 0"),
        (lambda: sets.Sparse(2.0), "got 2.0"),
        (lambda: sets.Integers(0.5, 2), "bounds must be whole numbers or None; got 0.5"),
        (lambda: sets.Integers(2, 1), "low must not be above high"),
        (lambda: sets.Integers(step=0.0), "step must be a positive finite number"),
        (lambda: sets.Known(np.ones(2), np.ones(2)), "mask must be booleans; got float"),
        (lambda: sets.Known(True, np.inf), "values must be finite"),
        (lambda: sets.Own(3), "nearest must be a function of an array; got 3"),
        (lambda: sets.Own(even, axes=3), "axes must be 0, 1 or 2; got 3"),
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

    name = "wrong"

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
    with pytest.raises(AssertionError, match=f"wrong: failed: .*{match}"):
        check_set(kind(), (3,), samples=64)
