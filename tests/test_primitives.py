"""The projection rules, and the checker that proves them."""

import dataclasses
import functools
import inspect
import pkgutil
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax.errors import InputError
from pjax.rules import (
    Dot,
    Example,
    Identity,
    Max,
    Primitive,
    Quantize,
    Sum,
    SumRelu,
    Target,
    identity,
    multiplier,
    quantize,
    register,
    registered,
)
from pjax.testing import check_projection

EXAMPLES = {example.name: example for example in registered() if example.nearest}


def check(example, shapes, **options):
    return check_projection(
        example.rule,
        shapes,
        constant=example.constant,
        sided=example.sided,
        labels=example.labels,
        scale=example.scale,
        **options,
    )


def median(shapes):
    return [shapes[len(shapes) // 2]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_projection(name):
    example = EXAMPLES[name]
    shapes = median(example.shapes)
    assert check(example, shapes, samples=192).points == 192
    check(example, shapes, samples=192, dtype="float32", key=1)


def test_every_rule_is_registered():
    for module in pkgutil.walk_packages(pjax.__path__, "pjax."):
        if module.name.startswith(("pjax.rules", "pjax.losses")):
            import_module(module.name)
    rules = [Primitive, Target]
    for rule in rules:
        rules += rule.__subclasses__()
    made = [rule for rule in rules if not inspect.isabstract(rule)]
    mine = {rule for rule in made if rule.__module__.startswith(("pjax.rules", "pjax.losses"))}
    assert mine <= {type(example.rule) for example in registered()}


def test_registering_twice_changes_nothing():
    before = registered()
    register(Example(Identity(), (((),),)))
    assert registered() == before


RESIDUAL_RULES = [
    (Identity(), [()]),
    (Sum((1, -1)), [(50,), (3,)]),
    (SumRelu((1, -1)), [(50,), (3,)]),
    (Dot(), [(50,), (50,)]),
    (Dot(fixed=0), [(50,), (50,)]),
    (Max(), [(50,)]),
    (Max(sign=-1), [(50,)]),
    (Quantize(levels=5), [()]),
]


@pytest.mark.parametrize(("rule", "core"), RESIDUAL_RULES, ids=lambda v: repr(v))
@pytest.mark.parametrize("size", [1e-3, 1e-6])
def test_tiny_residuals_survive_float32(rule, core, size):
    """A move computed from tiny shifts in float32 agrees with float64, to a relative error of 1e-4."""
    rng = np.random.default_rng(0)
    inputs = [10 * rng.normal(size=(200, *shape)).astype(np.float32) for shape in core]
    shifts = [size * rng.normal(size=x.shape).astype(np.float32) for x in inputs]
    if rule == Dot(fixed=0):
        shifts[0] *= 0
    with jax.enable_x64(True):
        wide = [x.astype(np.float64) for x in inputs]
        output = np.asarray(rule.forward(*map(jnp.asarray, wide)))
        shift = (size * rng.normal(size=200)).astype(np.float32)
        start = tuple(jnp.asarray(x + s) for x, s in zip(wide, shifts, strict=True))
        ends, end = rule.project(start, jnp.asarray(output + shift), 3.0)
        truth = [np.asarray(e - s) for e, s in zip(ends, start, strict=True)] + [
            np.asarray(end - (output + shift))
        ]
    moves, move = rule.displace(
        tuple(map(jnp.asarray, inputs)),
        tuple(map(jnp.asarray, shifts)),
        jnp.asarray(output.astype(np.float32)),
        jnp.asarray(shift),
        3.0,
    )
    for got, want in zip((*moves, move), truth, strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4 * size)


def bisect(plus, minus, residual, weight):
    """The multiplier by plain bisection, from the formula of the theorem, in extended precision."""
    plus, minus, residual, weight = (np.asarray(v, np.longdouble) for v in (plus, minus, residual, weight))
    low, high = np.full_like(residual, -90), np.zeros_like(residual)
    for _ in range(90):
        lam = np.sign(residual) * np.exp((low + high) / 2)
        value = plus / 4 * lam * (2 - lam) / (1 - lam) ** 2 + minus / 4 * lam * (2 + lam) / (1 + lam) ** 2
        below = np.abs(value + lam / weight) < np.abs(residual)
        low, high = np.where(below, (low + high) / 2, low), np.where(below, high, (low + high) / 2)
    return lam.astype(np.float64)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "in_kernel"),
    [("float32", 4e-6, False), ("float32", 4e-6, True), ("float64", 1e-14, False)],
)
def test_multiplier_over_all_scales(dtype, tolerance, in_kernel):
    rng = np.random.default_rng(1)
    count = 50_000
    plus, minus, residual = (10 ** rng.uniform(-16, 16, count) for _ in range(3))
    weight = 10 ** rng.uniform(0, 3, count)
    # Half of them near the hard place, where two terms saturate and the third sets in.
    limit = 3 / 16 * minus + 1 / weight
    edge = limit * (1 + rng.choice([-1, 1], count) * 10 ** rng.uniform(-7, 0, count))
    residual = np.where(rng.random(count) < 0.5, edge, residual) * rng.choice([-1, 1], count)
    with jax.enable_x64(dtype == "float64"):
        values = [jnp.asarray(v, dtype) for v in (plus, minus, residual, weight)]
        solved = jax.jit(functools.partial(multiplier, in_kernel=in_kernel))(*values)
        assert all(bool(jnp.isfinite(v).all()) for v in jax.tree.leaves(solved[:-1]))
        assert not bool(jnp.isnan(solved.root).any())  # infinite on spheres
        assert all(v.dtype == dtype for v in jax.tree.leaves(solved))
        truth = bisect(*map(np.asarray, values))
        np.testing.assert_allclose(
            np.asarray(solved.lam, np.float64), truth, rtol=2 * tolerance, atol=tolerance
        )
        small = np.abs(truth) < 0.5
        grow = truth[small] / (1 - truth[small])
        found = solved.growth(*values[:2])[0]
        np.testing.assert_allclose(np.asarray(found)[small], grow, rtol=4 * tolerance)


