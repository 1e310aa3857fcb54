"""Rules of functions of one number, quotients, linear and smooth functions of whole arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjax.errors import InputError
from pjax.rules import Divide, Function, Joint, LinearMap, Scalar, elementary
from tests import functions

# --- Functions of one number: any function, searched for the nearest point of its graph ---

GELU = Scalar(Function("gelu", "gelu", jax.nn.gelu))


POINTS = 128
COARSE = {"bessel_i0e": 1e-9, "bessel_i1e": 1e-9}
"""Of functions whose derivatives JAX has to about ten digits."""


# Compiled once for all types of a rule, and not operation by operation.
_value = functools.partial(jax.jit, static_argnums=0)(lambda f, x: f(x))
_slope = functools.partial(jax.jit, static_argnums=0)(lambda f, x: jax.jvp(f, (x,), (jnp.ones_like(x),)))


def cases(rule, dtype, largest=1e6):
    """Numbers of all sizes, with zeros, and goals near the values, far from them, and at them."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=POINTS) * 10 ** rng.uniform(-4, np.log10(largest), POINTS)
    x = np.where(np.arange(POINTS) % 16 == 0, 0, x).astype(dtype).astype(np.float64)
    value, slope = (np.asarray(v) for v in _slope(rule.function.fn, x))
    known = np.abs(value) + np.abs(slope) < 1e28
    value, slope = np.where(known, value, 0), np.where(known, slope, 0)
    size = np.abs(value) + np.abs(slope * x) + np.abs(x) + 1e-3 * (x == 0)
    wild = rng.normal(size=POINTS)
    goal = np.choose(
        rng.integers(0, 5, POINTS),
        [value + size * 10 ** rng.uniform(-6, 0, POINTS) * wild, value + size * wild, size * wild,
         100 * size * wild, value],
    )  # fmt: skip
    weight = 10 ** rng.uniform(0, 3, POINTS)
    return x, goal.astype(dtype).astype(np.float64), weight.astype(dtype).astype(np.float64)


def least(f, x, goal, weight, reach, dtype):
    """The least squared distance from the graph that very many points have, and points between those."""
    close, even = 10 ** np.linspace(-12, 0, 400)[:, None], np.linspace(-1, 1, 401)[:, None]
    far = reach + np.abs(x)
    t = np.concatenate(
        [even * reach, close * reach, -close * reach, close * far - x, -close * far - x, -x[None]]
    )
    t = np.sort(np.clip(t, -reach, reach), axis=0)
    unit = np.finfo(dtype).eps * 2.0 ** np.floor(np.log2(np.where(x == 0, 1, np.abs(x))))

    def cost(t):
        t = np.where(x == 0, t, np.round(t / unit) * unit)  # what can be told from the start
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total = t**2 + weight * (np.asarray(_value(f, x + t)) - goal) ** 2
        return np.where(np.isfinite(total), total, np.inf)

    costs, rows = cost(t), np.arange(len(x))
    best = costs.min(0)
    edge = np.full_like(costs[:1], np.inf)
    around = np.concatenate([edge, costs, edge])
    costs = np.where((costs <= around[:-2]) & (costs <= around[2:]), costs, np.inf)
    for _ in range(3):  # the lowest valleys
        i = costs.argmin(0)
        low, high = t[np.maximum(i - 1, 0), rows], t[np.minimum(i + 1, len(t) - 1), rows]
        costs[i, rows] = np.inf
        for _ in range(12):
            inner = low + (high - low) * np.linspace(0, 1, 12)[:, None]
            values = cost(inner)
            j = values.argmin(0)
            best = np.minimum(best, values.min(0))
            low, high = inner[np.maximum(j - 1, 0), rows], inner[np.minimum(j + 1, 11), rows]
    return best


