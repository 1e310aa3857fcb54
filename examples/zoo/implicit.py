"""Networks defined by equations: differential equations, fixed points, sorting, energies."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from examples.zoo import data
from examples.zoo.basics import cross_entropy, dense
from examples.zoo.registry import model


@model("Neural ODE (fixed steps)", "Equinox", learning_rate=3e-3)
def neural_ode(key: jax.Array) -> Any:
    scale_key, data_key = jax.random.split(key)
    field = eqx.nn.MLP(2, 2, 16, 2, activation=jax.nn.softplus, final_activation=jnp.tanh, key=scale_key)
    params, static = eqx.partition(field, eqx.is_inexact_array)

    def trajectory(field: Any, start: jax.Array, steps: int = 8, dt: float = 0.2) -> jax.Array:
        def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            k1 = field(y)
            k2 = field(y + 0.5 * dt * k1)
            k3 = field(y + 0.5 * dt * k2)
            k4 = field(y + dt * k3)
            y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        return jax.lax.scan(step, start, None, length=steps)[1]

    def loss(params: Any, batch: Any) -> jax.Array:
        start, path = batch
        field = eqx.combine(params, static)
        return jnp.mean((jax.vmap(lambda y: trajectory(field, y))(start) - path) ** 2)

    turn = np.array([[-0.1, 1.3], [-1.0, -0.1]], np.float32)
    right = jax.jit(jax.vmap(lambda y: trajectory(lambda y: jnp.tanh(turn @ y), y)))

    def make(rng: data.Generator) -> Any:
        start = rng.uniform(-0.6, 1.0, size=(8, 2)).astype(np.float32)
        return start, np.asarray(right(start))

    return params, loss, data.batches(data_key, make)


@model("Deep equilibrium network (unrolled)", "Flax linen")
def equilibrium(key: jax.Array) -> Any:
    class Cell(linen.Module):
        @linen.compact
        def __call__(self, z: jax.Array, x: jax.Array) -> jax.Array:
            inside = linen.Dense(12, kernel_init=linen.initializers.normal(0.1))(z)
            return linen.tanh(inside + linen.Dense(12)(x))

    cell = Cell()
    found = data.clusters(key)
    cell_key, out_key = jax.random.split(key)
    params = {
        "cell": jax.jit(cell.init)(cell_key, jnp.zeros((1, 12)), found[0][0][:1]),
        "out": dense(out_key, 12, 4),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        start = jnp.zeros((len(x), 12))
        z = jax.lax.fori_loop(0, 10, lambda _, z: cell.apply(params["cell"], z, x), start)
        return cross_entropy(z @ params["out"]["w"] + params["out"]["b"], y)

    return params, loss, found


@model("Physics-informed network (derivatives inside)", "JAX")
def physics_informed(key: jax.Array) -> Any:
    """u'' = -u on an interval, with u(0) = 0 and u'(0) = 1."""
    keys = jax.random.split(key, 3)
    params = [dense(keys[0], 1, 12), dense(keys[1], 12, 12), dense(keys[2], 12, 1)]

    def network(params: Any, t: jax.Array) -> jax.Array:
        x = t[None]
        for layer in params[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return (x @ params[-1]["w"] + params[-1]["b"])[0]

    velocity = jax.grad(network, argnums=1)
    acceleration = jax.grad(velocity, argnums=1)

    def loss(params: Any, times: jax.Array) -> jax.Array:
        zero = jnp.zeros(())
        residuals = jax.vmap(lambda t: acceleration(params, t) + network(params, t))(times)
        start = network(params, zero) ** 2 + (velocity(params, zero) - 1.0) ** 2
        return jnp.mean(residuals**2) + start

    return params, loss, data.batches(key, lambda rng: rng.uniform(0.0, 3.0, size=16))


@model("Sorting network (listwise ranking)", "Flax linen")
def ranking(key: jax.Array) -> Any:
    class Scores(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return linen.Dense(1)(linen.relu(linen.Dense(16)(x)))[..., 0]

    module = Scores()

    def make(rng: data.Generator) -> Any:
        x = rng.normal(size=(12, 6, 4))
        return x, x[..., 0] + 0.5 * x[..., 1] ** 2

    found = data.batches(key, make)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, relevance = batch
        scores = module.apply(params, x)
        ordered = jnp.take_along_axis(scores, jnp.argsort(-relevance, axis=-1), axis=-1)
        likelihood = ordered - jax.lax.cumlogsumexp(ordered, axis=1, reverse=True)
        spread = jnp.sort(scores, axis=-1)
        return -jnp.mean(jnp.sum(likelihood, axis=-1)) + 0.01 * jnp.mean(spread[:, -1] - spread[:, 0])

    return jax.jit(module.init)(key, found[0][0]), loss, found


@model("Hopfield network (energy by logsumexp)", "JAX")
def hopfield(key: jax.Array) -> Any:
    pattern_key, data_key = jax.random.split(key)
    params = jax.random.normal(pattern_key, (6, 8))

    def loss(patterns: jax.Array, batch: Any) -> jax.Array:
        x, _ = batch
        state = 0.5 * x
        for _ in range(2):
            state = jax.nn.softmax(2.0 * state @ patterns.T, axis=-1) @ patterns
        energy = -jax.nn.logsumexp(x @ patterns.T, axis=-1) + 0.5 * jnp.sum(patterns**2) / 6
        return jnp.mean(jnp.sum((state - x) ** 2, axis=-1)) + 0.01 * jnp.mean(energy)

    return params, loss, data.clusters(data_key)


@model("Gaussian process (Cholesky, marginal likelihood)", "JAX")
def gaussian_process(key: jax.Array) -> Any:
    params = {"length": jnp.zeros(()), "scale": jnp.zeros(()), "noise": jnp.array(-1.0)}
    x = np.linspace(-1.0, 1.0, 12, dtype=np.float32)

    def loss(params: Any, y: jax.Array) -> jax.Array:
        distances = (x[:, None] - x[None, :]) ** 2
        kernel = jnp.exp(params["scale"] - 0.5 * distances * jnp.exp(-2 * params["length"]))
        lower = jnp.linalg.cholesky(kernel + (jnp.exp(params["noise"]) + 1e-4) * jnp.eye(12))
        solved = jax.scipy.linalg.solve_triangular(lower, y.T, lower=True)
        return 0.5 * jnp.mean(jnp.sum(solved**2, axis=0)) + jnp.sum(jnp.log(jnp.diagonal(lower)))

    return params, loss, data.batches(key, lambda rng: np.sin(5.0 * x + rng.uniform(0.0, 6.0, size=(4, 1))))
