"""Functions whose derivative users state, by `jax.custom_vjp` and the like: soft sweeps answer by it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.ode import odeint

import pjax
from pjax import optim
from pjax.graph import read

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)
LABELS = jnp.arange(8) % 3
PARAMS = {"w": jnp.asarray(RNG.normal(size=(4, 3)) / 2, jnp.float32), "b": jnp.full(3, 0.1)}
SWEEP = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))

pytestmark = pytest.mark.usefixtures("quick_compilation")


def loss_of(z):
    return optax.softmax_cross_entropy_with_integer_labels(z, LABELS).mean()


@jax.custom_vjp
def rounded(x):
    return jnp.round(4 * x) / 4


rounded.defvjp(lambda x: (rounded(x), None), lambda _, g: (g,))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def reversed_by(x, factor):  # noqa: ARG001
    return x


reversed_by.defvjp(lambda x, _: (x, None), lambda factor, _, g: (-factor * g,))


@jax.custom_vjp
def reversed_by_array(x, factor):  # noqa: ARG001 - only the derivative reads it
    return x


reversed_by_array.defvjp(
    lambda x, factor: (x, factor), lambda factor, g: (-factor * g, jnp.zeros_like(factor))
)


@jax.custom_jvp
def spike(x):
    return (x > 0).astype(x.dtype)


spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2))


@jax.custom_vjp
def called_back(x):
    return jax.pure_callback(lambda x: np.square(np.asarray(x)), x, x)


called_back.defvjp(lambda x: (called_back(x), x), lambda x, g: (2 * x * g,))


@jax.custom_gradient
def floor(x):
    return jnp.floor(x), lambda g: 2 * g


@jax.custom_vjp
def product_and_sign(x, y):
    return x * y, x > 0


product_and_sign.defvjp(
    lambda x, y: (product_and_sign(x, y), (x, y)), lambda xy, g: (3 * g[0] * xy[1], g[0] * xy[0])
)


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.02),))


@jax.custom_vjp
def halves(x):
    return x[:4], x[4:]


def _by_the_length_of_both(_, goals):
    goals = jnp.concatenate(goals)
    return (goals / jnp.linalg.norm(goals),)


halves.defvjp(lambda x: (halves(x), None), _by_the_length_of_both)


@jax.custom_jvp
def turned(x):
    return jnp.exp(1j * x)


turned.defjvp(lambda primals, tangents: (turned(*primals), 2j * turned(*primals) * tangents[0]))


@jax.custom_vjp
def steep(x):  # the rule calls the function itself
    return jax.nn.sigmoid(x)


def _steep(x):
    y = steep(x)
    return y, y


steep.defvjp(_steep, lambda y, g: (2 * g * y * (1 - y),))


@jax.custom_vjp
def whole_loss(z):
    return loss_of(z)


whole_loss.defvjp(
    lambda z: (whole_loss(z), z), lambda z, g: (g * (jax.nn.softmax(z) - jax.nn.one_hot(LABELS, 3)) / 4,)
)


def spiking_network(p):
    def step(v, x):
        v = 0.9 * v + x @ p["w"] + p["b"]
        s = spike(v - 1)
        return v - s, s

    return loss_of(jax.lax.scan(step, jnp.zeros((8, 3)), jnp.stack([X] * 5))[1].mean(0))


def adjoint(p):
    a = p["w"][:3] @ p["w"][:3].T
    return loss_of(odeint(lambda y, _: -y @ a, X @ p["w"], jnp.array([0.0, 1.0]))[1] + p["b"])


FUNCTIONS = {
    "straight through": lambda p: loss_of(X @ rounded(p["w"]) + p["b"]),
    "of every row": lambda p: loss_of(jax.vmap(rounded)(X @ p["w"]) + p["b"]),
    "within jit": lambda p: loss_of(jax.jit(rounded)(X @ p["w"]) + p["b"]),
    "within checkpoint": lambda p: loss_of(jax.checkpoint(lambda w: rounded(X @ w))(p["w"]) + p["b"]),
    "reversed": lambda p: loss_of(reversed_by(X @ p["w"], 0.5) + p["b"]),
    "reversed by an array": lambda p: loss_of(reversed_by_array(X @ p["w"], jnp.array(0.5)) + p["b"]),
    "surrogate": lambda p: loss_of(spike(X @ p["w"]) * p["b"]),
    "spiking network": spiking_network,
    "callback": lambda p: loss_of(called_back(X @ p["w"]) + p["b"]),
    "custom_gradient": lambda p: loss_of(floor(X @ p["w"]) + p["b"]),
    "two results": lambda p: loss_of(product_and_sign(X @ p["w"], p["b"] + jnp.zeros((8, 3)))[0]),
    "clipped": lambda p: loss_of(clipped(X @ p["w"]) + p["b"]),
    "by the length of two results": lambda p: loss_of(jnp.concatenate(halves(X @ p["w"])) + p["b"]),
    "clipped in a loop": lambda p: loss_of(
        jax.lax.scan(lambda h, x: (clipped(jnp.tanh(h + x @ p["w"])), None), p["b"], X)[0] + jnp.zeros((8, 3))
    ),
    "complex result": lambda p: loss_of(jnp.real(turned(X @ p["w"])) + p["b"]),
    "one operand twice": lambda p: loss_of(product_and_sign(X @ p["w"], X @ p["w"])[0] + p["b"]),
    "rule that calls it": lambda p: loss_of(steep(X @ p["w"]) + p["b"]),
    "loss": lambda p: whole_loss(X @ p["w"] + p["b"]),
    "part of a loss": lambda p: 0.3 * whole_loss(X @ p["w"] + p["b"]) + 0.1 * (p["w"] ** 2).sum(),
    "after losses": lambda p: rounded(loss_of(X @ p["w"] + p["b"])),
    "adjoint of an ODE": adjoint,
}


def moved(fn, params=PARAMS, update=SWEEP.update):
    after, _, loss = update(fn, params, SWEEP.init(params))
    return jax.tree.map(jnp.subtract, params, after), loss


def check(fn, found):
    moves, loss = found
    value, slopes = jax.value_and_grad(fn)(PARAMS)
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    for name, slope in slopes.items():
        np.testing.assert_allclose(moves[name], slope, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_sweeps_answer_by_the_derivative_that_users_state(fn):
    check(fn, moved(fn))


def test_inside_jit_too():
    fn = FUNCTIONS["spiking network"]
    check(fn, jax.jit(lambda params: moved(fn, params))(PARAMS))


def test_another_derivative_is_another_program():
    for factor in (0.5, 2.0, 0.5):

        def fn(p, factor=factor):
            return loss_of(reversed_by(X @ p["w"], factor) + p["b"])

        check(fn, moved(fn))


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit])
def test_what_a_derivative_captures_counts(wrap):
    def capturing(x):
        product = jax.custom_vjp(wrap(lambda w: x @ w))
        product.defvjp(lambda w: (product(w), None), wrap(lambda _, g: (3 * x.T @ g,)))
        return lambda p: loss_of(product(p["w"]) + p["b"])

    for x in (X, 2 * X):
        check(capturing(x), moved(capturing(x)))


def test_what_a_derivative_captures_inside_jit_counts():
    def capturing(factor):
        scaled = jax.custom_vjp(lambda w: w)
        scaled.defvjp(lambda w: (w, None), lambda _, g: (factor * g,))
        return lambda p: loss_of(X @ scaled(p["w"]) + p["b"])

    @jax.jit
    def both(first, second):
        return moved(capturing(first)), moved(capturing(second))

    for factors in ((1.0, 3.0), (2.0, 4.0)):
        for factor, found in zip(factors, both(*factors), strict=True):
            check(capturing(factor), found)


def test_a_derivative_may_capture_a_key():
    def dropped(seed):
        key = jax.random.key(seed)
        drop = jax.custom_vjp(lambda z: z * jax.random.bernoulli(key, 0.5, z.shape))
        drop.defvjp(lambda z: (drop(z), None), lambda _, g: (g * jax.random.bernoulli(key, 0.5, g.shape),))
        return lambda p: loss_of(drop(X @ p["w"]) + p["b"])

    for seed in (0, 1):
        check(dropped(seed), moved(dropped(seed)))


def test_equal_closures_share_one_program(programs):
    for _ in range(3):
        moved(lambda p: loss_of(reversed_by(X @ p["w"], 0.5) + rounded(p["b"])))
    assert len(programs) == 1


def test_methods_that_project_look_inside():
    """The graph of a function does not depend on what somebody says of its derivative."""
    solver = optim.DouglasRachford(steps_per_update=5)
    stated, _ = solver.update(lambda p: loss_of(X @ reversed_by(p["w"], 0.5) + p["b"]), PARAMS)
    plain, _ = solver.update(lambda p: loss_of(X @ p["w"] + p["b"]), PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), stated, plain)


def test_the_node_has_the_name_of_the_function():
    graph = read.build(read.read(FUNCTIONS["surrogate"], PARAMS), sweeps=True)
    assert "spike" in [node.op for node in graph.nodes]


def test_functions_of_jax_are_what_they_compute():
    def relu(p):
        return loss_of(jax.nn.relu(X @ p["w"]) + p["b"])

    graph = read.build(read.read(relu, PARAMS), sweeps=True)
    assert "sum_relu" in [node.op for node in graph.nodes]


@jax.custom_jvp
def root(x):  # by Heron
    return jax.lax.while_loop(lambda y: jnp.any(jnp.abs(y * y - x) > 1e-5), lambda y: (y + x / y) / 2, 1 + x)


root.defjvp(lambda primals, tangents: (root(*primals), tangents[0] / (2 * root(*primals))))

OPAQUE = {
    "frexp": (lambda x: jnp.frexp(x)[0], 0.7),
    "ldexp": (lambda x: jnp.ldexp(x, 2), 6.0),
    "exp1": (jax.scipy.special.exp1, 0.15),
    "expi": (jax.scipy.special.expi, 2.5),
    "zeta": (lambda x: jax.scipy.special.zeta(2.0, x), 0.8),
    "while": (root, 1.3),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_functions_of_bits_and_of_unknown_loops_are_known_by_their_derivative(name):
    fn, goal = OPAQUE[name]
    start = jnp.array([1.4, 1.6])
    moved, _, _ = SWEEP.update(lambda x: fn(x).mean(), start, SWEEP.init(start))
    np.testing.assert_allclose(start - moved, jax.grad(lambda x: fn(x).mean())(start), rtol=1e-5)

    def asked(x):
        return pjax.squared_error(fn(x)[:, None], jnp.full((2, 1), goal))

    solution = pjax.solve(asked, start, optim.CyclicProjections(), max_steps=500, tolerance=1e-4)
    assert solution.converged
    np.testing.assert_allclose(fn(solution.params), goal, atol=1e-3)


def test_functions_of_few_bits_are_known_by_their_derivative_too():
    def fn(x):
        return jax.scipy.special.exp1(x.astype(jnp.bfloat16)).astype(jnp.float32).mean()

    start = jnp.array([1.4, 1.6])
    moved, loss = optim.AlternatingProjections(steps_per_update=3).update(fn, start)
    assert fn(moved) < loss
    moved, _, _ = SWEEP.update(fn, start, SWEEP.init(start))
    np.testing.assert_allclose(start - moved, jax.grad(fn)(start), rtol=1e-2)


def test_whole_numbers_that_a_function_with_a_derivative_returns_are_held():
    sign = jax.custom_vjp(lambda x: (x > 0).astype(int))
    sign.defvjp(lambda x: (sign(x), None), lambda _, g: (jnp.ones(g.shape),))

    def fn(p):
        return loss_of(X @ p["w"] * sign(p["b"]) + p["b"])

    check(fn, moved(fn))


def test_streams_answer_by_it_too():
    def fn(p, batch):
        x, labels = batch
        x, _ = jax.lax.scan(lambda x, w: (x + rounded(jnp.tanh(x @ w)), None), x, p["layers"])
        return optax.softmax_cross_entropy_with_integer_labels(x @ p["out"], labels).mean()

    params = {"layers": jnp.stack([jnp.eye(4) / 2] * 3), "out": PARAMS["w"]}
    batch = (X, LABELS)
    stream = optim.Streamed(SWEEP, stages=3, micro_batches=2, flush=True)
    after, _, _ = stream.update(fn, params, stream.init(fn, params, batch=batch), batch=batch)
    slopes = jax.grad(fn)(params, batch)
    jax.tree.map(lambda a, p, g: np.testing.assert_allclose(p - a, g, atol=1e-5), after, params, slopes)