def test_multipliers_are_found_in_one_kernel_on_cpu():
    """Each more that the compiler makes of it is a large part of the time that it takes."""
    given = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 3
    program = jax.jit(lambda *values: multiplier(*values).root).lower(*given).compile().as_text()
    assert program.count(" fusion(") == 1


def test_multiplier_keeps_the_digits_of_a_tiny_root():
    squares = jnp.array(3.0), jnp.array(5.0)
    solved = multiplier(*squares, jnp.array(1e-12), 2.0)
    np.testing.assert_allclose(solved.lam, 1e-12 / (1.5 + 2.5 + 0.5), rtol=1e-6)
    for found, expected in zip(solved.growth(*squares), (solved.lam, -solved.lam), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_dot_sphere(sign):
    """With x = y = 0 every |x + y|^2 = 4 (z - 1) is nearest: one of them is returned."""
    zero = jnp.zeros((1, 7))
    (x, y), z = Dot().project((zero, zero), jnp.array([sign * 3.0]))
    np.testing.assert_allclose(z, [sign * 2.0], rtol=1e-6)
    np.testing.assert_allclose(jnp.sum((x + sign * y) ** 2), 8.0, rtol=1e-6)
    np.testing.assert_allclose(x, sign * y)


def test_dot_with_a_fixed_factor_leaves_it_alone():
    x, c = jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0])
    (moved, kept), z = Dot(fixed=1).project((x, c), jnp.array(12.0))
    np.testing.assert_array_equal(kept, c)
    np.testing.assert_allclose(moved, x + c, rtol=1e-6)  # lambda = 11 / (10 + 1)
    np.testing.assert_allclose(z, jnp.dot(moved, c), rtol=1e-6)


def lower_by_sorting(x, z, w):
    """The level to which the largest entries sink, by trying all numbers of them."""
    x = np.sort(x)[::-1]
    best = np.inf, 0.0
    for k in range(1, len(x) + 1):
        level = (w * z + x[:k].sum()) / (w + k)
        if k == len(x) or x[k] <= level:
            best = min(best, (((x[:k] - level) ** 2).sum() + w * (level - z) ** 2, level))
    return best[1]


def test_max_needs_many_rounds():
    """Geometrically spaced entries leave the set above the level one after the other."""
    x = np.float32(2.0) ** np.arange(40)
    for z, w in ((-1e13, 1.0), (0.0, 1.0), (-1e4, 30.0), (1e3, 1.0)):
        (moved,), level = jax.jit(Max().project)((jnp.asarray(x),), jnp.asarray(z, jnp.float32), w)
        want = lower_by_sorting(x.astype(np.float64), z, w)
        np.testing.assert_allclose(level, want, rtol=1e-5)
        np.testing.assert_allclose(jnp.max(moved), level, rtol=1e-6)