def check(rule, dtype, largest=1e6):
    """The results lie on the graph, and nothing is nearer. `benchmarks` checks more, and more slowly."""
    f, eps = rule.function.fn, float(np.finfo(dtype).eps)
    with jax.enable_x64(True):
        x, goal, weight = cases(rule, dtype, largest)
    with jax.enable_x64(dtype == "float64"):
        given = [v.astype(dtype) for v in (x, goal, weight)]
        (end,), output = jax.jit(lambda x, z, w: rule.project((x,), z, w))(*given)
        own = np.asarray(f(end), np.float64)
    with jax.enable_x64(True):
        end, output = np.asarray(end, np.float64), np.asarray(output, np.float64)
        assert np.isfinite(end).all()
        assert np.isfinite(output).all()
        step = 2 * eps * np.maximum(np.abs(end), np.abs(x))
        values = np.stack([np.asarray(f(end + s * step)) for s in (0, 1, -1)])
        values = np.where(np.isfinite(values), values, np.nan)
        change = np.nanmax(values, 0) - np.nanmin(values, 0)
        inexact = np.nan_to_num(np.nanmin(np.abs(own - values), 0), posinf=0)
        coarse = max(eps, COARSE.get(rule.function.label, 0))
        height = coarse * (np.abs(goal) + np.abs(output)) + change + inexact
        wrong = int((np.nanmin(np.abs(output - values), 0) / np.maximum(height, 1e-300)).argmax())
        assert np.nanmin(np.abs(output - values)[:, wrong]) <= 16 * height[wrong], (x[wrong], goal[wrong])
        found = (end - x) ** 2 + weight * (output - goal) ** 2
        best = least(f, x, goal, weight, np.sqrt(found), dtype)
        off = 16 * (eps * (np.abs(x) + np.abs(end)) + np.sqrt(weight) * height)
        excess = (found - best - 2 * np.sqrt(best) * off - off**2) / np.where(found > 0, found, 1)
    worst = int(excess.argmax())
    assert excess[worst] <= (1e-7 if dtype == "float64" else 1e-3), (x[worst], goal[worst], weight[worst])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", functions.RULES, ids=lambda rule: rule.function.label)
def test_nearest_point(rule, dtype):
    # Between neighbouring large numbers of a type, the tangent passes its poles.
    check(rule, dtype, 3.0 if rule.function.label == "tan" else 1e6)


@pytest.mark.parametrize("name", ["digamma", "lgamma"])
def test_nearest_point_among_poles(name):
    rule, f = elementary(name), getattr(jax.lax, name)
    rng = np.random.default_rng(0)
    x, goal = rng.uniform(-8, 0, 400), 4 * rng.normal(size=400)
    with jax.enable_x64(True):
        (end,), output = rule.project((jnp.asarray(x),), jnp.asarray(goal))
        grid = np.linspace(-12, 6, 50_001)
        values = np.asarray(f(jnp.asarray(grid)))
        end, output, own = map(np.asarray, (end, output, f(end)))
    np.testing.assert_allclose(output, own, rtol=1e-9)
    best = [np.nanmin((grid - a) ** 2 + (values - b) ** 2) for a, b in zip(x, goal, strict=True)]
    found = (end - x) ** 2 + (output - goal) ** 2
    assert np.mean(found <= np.multiply(best, 1.001) + 1e-6) > 0.99


HARD = [
    ("tanh", 3.663448582230437, -0.7005532028826829, 5.46277729069453, 15.7726667),
    ("bessel_i1e", -19.369262361336595, -19.795958614958312, 77.62035705073662, 30060.9535),
    ("bessel_i1e", 49.68491952, 30.747566476662346, 238.84595132262743, 224911.917),
    ("bessel_i1e", -71.29267149, -129.50309420842504, 109.81566363072129, 1840355.14),
    ("lgamma", 3.96680582, 8.409114360834911, 198.05834595615548, 15.7337809),
    ("cbrt", 2.9137467387713936, -0.9425882461696484, 1.719900241891934, 9.16112954),
    ("rsqrt", 2.7307757653026115, 3.440017862958988, 1.0255091941858332, 6.98414178),
    ("reciprocal", 4.027403659483195, 3.6166602757654727, 2.2177009231252183, 14.0293557),
    ("reciprocal", 43971.70280491835, -1898437.2153861665, 2.3910152308741397, 1.93351069e9),
    ("reciprocal", 360.8511451, -63.16671151379314, 33.67563795142975, 130224.974),  # beyond a pole
    ("tan", 5972.24654689, -14913.726848306944, 54.21793550593506, 2.22591997),
    ("hard_swish", -3.625258040832654, -0.1423336856535274, 123.97390261940224, 0.848148682),
    ("hard_swish", 90.87158078, 0.0, 24.799808187762544, 7937.38011),
    ("hard_swish", 475.2975570984493, 0.0, 133.60878127002272, 224227.356),
    ("gelu", -615.1959598537314, -1663.3978909027462, 680.103666903362, 1.8817666e9),
    ("log_square", -3302.67379814, -1247.3856082978602, 275.0415174245412, 438864223.564),
    ("log_square", 1601.58112099, -273.92517313403124, 850.3391399941264, 66370254.354),
    ("cos", -0.07488338144983488, -3.2786776580156785, 10.178759165721406, 61.8680459),
    ("sinh", 230.58577519546733, -1.263708675974024e100, 4.950827335360129, 1e174),  # a number has neighbours
]
"""A function, a number, a goal, a weight, and the least cost that a fine grid finds, in one valley."""


