"""Transformers, and what is related to them."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

from examples.zoo import data
from examples.zoo.basics import cross_entropy
from examples.zoo.convolutional import classifier
from examples.zoo.registry import model

VOCABULARY = 11


def language(module: linen.Module, key: jax.Array) -> Any:
    """A linen module of tokens that says what comes next."""
    found = data.sentences(key, vocabulary=VOCABULARY)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        return cross_entropy(module.apply({"params": params}, tokens[:, :-1]), tokens[:, 1:])

    return jax.jit(module.init)(key, found[0][:, :-1])["params"], loss, found


@model("BERT classifier (Equinox)", "Equinox")
def bert(key: jax.Array) -> Any:
    class Layer(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        norm1: eqx.nn.LayerNorm
        mlp: eqx.nn.MLP
        norm2: eqx.nn.LayerNorm
        dropout: eqx.nn.Dropout

        def __init__(self, key: jax.Array) -> None:
            attention_key, mlp_key = jax.random.split(key)
            self.attention = eqx.nn.MultiheadAttention(2, 16, key=attention_key)
            self.norm1, self.norm2 = eqx.nn.LayerNorm(16), eqx.nn.LayerNorm(16)
            gelu = jax.tree_util.Partial(jax.nn.gelu, approximate=False)
            self.mlp = eqx.nn.MLP(16, 16, 32, 1, activation=gelu, key=mlp_key)
            self.dropout = eqx.nn.Dropout(0.1)

        def __call__(self, x: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
            first, second = jax.random.split(key)
            allowed = jnp.broadcast_to(mask, (len(x), len(x)))
            x = jax.vmap(self.norm1)(x + self.dropout(self.attention(x, x, x, allowed), key=first))
            return jax.vmap(self.norm2)(x + self.dropout(jax.vmap(self.mlp)(x), key=second))

    class Bert(eqx.Module):
        tokens: eqx.nn.Embedding
        places: eqx.nn.Embedding
        norm: eqx.nn.LayerNorm
        layers: list[Layer]
        pooler: eqx.nn.Linear
        out: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 6)
            self.tokens = eqx.nn.Embedding(VOCABULARY, 16, key=keys[0])
            self.places = eqx.nn.Embedding(8, 16, key=keys[1])
            self.norm = eqx.nn.LayerNorm(16)
            self.layers = [Layer(keys[2]), Layer(keys[3])]
            self.pooler = eqx.nn.Linear(16, 16, key=keys[4])
            self.out = eqx.nn.Linear(16, 3, key=keys[5])

        def __call__(self, tokens: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
            x = jax.vmap(self.norm)(jax.vmap(self.tokens)(tokens) + self.places.weight)
            for layer, one in zip(self.layers, jax.random.split(key, 2), strict=True):
                x = layer(x, mask, one)
            return self.out(jnp.tanh(self.pooler(x[0])))

    params, static = eqx.partition(Bert(key), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        tokens, mask, y, keys = batch
        return cross_entropy(jax.vmap(eqx.combine(params, static))(tokens, mask, keys), y)

    found = []
    for tokens in data.sentences(key, vocabulary=VOCABULARY):
        mask = np.arange(8) < 5 + np.arange(8)[:, None] % 4
        found.append((tokens, mask, tokens[:, 0] % 3, jax.random.split(key, len(tokens))))
    return params, loss, found


@model("Flax LM1B transformer", "Flax linen")
def lm1b(key: jax.Array) -> Any:
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            y = linen.LayerNorm()(x)
            x = x + linen.MultiHeadDotProductAttention(num_heads=2, use_bias=False)(y, mask=mask)
            y = linen.LayerNorm()(x)
            return x + linen.Dense(16)(linen.relu(linen.Dense(32)(y)))

    class Decoder(linen.Module):
        @linen.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            mask = linen.combine_masks(
                linen.make_attention_mask(tokens > 0, tokens > 0), linen.make_causal_mask(tokens)
            )
            embed = linen.Embed(VOCABULARY, 16, embedding_init=linen.initializers.normal(1.0))
            place = jnp.arange(tokens.shape[1])[:, None] * jnp.exp(-jnp.arange(8) * math.log(1e4) / 8)
            x = embed(tokens) + jnp.concatenate([jnp.sin(place), jnp.cos(place)], axis=-1)
            for _ in range(2):
                x = Block()(x, mask)
            return embed.attend(linen.LayerNorm()(x)) / math.sqrt(16)

    module, found = Decoder(), data.sentences(key, vocabulary=VOCABULARY)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits, targets = module.apply({"params": params}, tokens[:, :-1]), tokens[:, 1:]
        confidence, low = 0.9, 0.1 / (VOCABULARY - 1)
        soft = jax.nn.one_hot(targets, VOCABULARY) * (confidence - low) + low
        weights = jnp.where(targets > 0, 1, 0).astype(jnp.float32)
        losses = -jnp.sum(soft * linen.log_softmax(logits), axis=-1)
        return jnp.sum(losses * weights) / jnp.sum(weights)

    return jax.jit(module.init)(key, found[0][:, :-1])["params"], loss, found


def rotary(x: jax.Array) -> jax.Array:
    """Turn pairs of features (…, length, heads, features) by angles that grow along the sentence."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[-3])[:, None] * 100.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def causal_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Of arrays (batch, length, heads, features)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