def test_max_ignores_padding():
    pad = np.finfo(np.float32).min / 4
    x = jnp.array([1.0, 3.0, 2.0])
    for z in (5.0, 0.0, -10.0):
        (short,), level = Max().project((x,), jnp.array(z))
        (long,), padded = Max().project((jnp.append(x, jnp.full(2, pad)),), jnp.array(z))
        np.testing.assert_array_equal(level, padded)
        np.testing.assert_array_equal(long, jnp.append(short, jnp.full(2, pad)))


def test_max_moves_only_the_first_of_ties():
    (x,), z = Max().project((jnp.array([1.0, 1.0]),), jnp.array(3.0))
    np.testing.assert_array_equal(x, [2.0, 1.0])
    assert z == 2.0


def test_sum_relu_returns_the_output_of_its_piece():
    """At the kink the output must be exactly zero, not a forward evaluation of rounded inputs."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(500, 9)), jnp.float32)
    _, z = SumRelu((1,)).project((x,), jnp.full(500, -3.0))
    assert bool((z == 0).all())


def test_quantize_says_which_level_was_meant():
    (x,), z = Quantize().project((jnp.array(-0.2),), jnp.array(0.9))
    assert x == 0.0
    assert z == 1.0
    assert quantize(x) == -1.0  # a midpoint is rounded down, yet belongs to both cells
    np.testing.assert_array_equal(
        quantize(jnp.array([-9.0, -0.51, -0.5, 0.0, 0.5, 9.0]), levels=3), [-1, -1, -1, 0, 0, 1]
    )


@pytest.mark.parametrize("levels", [2, 3, 4, 7, 16, 101])
def test_quantize_forward_is_the_nearest_level(levels):
    points = np.linspace(-2.0, 2.0, levels)
    x = np.random.default_rng(0).normal(size=3000).astype(np.float32) * 2
    got = np.asarray(quantize(x, levels=levels, scale=2.0))
    np.testing.assert_allclose(np.abs(got - x), np.abs(points - x[:, None]).min(-1), atol=1e-6)


def test_user_functions():
    x = jnp.array([0.3, -2.0])
    np.testing.assert_array_equal(identity(x), x)
    np.testing.assert_array_equal(jax.jit(jax.vmap(quantize))(x), [1.0, -1.0])
    np.testing.assert_array_equal(jax.grad(lambda v: identity(v).sum())(x), [1.0, 1.0])


@pytest.mark.parametrize(
    "build",
    [
        lambda: Sum((1, 2)),
        lambda: Sum(()),
        lambda: SumRelu((0,)),
        lambda: Sum((1, 1)).forward(jnp.ones(2)),
        lambda: Dot(fixed=2),
        lambda: Max(sign=0),
        lambda: Quantize(levels=1),
        lambda: Quantize(levels=2.5),
        lambda: Quantize(scale=0.0),
        lambda: Quantize(scale=float("nan")),
        lambda: quantize(jnp.arange(3)),
    ],
)
def test_bad_settings(build):
    with pytest.raises(InputError):
        build()


# What the checker must catch.


@dataclasses.dataclass(frozen=True)
class PlainNewton(Dot):
    """Newton's method from zero, without a bracket."""

    name = "plain_newton"

    def project(self, inputs, output, weight=1.0):
        x, y = inputs
        p, q = jnp.sum(x * y, -1), jnp.sum(x * x + y * y, -1)
        lam = jnp.zeros_like(p)
        for _ in range(10):
            value = ((1 + lam**2) * p + lam * q) / (1 - lam**2) ** 2 - output + lam / weight
            slope = (q * (1 + 3 * lam**2) + 2 * lam * p * (3 + lam**2)) / (1 - lam**2) ** 3 + 1 / weight
            lam = lam - value / slope
        d = (1 - lam**2)[..., None]
        ends = (x + lam[..., None] * y) / d, (y + lam[..., None] * x) / d
        return ends, output - lam / weight