@pytest.mark.parametrize("name", sorted({case[0] for case in HARD}))
def test_the_deepest_of_several_valleys(name):
    (rule,) = [rule for rule in functions.RULES if rule.function.label == name]
    x, goal, weight, best = (
        np.array(v) for v in zip(*(case[1:] for case in HARD if case[0] == name), strict=True)
    )
    with jax.enable_x64(True):
        (end,), output = rule.project((jnp.asarray(x),), jnp.asarray(goal), jnp.asarray(weight))
        found = (np.asarray(end) - x) ** 2 + weight * (np.asarray(output) - goal) ** 2
    assert (found <= best * (1 + 1e-8)).all(), found / best


def test_the_output_is_the_value_at_the_end():
    """Compiled, too: what a compiler decides twice it may decide differently."""
    x, goal, weight = 0.006571385790371831, 0.0038832394474759627, 11.553261313739391
    with jax.enable_x64(True):
        given = [jnp.full(8, v) for v in (x, goal, weight)]
        (end,), output = jax.jit(lambda x, z, w: elementary("tanh").project((x,), z, w))(*given)
        np.testing.assert_allclose(output, np.tanh(np.asarray(end)), rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "x", "goal", "weight"),
    [("leaky_relu", 0.04473835, -0.006111499, 69.53672), ("hard_swish", -2.8838997, 0.06341031, 95.98155)],
)
def test_kinks_lie_on_the_graph(name, x, goal, weight):
    """What is known of one side of a kink does not count on the other, however near it is."""
    (rule,) = [rule for rule in functions.RULES if rule.function.label == name]
    start = (np.float32(x) + np.spacing(np.float32(x)) * np.arange(-32, 32)).astype(np.float32)
    goal = np.full_like(start, goal)
    (end,), output = jax.jit(lambda x, z: rule.project((x,), z, weight))(start, goal)
    value = np.asarray(rule.forward(end))
    assert (np.abs(output - value) <= 2 * np.finfo(np.float32).eps * (np.abs(value) + np.abs(goal))).all()


def test_jumps_are_found_from_all_numbers():
    """The number just below a jump is one, whatever the last digits of the start are."""
    start = 4.77821078 + 2.0**-50 * np.arange(256)
    goal, weight = -754.0879441335042, 324.4758101798987
    with jax.enable_x64(True):
        (end,), output = elementary("floor").project(
            (jnp.asarray(start),), jnp.full_like(start, goal), weight
        )
        found = (np.asarray(end) - start) ** 2 + weight * (np.asarray(output) - goal) ** 2
    np.testing.assert_allclose(found, (start + 751) ** 2 + weight * (-752 - goal) ** 2, rtol=1e-12)


def test_several_minima():
    """The bracket holds a few waves; against a fine grid."""
    rule = Scalar(Function("x sin x", "x sin x", lambda x: x * jnp.sin(x)))
    x, goal = (
        g.ravel().astype(np.float32) for g in np.meshgrid(np.linspace(-6, 6, 13), np.linspace(-4, 4, 9))
    )
    (end,), output = rule.project((jnp.asarray(x),), jnp.asarray(goal))
    grid = np.linspace(-20, 20, 200_001)
    for k in range(len(x)):
        best = ((grid - x[k]) ** 2 + (grid * np.sin(grid) - goal[k]) ** 2).min()
        found = (float(end[k]) - x[k]) ** 2 + (float(output[k]) - goal[k]) ** 2
        assert found <= best + 1e-4 * (1 + best), (x[k], goal[k])