class RMSNorm(linen.Module):
    """As in Llama."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", linen.initializers.ones, (x.shape[-1],))
        return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


class GatedBlock(linen.Module):
    """Grouped attention with turned pairs, then a gated perceptron."""

    activation: Any

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def heads(x: jax.Array, count: int) -> jax.Array:
            return linen.DenseGeneral((count, 4), use_bias=False)(x)

        y = RMSNorm()(x)
        query, key, value = rotary(heads(y, 4)), rotary(heads(y, 2)), heads(y, 2)
        key, value = (jnp.repeat(one, 2, axis=2) for one in (key, value))
        attended = causal_attention(query, key, value)
        x = x + linen.DenseGeneral(16, axis=(-2, -1), use_bias=False)(attended)
        y = RMSNorm()(x)
        gate = self.activation(linen.Dense(32, use_bias=False)(y))
        return x + linen.Dense(16, use_bias=False)(gate * linen.Dense(32, use_bias=False)(y))


@model("Llama", "Flax linen")
def llama(key: jax.Array) -> Any:
    class Llama(linen.Module):
        @linen.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = linen.Embed(VOCABULARY, 16)(tokens)
            for _ in range(2):
                x = GatedBlock(linen.silu)(x)
            return linen.Dense(VOCABULARY, use_bias=False)(RMSNorm()(x))

    return language(Llama(), key)


@model("Gemma", "Flax linen")
def gemma(key: jax.Array) -> Any:
    class Gemma(linen.Module):
        @linen.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            embed = linen.Embed(VOCABULARY, 16)
            x = embed(tokens) * math.sqrt(16)
            for _ in range(2):
                x = GatedBlock(linen.gelu)(x)
            logits = embed.attend(RMSNorm()(x))
            return 30.0 * jnp.tanh(logits / 30.0)

    return language(Gemma(), key)


@model("nanoGPT", "Flax linen")
def nanogpt(key: jax.Array) -> Any:
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            y = linen.Dense(48)(linen.LayerNorm(epsilon=1e-5)(x))
            query, key, value = (one.reshape(*x.shape[:2], 2, 8) for one in jnp.split(y, 3, axis=-1))
            x = x + linen.Dense(16)(causal_attention(query, key, value).reshape(x.shape))
            y = linen.Dense(64)(linen.LayerNorm(epsilon=1e-5)(x))
            return x + linen.Dense(16)(jax.nn.gelu(y))

    class GPT(linen.Module):
        @linen.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            embed = linen.Embed(VOCABULARY, 16)
            x = embed(tokens) + linen.Embed(8, 16)(jnp.arange(tokens.shape[1]))
            for _ in range(2):
                x = linen.remat(Block)()(x)
            return embed.attend(linen.LayerNorm(epsilon=1e-5)(x))

    return language(GPT(), key)


@model(
    "ViT",
    "Flax NNX",
    cosine=0.99,
    reason="the first token starts near zero, so that the norm's max(0, variance) is near its kink",
)
def vit(key: jax.Array) -> Any:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm1, self.norm2 = nnx.LayerNorm(16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(self.norm1(x))
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class ViT(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.patches = nnx.Conv(3, 16, kernel_size=(4, 4), strides=(4, 4), rngs=rngs)
            self.token = nnx.Param(jnp.zeros((1, 1, 16)))
            self.places = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, 5, 16)))
            self.first, self.second = Block(rngs), Block(rngs)
            self.norm = nnx.LayerNorm(16, rngs=rngs)
            self.out = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = self.patches(x).reshape(len(x), 4, 16)
            token = jnp.broadcast_to(self.token[...], (len(x), 1, 16))
            x = jnp.concatenate([token, x], axis=1) + self.places[...]
            return self.out(self.norm(self.second(self.first(x)))[:, 0])

    graph, params, rest = nnx.split(ViT(nnx.Rngs(key)), nnx.Param, ...)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return cross_entropy(nnx.merge(graph, params, rest, copy=True)(x), y)

    return params, loss, data.pictures(key, channels=3)


@model("MLP-Mixer", "Flax linen")
def mixer(key: jax.Array) -> Any:
    class Mlp(linen.Module):
        hidden: int

        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return linen.Dense(x.shape[-1])(linen.gelu(linen.Dense(self.hidden)(x)))

    class Mixer(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.Conv(12, (2, 2), strides=(2, 2))(x).reshape(len(x), -1, 12)
            for _ in range(2):
                x = x + Mlp(16)(linen.LayerNorm()(x).swapaxes(1, 2)).swapaxes(1, 2)
                x = x + Mlp(24)(linen.LayerNorm()(x))
            return linen.Dense(4)(linen.LayerNorm()(x).mean(axis=1))

    return classifier(Mixer(), key, data.pictures(key))


@model("Switch transformer (top-k experts)", "Flax linen")
def switch(key: jax.Array) -> Any:
    class Experts(linen.Module):
        """Each token goes to two of four perceptrons, with a loss that keeps them equally busy."""

        @linen.compact
        def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            p = jax.nn.softmax(linen.Dense(4, use_bias=False)(x), axis=-1)
            gates, chosen = jax.lax.top_k(p, 2)
            gates = gates / jnp.sum(gates, axis=-1, keepdims=True)
            up = self.param("up", linen.initializers.lecun_normal(batch_axis=0), (4, 16, 24))
            down = self.param("down", linen.initializers.lecun_normal(batch_axis=0), (4, 24, 16))
            every = jnp.einsum("bleh,ehd->bled", jax.nn.relu(jnp.einsum("bld,edh->bleh", x, up)), down)
            picked = jnp.take_along_axis(every, chosen[..., None], axis=2)
            busy = jnp.mean(jax.nn.one_hot(chosen[..., 0], 4), axis=(0, 1))
            return jnp.sum(gates[..., None] * picked, axis=2), 4 * jnp.sum(busy * jnp.mean(p, axis=(0, 1)))

    class Switch(linen.Module):
        @linen.compact
        def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = linen.Embed(VOCABULARY, 16)(tokens)
            mask = linen.make_causal_mask(tokens)
            x = x + linen.MultiHeadDotProductAttention(num_heads=2)(linen.LayerNorm()(x), mask=mask)
            routed, balance = Experts()(linen.LayerNorm()(x))
            return linen.Dense(VOCABULARY)(x + routed), balance

    module, found = Switch(), data.sentences(key, vocabulary=VOCABULARY)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits, balance = module.apply(params, tokens[:, :-1])
        return cross_entropy(logits, tokens[:, 1:]) + 0.01 * balance

    return jax.jit(module.init)(key, found[0][:, :-1]), loss, found


@model("CLIP (symmetric contrastive loss)", "Equinox")
def clip(key: jax.Array) -> Any:
    class Clip(eqx.Module):
        pictures: eqx.nn.MLP
        words: eqx.nn.Embedding
        text: eqx.nn.Linear
        temperature: jax.Array

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 3)
            self.pictures = eqx.nn.MLP(64, 8, 24, 1, activation=jax.nn.gelu, key=keys[0])
            self.words = eqx.nn.Embedding(12, 12, key=keys[1])
            self.text = eqx.nn.Linear(12, 8, key=keys[2])
            self.temperature = jnp.log(jnp.array(1 / 0.2))

        def __call__(self, x: jax.Array, words: jax.Array) -> jax.Array:
            pictures = jax.vmap(self.pictures)(x)
            texts = jax.vmap(lambda words: self.text(jnp.mean(jax.vmap(self.words)(words), axis=0)))(words)
            pictures /= jnp.linalg.norm(pictures, axis=-1, keepdims=True)
            texts /= jnp.linalg.norm(texts, axis=-1, keepdims=True)
            return jnp.exp(self.temperature) * pictures @ texts.T

    params, static = eqx.partition(Clip(key), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = eqx.combine(params, static)(*batch)
        same = jnp.arange(len(logits))
        return 0.5 * (cross_entropy(logits, same) + cross_entropy(logits.T, same))

    found = []
    for x, y in data.pictures(key, classes=12):
        found.append((x.reshape(len(x), -1), np.stack([y, (y * 5) % 12, (y + 1) % 12], axis=1)))
    return params, loss, found


@model("Transformer encoder (jax.nn.dot_product_attention)", "JAX")
def plain_transformer(key: jax.Array) -> Any:
    keys = iter(jax.random.split(key, 12))

    def matrix(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / shape[0] ** 0.5

    def layer() -> dict[str, jax.Array]:
        shapes = {"qkv": (16, 48), "out": (16, 16), "up": (16, 32), "down": (32, 16)}
        return {name: matrix(*shape) for name, shape in shapes.items()} | {"scale": jnp.ones((2, 16))}

    params = {"embed": matrix(VOCABULARY, 16), "layers": [layer(), layer()], "head": matrix(16, VOCABULARY)}
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])
    params = params | {"layers": stacked}

    def standardise(x: jax.Array, scale: jax.Array) -> jax.Array:
        return scale * jax.nn.standardize(x, axis=-1, epsilon=1e-6)

    @jax.checkpoint
    def block(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        qkv = standardise(x, layer["scale"][0]) @ layer["qkv"]
        query, key, value = (one.reshape(*x.shape[:2], 2, 8) for one in jnp.split(qkv, 3, axis=-1))
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + attended.reshape(x.shape) @ layer["out"]
        hidden = jax.nn.softplus(standardise(x, layer["scale"][1]) @ layer["up"])
        return x + hidden @ layer["down"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(block, params["embed"][tokens[:, :-1]], params["layers"])
        losses = optax.softmax_cross_entropy_with_integer_labels(x @ params["head"], tokens[:, 1:])
        return jnp.mean(losses)

    return params, loss, data.sentences(key, vocabulary=VOCABULARY)