@dataclasses.dataclass(frozen=True)
class UnclippedBranch(SumRelu):
    """The sloped branch is compared before it is clipped."""

    name = "unclipped_branch"

    def project(self, inputs, output, weight=1.0):
        (x,) = inputs
        n, s = x.shape[-1], jnp.sum(x, -1)
        flat = -jnp.maximum(s, 0) / n
        slope = (output - s) / (n + 1 / weight)
        nearer = n * slope**2 + slope**2 / weight < n * flat**2 + weight * output**2
        x = x + jnp.where(nearer, slope, flat)[..., None]
        return (x,), self.forward(x)


@dataclasses.dataclass(frozen=True)
class NoWeight(Sum):
    """Ignores the weight."""

    name = "no_weight"

    def project(self, inputs, output, weight=1.0):
        del weight
        return super().project(inputs, output)


@dataclasses.dataclass(frozen=True)
class Halfway(Max):
    """Goes half of the way."""

    name = "halfway"

    def project(self, inputs, output, weight=1.0):
        (x,), z = super().project(inputs, output, weight)
        return ((x + inputs[0]) / 2,), (z + output) / 2


@dataclasses.dataclass(frozen=True)
class OwnLevel(Quantize):
    """Never leaves the cell."""

    name = "own_level"

    def project(self, inputs, output, weight=1.0):
        del output, weight
        return inputs, self.forward(*inputs)


@dataclasses.dataclass(frozen=True)
class WrongType(Identity):
    """Returns float32 always."""

    name = "wrong_type"

    def project(self, inputs, output, weight=1.0):
        (x,), z = super().project(inputs, output, weight)
        return (x.astype(jnp.float32),), z.astype(jnp.float32)


MUTANTS = [
    (PlainNewton(), [[(3,), (3,)]], ""),
    (UnclippedBranch((1,)), [[(3,)]], "no better point"),
    (NoWeight((1,)), [[(3,)]], "no better point"),
    (Halfway(), [[(3,)]], "on the graph"),
    (OwnLevel(levels=16), [[()]], "no better point"),
    (WrongType(), [[()]], "types and shapes"),
]


@pytest.mark.parametrize(("rule", "shapes", "message"), MUTANTS, ids=[m[0].name for m in MUTANTS])
def test_the_checker_catches(rule, shapes, message):
    with pytest.raises(AssertionError, match=f"{rule.name}: .*{message}"):
        check_projection(rule, shapes, samples=128)


@dataclasses.dataclass(frozen=True)
class Step(Primitive):
    """Zero below zero and one above it, with a projection written by hand."""

    name = "step"

    def forward(self, *inputs):
        return (inputs[0] > 0).astype(inputs[0].dtype)

    def project(self, inputs, output, weight=1.0):
        (x,) = inputs
        high = jnp.maximum(-x, 0) ** 2 + weight * (output - 1) ** 2
        low = jnp.maximum(x, 0) ** 2 + weight * output**2
        x = jnp.where(high < low, jnp.maximum(x, 0), jnp.minimum(x, 0))
        return (x,), (high < low).astype(output.dtype)


def test_a_primitive_of_ones_own():
    """`forward` and `project` are all that the checker asks for; a jump may be met from either side."""
    report = check_projection(Step(), [[()]], samples=256)
    assert report.excess == 0


def test_check_projection_rejects_unknown_labels():
    with pytest.raises(ValueError, match="classes"):
        check_projection(Identity(), [[()]], labels="words")


@pytest.mark.parametrize(
    ("rule", "shapes", "options", "message"),
    [
        (3, [[()]], {}, "expected an instance of pjax.Primitive"),
        (Identity(), [[()]], {"dtype": jnp.float64}, "dtype must be one of float64, float32"),
    ],
)
def test_check_projection_says_what_it_takes(rule, shapes, options, message):
    with pytest.raises(pjax.InputError, match=message):
        check_projection(rule, shapes, samples=16, **options)


@pytest.mark.parametrize("sign", [1, -1])
def test_of_what_is_rounding_nothing_grows(sign):
    """Just below the limit of a sphere the root is large; what it multiplied would be rounding."""
    sides = (jnp.array(0.0), jnp.array(10.0))[::sign]
    found = multiplier(*sides, sign * (3 / 16 * 10.0 + 1) * jnp.array(1 - 1e-5))
    assert abs(found.root) > 1e4
    np.testing.assert_allclose(found.growth(*sides)[::sign], [0, -0.5], rtol=1e-4)