def test_a_check_that_fails():
    class Lazy(Scalar):
        """Leaves the number where it is."""

        def project(self, inputs, output, weight=1.0):
            del output, weight
            return inputs, self.forward(*inputs)

    with pytest.raises(AssertionError):
        check(Lazy(elementary("tanh").function), "float32")


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
    np.testing.assert_allclose(move, want, rtol=1e-4, atol=5e-4 * size)  # a slope has digits, too
    np.testing.assert_allclose(back, want_back, rtol=1e-4, atol=5e-4 * size)


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
    (asked,) = jax.vjp(elementary("sqrt").soft(0.25), jnp.array([4.0, 0.0, 0.0]))[1](goal)
    np.testing.assert_allclose(asked[0], 0.5)
    assert asked[1] == 0
    assert bool(jnp.isfinite(asked).all())
    rule = Scalar(Function("a", "a", lambda x, c: c * x))
    np.testing.assert_array_equal(jax.vjp(rule.soft(0.0), goal, goal)[1](goal)[1], 0)


def test_functions_are_compared_by_their_keys():
    assert elementary("tanh") == elementary("tanh")
    assert hash(elementary("tanh")) == hash(elementary("tanh"))
    assert elementary("tanh") != elementary("exp")
    assert elementary("integer_pow", y=2) != elementary("integer_pow", y=3)


def test_unknown_functions():
    with pytest.raises(InputError, match="add"):
        elementary("add")


# --- Division of two numbers that both move ---


@pytest.mark.parametrize("size", [1e-3, 1e-6])
def test_tiny_residuals_survive_float32_divide(size):
    rng = np.random.default_rng(0)
    x, y = 10 * rng.normal(size=(2, 200)).astype(np.float32)
    y = np.where(np.abs(y) < 1, np.float32(3), y)
    dx, dy, dz = size * rng.normal(size=(3, 200)).astype(np.float32)
    z = x.astype(np.float64) / y
    (mx, my), mz = Divide().displace((x, y), (dx, dy), z.astype(np.float32), dz, 3.0)
    with jax.enable_x64(True):
        wide = [np.asarray(v, np.float64) for v in (x, y, dx, dy, dz)]
        (tx, ty), tz = Divide().displace(tuple(wide[:2]), tuple(wide[2:4]), z, wide[4], 3.0)
    for got, want in ((mx, tx), (my, ty), (mz, tz)):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4 * size)


def test_the_divisor_stays_on_its_side():
    x, y = jnp.array([1.0, 1.0, -1.0, 5.0]), jnp.array([0.5, -0.5, 1e-3, -2.0])
    (_, end), z = Divide().project((x, y), jnp.array([-10.0, 10.0, 1e3, 1e4]), 10.0)
    assert bool((end * y > 0).all())
    assert bool(jnp.isfinite(z).all())
    # also where the shift has led across zero
    (_, move), _ = Divide().displace((x, y), (0 * x, -2 * y), x / y, 0 * x)
    assert bool(((-y + move) * y > 0).all())


def test_what_is_asked_divide():
    x, y = jnp.array([1.0, 2.0, 0.0, 1.0]), jnp.array([4.0, -0.5, 0.0, 1e-30])
    goal = jnp.array([2.0, 1.0, 0.0, 1e20])
    one, two = Divide().ask((x, y), x / y, goal, 0.0)
    np.testing.assert_allclose(one[:2], [0.5, -2.0])
    np.testing.assert_allclose(two[:2], [-0.125, -8.0])
    assert (one[2], two[2]) == (0, 0)
    assert bool(jnp.isfinite(one).all() & jnp.isfinite(two).all())


# --- Linear functions of whole arrays: against a dense solve, and against random points ---

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
def test_tiny_residuals_survive_float32_linear(size):
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


def test_functions_are_compared_by_their_keys_linear():
    one, other = (LinearMap(Function("a", "a", lambda x: x)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != LinearMap(Function("b", "a", lambda x: x))


# --- Smooth functions of whole arrays: their projection is local, so what is checked is what it promises ---


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
