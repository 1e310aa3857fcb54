"""Models that make data: autoencoders with codes, flows, diffusion, discriminators."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

from examples.zoo import data
from examples.zoo.basics import dense
from examples.zoo.registry import model


@model("Flax VAE", "Flax linen", has_aux=True)
def vae(key: jax.Array) -> Any:
    class VAE(linen.Module):
        def setup(self) -> None:
            self.encoder, self.mean, self.log_variance = linen.Dense(24), linen.Dense(4), linen.Dense(4)
            self.hidden, self.out = linen.Dense(24), linen.Dense(64)

        def __call__(self, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            hidden = linen.relu(self.encoder(x))
            mean, log_variance = self.mean(hidden), self.log_variance(hidden)
            z = mean + jax.random.normal(key, mean.shape) * jnp.exp(0.5 * log_variance)
            return self.out(linen.relu(self.hidden(z))), mean, log_variance

    module = VAE()
    pixels = [((x.reshape(len(x), -1) > 0).astype(x.dtype),) for x, _ in data.pictures(key)]
    found = data.with_keys(key, pixels)

    def loss(params: Any, batch: Any) -> Any:
        x, key = batch
        logits, mean, log_variance = module.apply({"params": params}, x, key)
        entropy = jnp.sum(optax.sigmoid_binary_cross_entropy(logits, x), axis=-1).mean()
        divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), axis=-1).mean()
        return entropy + divergence, {"bce": entropy, "kld": divergence}

    return jax.jit(module.init)(key, found[0][0], key)["params"], loss, found


@model("VQ-VAE", "Equinox")
def vq_vae(key: jax.Array) -> Any:
    class VQVAE(eqx.Module):
        encoder: eqx.nn.MLP
        decoder: eqx.nn.MLP
        codes: jax.Array

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 3)
            self.encoder = eqx.nn.MLP(64, 8, 24, 1, key=keys[0])
            self.decoder = eqx.nn.MLP(8, 64, 24, 1, key=keys[1])
            self.codes = jax.random.normal(keys[2], (8, 2))

        def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            z = self.encoder(x).reshape(4, 2)
            distances = jnp.sum((z[:, None] - self.codes[None]) ** 2, axis=-1)
            nearest = self.codes[jnp.argmin(distances, axis=-1)]
            learned = jnp.mean((nearest - jax.lax.stop_gradient(z)) ** 2)
            committed = jnp.mean((z - jax.lax.stop_gradient(nearest)) ** 2)
            straight = z + jax.lax.stop_gradient(nearest - z)
            return self.decoder(straight.reshape(8)), learned + 0.25 * committed

    params, static = eqx.partition(VQVAE(key), eqx.is_inexact_array)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        decoded, codes = jax.vmap(eqx.combine(params, static))(x)
        return jnp.mean((decoded - x) ** 2) + jnp.mean(codes)

    return params, loss, [x.reshape(len(x), -1) for x, _ in data.pictures(key)]


@model("Diffusion MLP-Mixer (Equinox)", "Equinox")
def diffusion(key: jax.Array) -> Any:
    class Block(eqx.Module):
        patches: eqx.nn.MLP
        features: eqx.nn.MLP
        norm1: eqx.nn.LayerNorm
        norm2: eqx.nn.LayerNorm

        def __init__(self, key: jax.Array) -> None:
            first, second = jax.random.split(key)
            self.patches = eqx.nn.MLP(16, 16, 16, 1, key=first)
            self.features = eqx.nn.MLP(8, 8, 16, 1, key=second)
            self.norm1, self.norm2 = eqx.nn.LayerNorm((8, 16)), eqx.nn.LayerNorm((16, 8))

        def __call__(self, y: jax.Array) -> jax.Array:
            y = y + jax.vmap(self.patches)(self.norm1(y))
            y = y.T
            y = y + jax.vmap(self.features)(self.norm2(y))
            return y.T

    class Mixer(eqx.Module):
        inwards: eqx.nn.Conv2d
        outwards: eqx.nn.ConvTranspose2d
        blocks: list[Block]
        norm: eqx.nn.LayerNorm

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 4)
            self.inwards = eqx.nn.Conv2d(2, 8, 2, stride=2, key=keys[0])
            self.outwards = eqx.nn.ConvTranspose2d(8, 1, 2, stride=2, key=keys[1])
            self.blocks = [Block(keys[2]), Block(keys[3])]
            self.norm = eqx.nn.LayerNorm((8, 16))

        def __call__(self, t: jax.Array, y: jax.Array) -> jax.Array:
            y = self.inwards(jnp.concatenate([y, jnp.broadcast_to(t, (1, 8, 8))]))
            y = y.reshape(8, 16)
            for block in self.blocks:
                y = block(y)
            return self.outwards(self.norm(y).reshape(8, 4, 4))

    params, static = eqx.partition(Mixer(key), eqx.is_inexact_array)

    def one_loss(mixer: Mixer, x: jax.Array, t: jax.Array, key: jax.Array) -> jax.Array:
        mean, deviation = x * jnp.exp(-0.5 * t), jnp.sqrt(jnp.maximum(1 - jnp.exp(-t), 1e-5))
        noise = jax.random.normal(key, x.shape)
        return (1 - jnp.exp(-t)) * jnp.mean((mixer(t, mean + deviation * noise) + noise / deviation) ** 2)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, t, keys = batch
        mixer = eqx.combine(params, static)
        return jnp.mean(jax.vmap(lambda x, t, key: one_loss(mixer, x, t, key))(x, t, keys))

    found = []
    for x, _ in data.pictures(key):
        times = 0.1 + 3.0 * (np.arange(len(x), dtype=x.dtype) + 0.5) / len(x)
        found.append((x.transpose(0, 3, 1, 2), times, jax.random.split(key, len(x))))
    return params, loss, found


@model("DCGAN discriminator (Equinox)", "Equinox", has_aux=True)
def dcgan(key: jax.Array) -> Any:
    class Discriminator(eqx.Module):
        convs: list[eqx.nn.Conv2d]
        norm: eqx.nn.BatchNorm
        out: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 3)
            self.convs = [
                eqx.nn.Conv2d(1, 6, 4, stride=2, padding=1, use_bias=False, key=keys[0]),
                eqx.nn.Conv2d(6, 8, 4, stride=2, padding=1, use_bias=False, key=keys[1]),
            ]
            self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
            self.out = eqx.nn.Linear(32, 1, key=keys[2])

        def __call__(self, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
            x = jax.nn.leaky_relu(self.convs[0](x), 0.2)
            x, state = self.norm(self.convs[1](x), state)
            return self.out(jax.nn.leaky_relu(x, 0.2).ravel()), state

    network, state = eqx.nn.make_with_state(Discriminator)(key)
    params, static = eqx.partition(network, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> Any:
        x, real = batch
        discriminate = jax.vmap(
            eqx.combine(params, static), axis_name="batch", in_axes=(0, None), out_axes=(0, None)
        )
        logits, new = discriminate(x, state)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits[:, 0], real)), new

    found = []
    for x, y in data.pictures(key, classes=2):
        found.append((x.transpose(0, 3, 1, 2), y.astype(x.dtype)))
    return params, loss, found


def moons(key: jax.Array, size: int = 32) -> list[jax.Array]:
    """Points of the plane on two half circles."""

    def make(rng: data.Generator) -> Any:
        angles, side = rng.uniform(0, np.pi, size=size), np.arange(size) % 2
        x = np.stack([np.cos(angles) + side - 0.5, np.sin(angles) * (1 - 2 * side) + 0.5 * side], axis=1)
        return x + 0.05 * rng.normal(size=x.shape)

    return data.batches(key, make)


@model("RealNVP flow", "JAX")
def real_nvp(key: jax.Array) -> Any:
    keys = jax.random.split(key, 9)
    params = [
        {"hidden": dense(keys[2 * i], 1, 16), "out": jax.tree.map(jnp.zeros_like, dense(keys[0], 16, 2))}
        for i in range(4)
    ]

    def log_density(params: Any, x: jax.Array) -> jax.Array:
        """Of one point."""
        total = jnp.zeros(())
        for i, layer in enumerate(params):
            kept, changed = x[i % 2], x[1 - i % 2]
            hidden = jnp.tanh(kept[None] @ layer["hidden"]["w"] + layer["hidden"]["b"])
            scale, shift = hidden @ layer["out"]["w"] + layer["out"]["b"]
            scale = 2.0 * jnp.tanh(scale)
            changed = changed * jnp.exp(scale) + shift
            total = total + scale
            x = jnp.stack([kept, changed] if i % 2 == 0 else [changed, kept])
        return total + jnp.sum(jax.scipy.stats.norm.logpdf(x))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return -jnp.mean(jax.vmap(log_density, in_axes=(None, 0))(params, x))

    return params, loss, moons(keys[8])


@model(
    "MADE (masked autoregression)",
    "JAX",
    cosine=0.98,
    reason="units that see only black pixels are exactly at the kink of relu: biases start at zero",
)
def made(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    params = [dense(keys[0], 16, 32), dense(keys[1], 32, 16)]
    order, hidden_order = np.arange(16), np.arange(32) % 15
    masks = [
        (order[:, None] <= hidden_order[None, :]).astype(np.float32),
        (hidden_order[:, None] < order[None, :]).astype(np.float32),
    ]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ (params[0]["w"] * masks[0]) + params[0]["b"])
        logits = hidden @ (params[1]["w"] * masks[1]) + params[1]["b"]
        return jnp.mean(jnp.sum(optax.sigmoid_binary_cross_entropy(logits, x), axis=-1))

    found = data.clusters(keys[2], features=16)
    return params, loss, [(x > 0).astype(x.dtype) for x, _ in found]


@model("Score matching (denoising, sliced noise levels)", "Flax linen")
def score_matching(key: jax.Array) -> Any:
    class Score(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, sigma: jax.Array) -> jax.Array:
            x = jnp.concatenate([x, jnp.log(sigma)], axis=-1)
            for _ in range(2):
                x = linen.swish(linen.Dense(24)(x))
            return linen.Dense(2)(x) / sigma

    module = Score()

    def loss(params: Any, batch: Any) -> jax.Array:
        x, sigma, noise = batch
        score = module.apply(params, x + sigma * noise, sigma)
        return jnp.mean(jnp.sum((sigma * score + noise) ** 2, axis=-1))

    def noisy(rng: data.Generator) -> Any:
        sigma = np.exp(np.linspace(-2.0, 0.5, 32))[:, None]
        return sigma, rng.normal(size=(32, 2))

    found = [(x, *noise) for x, noise in zip(moons(key), data.batches(key, noisy), strict=True)]
    return jax.jit(module.init)(key, *found[0][:2]), loss, found
