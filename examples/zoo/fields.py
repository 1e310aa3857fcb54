"""Networks of coordinates, and operators between functions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from examples.zoo import data
from examples.zoo.basics import dense
from examples.zoo.registry import model


@model("SIREN", "Flax linen", learning_rate=1e-3)
def siren(key: jax.Array) -> Any:
    class Siren(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            frequency = 10.0
            for layer in range(3):
                bound = 1.0 / x.shape[-1] if layer == 0 else (6.0 / x.shape[-1]) ** 0.5 / frequency
                uniform = jax.nn.initializers.uniform(2 * bound)
                x = linen.Dense(16, kernel_init=lambda *a, u=uniform, b=bound: u(*a) - b)(x)
                x = jnp.sin(frequency * x)
            return linen.Dense(1)(x)

    module, found = Siren(), data.curves(key)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return jnp.mean((module.apply(params, x) - y) ** 2)

    return jax.jit(module.init)(key, found[0][0]), loss, found


@model("Instant-NGP hash grid", "JAX")
def instant_ngp(key: jax.Array) -> Any:
    keys = jax.random.split(key, 4)
    entries, levels = 32, (4, 6, 9)
    params = {
        "tables": 0.1 * jax.random.normal(keys[0], (len(levels), entries, 2)),
        "hidden": dense(keys[1], 2 * len(levels), 16),
        "out": dense(keys[2], 16, 1),
    }

    def encode(table: jax.Array, level: int, x: jax.Array) -> jax.Array:
        scaled = (x + 1) / 2 * level
        corner = jnp.floor(scaled)
        part = scaled - corner
        total = jnp.zeros((len(x), 2))
        for shift in ((0, 0), (0, 1), (1, 0), (1, 1)):
            place = (corner + jnp.array(shift)).astype(jnp.uint32)
            index = (place[:, 0] ^ (place[:, 1] * jnp.uint32(2654435761))) % entries
            weight = jnp.prod(jnp.where(jnp.array(shift) == 1, part, 1 - part), axis=-1, keepdims=True)
            total = total + weight * table[index]
        return total

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        codes = [encode(table, level, x) for table, level in zip(params["tables"], levels, strict=True)]
        hidden = jax.nn.relu(jnp.concatenate(codes, axis=-1) @ params["hidden"]["w"] + params["hidden"]["b"])
        return jnp.mean((hidden @ params["out"]["w"] + params["out"]["b"] - y) ** 2)

    return params, loss, data.curves(keys[3])


@model("NeRF (volume rendering)", "Flax NNX")
def nerf(key: jax.Array) -> Any:
    class Field(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(12, 16, rngs=rngs)
            self.second = nnx.Linear(16, 16, rngs=rngs)
            self.out = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, points: jax.Array) -> jax.Array:
            angles = jnp.concatenate([points, 2.0 * points], axis=-1)
            x = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
            return self.out(nnx.relu(self.second(nnx.relu(self.first(x)))))

    graph, params = nnx.split(Field(nnx.Rngs(key)))
    depths = jnp.linspace(0.5, 2.0, 8)

    def render(field: Field, origins: jax.Array, directions: jax.Array) -> jax.Array:
        raw = field(origins[:, None] + depths[:, None] * directions[:, None])
        density, colour = nnx.relu(raw[..., 0] + 0.5), nnx.sigmoid(raw[..., 1:])
        opacity = 1.0 - jnp.exp(-density * (depths[1] - depths[0]))
        passed = jnp.cumprod(1.0 - opacity + 1e-6, axis=-1)
        passed = jnp.concatenate([jnp.ones_like(passed[:, :1]), passed[:, :-1]], axis=-1)
        return jnp.sum((opacity * passed)[..., None] * colour, axis=1)

    def loss(params: Any, batch: Any) -> jax.Array:
        origins, directions, pixels = batch
        return jnp.mean((render(nnx.merge(graph, params), origins, directions) - pixels) ** 2)

    def make(rng: data.Generator) -> Any:
        origins, directions = 0.3 * rng.normal(size=(24, 3)), rng.normal(size=(24, 3))
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        return origins, directions, 1 / (1 + np.exp(-2.0 * directions))

    return params, loss, data.batches(key, make)


def functions(key: jax.Array, size: int = 12, points: int = 16) -> list[Any]:
    """Functions on a grid, and their derivatives."""
    grid = np.arange(points) / points * 2 * np.pi

    def make(rng: data.Generator) -> Any:
        weights = rng.normal(size=(size, 2, 3, 1))
        frequency = np.arange(1, 4)[:, None]
        sines, cosines = np.sin(frequency * grid), np.cos(frequency * grid)
        u = np.sum(weights[:, 0] * sines + weights[:, 1] * cosines, axis=1)
        v = np.sum(frequency * (weights[:, 0] * cosines - weights[:, 1] * sines), axis=1)
        return u[..., None], v[..., None] / 3

    return data.batches(key, make)


@model("DeepONet (relu)", "Equinox")
def deeponet(key: jax.Array) -> Any:
    branch_key, trunk_key, data_key = jax.random.split(key, 3)
    networks = (
        eqx.nn.MLP(16, 8, 24, 1, key=branch_key),
        eqx.nn.MLP(1, 8, 24, 1, key=trunk_key),
        jnp.zeros(()),
    )
    params, static = eqx.partition(networks, eqx.is_inexact_array)
    grid = jnp.linspace(-1.0, 1.0, 16)[:, None]

    def loss(params: Any, batch: Any) -> jax.Array:
        u, v = batch
        branch, trunk, bias = eqx.combine(params, static)
        predicted = jax.vmap(branch)(u[..., 0]) @ jax.vmap(trunk)(grid).T + bias
        return jnp.mean((predicted - v[..., 0]) ** 2)

    return params, loss, functions(data_key)


@model("Fourier neural operator", "Equinox")
def fourier_operator(key: jax.Array) -> Any:
    modes, width = 5, 6

    class Spectral(eqx.Module):
        real: jax.Array
        imaginary: jax.Array

        def __init__(self, key: jax.Array) -> None:
            real_key, imaginary_key = jax.random.split(key)
            self.real = jax.random.normal(real_key, (width, width, modes)) / width
            self.imaginary = jax.random.normal(imaginary_key, (width, width, modes)) / width

        def __call__(self, x: jax.Array) -> jax.Array:
            spectrum = jnp.fft.rfft(x, axis=-1)
            weights = self.real + 1j * self.imaginary
            low = jnp.einsum("im,iom->om", spectrum[:, :modes], weights)
            full = jnp.zeros((width, spectrum.shape[-1]), low.dtype).at[:, :modes].set(low)
            return jnp.fft.irfft(full, n=x.shape[-1], axis=-1)

    class Operator(eqx.Module):
        lift: eqx.nn.Conv1d
        spectral: list[Spectral]
        local: list[eqx.nn.Conv1d]
        project: eqx.nn.Conv1d

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 6)
            self.lift = eqx.nn.Conv1d(1, width, 1, key=keys[0])
            self.spectral = [Spectral(keys[1]), Spectral(keys[2])]
            self.local = [eqx.nn.Conv1d(width, width, 1, key=k) for k in keys[3:5]]
            self.project = eqx.nn.Conv1d(width, 1, 1, key=keys[5])

        def __call__(self, u: jax.Array) -> jax.Array:
            x = self.lift(u)
            for spectral, local in zip(self.spectral, self.local, strict=True):
                x = jax.nn.gelu(spectral(x) + local(x))
            return self.project(x)

    params, static = eqx.partition(Operator(key), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        u, v = (one.swapaxes(1, 2) for one in batch)
        predicted = jax.vmap(eqx.combine(params, static))(u)
        norms = jnp.sqrt(jnp.sum((predicted - v) ** 2, axis=(1, 2)) + 1e-8)
        return jnp.mean(norms / jnp.sqrt(jnp.sum(v**2, axis=(1, 2))))

    return params, loss, functions(key)
