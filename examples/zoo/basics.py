"""Linear models, factorisations and multilayer perceptrons."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from jax.example_libraries import stax

from examples.zoo import data
from examples.zoo.registry import model


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """The mean over a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def dense(key: jax.Array, features: int, out: int) -> dict[str, jax.Array]:
    """The parameters of an affine map."""
    return {"w": jax.random.normal(key, (features, out)) / features**0.5, "b": jnp.zeros(out)}


# --- Linear ---


@model("Logistic regression", "JAX")
def logistic_regression(key: jax.Array) -> Any:
    params = {"w": jnp.zeros(8), "b": jnp.zeros(())}

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        logits = x @ params["w"] + params["b"]
        return optax.sigmoid_binary_cross_entropy(logits, y).mean()

    return params, loss, [(x, y.astype(x.dtype)) for x, y in data.clusters(key, classes=2)]


@model("Linear SVM (margin loss)", "JAX")
def linear_svm(key: jax.Array) -> Any:
    params = {"w": 0.1 * jax.random.normal(key, (8,)), "b": jnp.zeros(())}

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        margins = (2 * y - 1) * (x @ params["w"] + params["b"])
        return jnp.mean(jnp.maximum(0.0, 1.0 - margins)) + 0.01 * jnp.sum(params["w"] ** 2)

    return params, loss, data.clusters(key, classes=2)


@model("Kernel least squares", "JAX")
def kernel_least_squares(key: jax.Array) -> Any:
    anchor_key, data_key = jax.random.split(key)
    anchors = jax.random.uniform(anchor_key, (20, 2), minval=-1.0, maxval=1.0)

    def kernel(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.exp(-2.0 * jnp.sum((x - y) ** 2))

    gram = jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(anchors))

    def loss(weights: jax.Array, batch: Any) -> jax.Array:
        x, y = batch
        ridge = 1e-3 * weights @ gram(anchors) @ weights
        return jnp.mean((gram(x) @ weights - y[:, 0]) ** 2) + ridge

    return jnp.zeros(20), loss, data.curves(data_key)


@model("RBF network (learned centres)", "Equinox")
def rbf_network(key: jax.Array) -> Any:
    class Network(eqx.Module):
        centres: jax.Array
        log_widths: jax.Array
        out: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            centre_key, out_key = jax.random.split(key)
            self.centres = jax.random.normal(centre_key, (12, 2))
            self.log_widths = jnp.zeros(12)
            self.out = eqx.nn.Linear(12, 1, key=out_key)

        def __call__(self, x: jax.Array) -> jax.Array:
            distances = jnp.sum((x - self.centres) ** 2, axis=-1)
            return self.out(jnp.exp(-distances * jnp.exp(self.log_widths)))

    params, static = eqx.partition(Network(key), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    return params, loss, data.curves(key)


# --- Embeddings ---


def ratings(key: jax.Array, users: int = 10, items: int = 12, size: int = 40) -> list[Any]:
    """Who rated what, how, and whether the rating is known."""
    fixed = np.random.default_rng(0)
    taste, kind = fixed.normal(size=(users, 3)), fixed.normal(size=(items, 3))

    def make(rng: data.Generator) -> Any:
        user, item = rng.integers(users, size=size), rng.integers(items, size=size)
        known = rng.uniform(size=size) < 0.8
        return user, item, 3.0 + np.sum(taste[user] * kind[item], axis=-1), known

    return data.batches(key, make)


@model("Matrix factorisation with biases", "Flax linen")
def matrix_factorisation(key: jax.Array) -> Any:
    class Factors(linen.Module):
        @linen.compact
        def __call__(self, user: jax.Array, item: jax.Array) -> jax.Array:
            taste, kind = linen.Embed(10, 4)(user), linen.Embed(12, 4)(item)
            biases = linen.Embed(10, 1)(user) + linen.Embed(12, 1)(item)
            mean = self.param("mean", linen.initializers.zeros, ())
            return jnp.sum(taste * kind, axis=-1) + biases[:, 0] + mean

    module, found = Factors(), ratings(key)

    def loss(params: Any, batch: Any) -> jax.Array:
        user, item, rating, known = batch
        errors = optax.l2_loss(module.apply(params, user, item), rating)
        return jnp.sum(jnp.where(known, errors, 0.0)) / jnp.sum(known)

    return module.init(key, *found[0][:2]), loss, found


@model("Factorisation machine", "JAX")
def factorisation_machine(key: jax.Array) -> Any:
    factor_key, data_key = jax.random.split(key)
    params = {
        "bias": jnp.zeros(()),
        "linear": jnp.zeros(8),
        "factors": 0.3 * jax.random.normal(factor_key, (8, 4)),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        squares_of_sums = (x @ params["factors"]) ** 2
        sums_of_squares = x**2 @ params["factors"] ** 2
        pairs = 0.5 * jnp.sum(squares_of_sums - sums_of_squares, axis=-1)
        logits = params["bias"] + x @ params["linear"] + pairs
        return optax.sigmoid_binary_cross_entropy(logits, y).mean()

    return params, loss, [(x, y.astype(x.dtype)) for x, y in data.clusters(data_key, classes=2)]


@model("word2vec (negative sampling)", "JAX")
def word2vec(key: jax.Array) -> Any:
    in_key, out_key, data_key = jax.random.split(key, 3)
    params = {
        "word": 0.5 * jax.random.normal(in_key, (11, 6)),
        "context": 0.5 * jax.random.normal(out_key, (11, 6)),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        word, context, negative = batch
        vectors = params["word"][word]
        positive = jnp.sum(vectors * params["context"][context], axis=-1)
        negatives = jnp.einsum("nd,nkd->nk", vectors, params["context"][negative])
        return -jnp.mean(jax.nn.log_sigmoid(positive) + jnp.sum(jax.nn.log_sigmoid(-negatives), axis=-1))

    found, rng = [], data.generator(data_key)
    for tokens in data.sentences(data_key):
        word, context = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
        found.append((word, context, rng.integers(11, size=(len(word), 3), dtype=np.int32)))
    return params, loss, found


@model("DLRM", "Flax linen")
def dlrm(key: jax.Array) -> Any:
    class Recommender(linen.Module):
        @linen.compact
        def __call__(self, numbers: jax.Array, categories: jax.Array) -> jax.Array:
            bottom = linen.relu(linen.Dense(8)(linen.relu(linen.Dense(16)(numbers))))
            vectors = [linen.Embed(7, 8)(categories[:, i]) for i in range(3)]
            stacked = jnp.stack([bottom, *vectors], axis=1)
            products = jnp.einsum("nid,njd->nij", stacked, stacked)
            rows, columns = jnp.tril_indices(4, k=-1)
            x = jnp.concatenate([bottom, products[:, rows, columns]], axis=-1)
            return jax.nn.sigmoid(linen.Dense(1)(linen.relu(linen.Dense(16)(x))))[:, 0]

    module = Recommender()

    def make(rng: data.Generator) -> Any:
        numbers, categories = rng.normal(size=(24, 5)), rng.integers(7, size=(24, 3))
        clicks = numbers[:, 0] + (categories[:, 0] > 3) - (categories[:, 1] > 3) > 0
        return numbers, categories, clicks.astype(numbers.dtype)

    def loss(params: Any, batch: Any) -> jax.Array:
        numbers, categories, clicks = batch
        p = jnp.clip(module.apply(params, numbers, categories), 1e-6, 1 - 1e-6)
        return -jnp.mean(clicks * jnp.log(p) + (1 - clicks) * jnp.log(1 - p))

    found = data.batches(key, make)
    return module.init(key, *found[0][:2]), loss, found


# --- Multilayer perceptrons ---


@model("XOR (tanh)", "JAX")
def xor(key: jax.Array) -> Any:
    first, second = jax.random.split(key)
    params = [dense(first, 2, 4), dense(second, 4, 1)]
    x = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = jnp.array([0.0, 1.0, 1.0, 0.0])

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        hidden = jnp.tanh(x @ params[0]["w"] + params[0]["b"])
        p = jax.nn.sigmoid(hidden @ params[1]["w"] + params[1]["b"])[:, 0]
        return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))

    return params, loss, [(x, y)]


@model("equinox.nn.MLP (relu)", "Equinox")
def equinox_mlp(key: jax.Array) -> Any:
    network = eqx.nn.MLP(8, 4, width_size=16, depth=2, key=key)
    params, static = eqx.partition(network, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return cross_entropy(jax.vmap(eqx.combine(params, static))(x), y)

    return params, loss, data.clusters(key)


@model("MLP with dropout", "Flax linen")
def dropout_mlp(key: jax.Array) -> Any:
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            x = linen.relu(linen.Dense(24)(x))
            x = linen.Dropout(0.3, deterministic=not train)(x)
            return linen.Dense(4)(x)

    module, found = Network(), data.clusters(key)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y, key = batch
        return cross_entropy(module.apply(params, x, train=True, rngs={"dropout": key}), y)

    params = jax.jit(functools.partial(module.init, train=False))(key, found[0][0])
    return params, loss, data.with_keys(key, found)


@model("Maxout, dropout", "Flax linen")
def maxout(key: jax.Array) -> Any:
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.Dropout(0.2, deterministic=False)(x)
            x = linen.Dense(30)(x).reshape(len(x), 10, 3).max(axis=-1)
            x = linen.Dropout(0.5, deterministic=False)(x)
            return linen.Dense(4)(x)

    module, found = Network(), data.clusters(key)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y, key = batch
        return cross_entropy(module.apply(params, x, rngs={"dropout": key}), y)

    params = jax.jit(module.init)({"params": key, "dropout": key}, found[0][0])
    return params, loss, data.with_keys(key, found)


@model("LeNet-300-100, weight decay", "JAX")
def lenet_300_100(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    params = [dense(keys[0], 64, 30), dense(keys[1], 30, 10), dense(keys[2], 10, 4)]

    def forward(params: Any, x: jax.Array) -> jax.Array:
        x = x.reshape(len(x), -1)
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        labels = jax.nn.one_hot(y, 4)
        decay = 0.5 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
        return -jnp.sum(labels * jax.nn.log_softmax(forward(params, x))) / len(x) + 1e-4 * decay

    return params, loss, data.pictures(key)


@model("JAX MNIST MLP (stax, LogSoftmax)", "JAX")
def stax_mlp(key: jax.Array) -> Any:
    init, apply = stax.serial(
        stax.Dense(32), stax.Relu, stax.Dense(32), stax.Relu, stax.Dense(4), stax.LogSoftmax
    )
    _, params = init(key, (-1, 64))

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return -jnp.mean(jnp.sum(apply(params, x.reshape(len(x), -1)) * jax.nn.one_hot(y, 4), axis=1))

    return params, loss, data.pictures(key)


@model("JAX MNIST MLP from scratch (tanh)", "JAX")
def scratch_mlp(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    sizes = [64, 24, 24, 4]
    params = [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]

    def predict(params: Any, inputs: jax.Array) -> jax.Array:
        activations = inputs
        for w, b in params[:-1]:
            activations = jnp.tanh(jnp.dot(activations, w) + b)
        w, b = params[-1]
        logits = jnp.dot(activations, w) + b
        return logits - jax.scipy.special.logsumexp(logits, axis=1, keepdims=True)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return -jnp.mean(jnp.sum(predict(params, x.reshape(len(x), -1)) * jax.nn.one_hot(y, 4), axis=1))

    return params, loss, data.pictures(key)


@model("NNX basics MLP (BatchNorm, gelu)", "Flax NNX", has_aux=True)
def nnx_mlp(key: jax.Array) -> Any:
    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(2, 16, rngs=rngs)
            self.norm = nnx.BatchNorm(16, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.second = nnx.Linear(16, 1, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.gelu(self.dropout(self.norm(self.first(x))))
            return self.second(x)

    graph, params, rest = nnx.split(Network(nnx.Rngs(key)), nnx.Param, ...)

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        network = nnx.merge(graph, params, rest, copy=True)
        error = jnp.mean((network(x) - y) ** 2)
        return error, nnx.state(network, nnx.BatchStat)

    return params, loss, data.curves(key)


@model("BinaryNet (straight-through sign)", "JAX")
def binary_net(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    params = [dense(keys[0], 8, 24), dense(keys[1], 24, 24), dense(keys[2], 24, 4)]

    def binarise(x: jax.Array) -> jax.Array:
        clipped = jnp.clip(x, -1.0, 1.0)
        return clipped + jax.lax.stop_gradient(jnp.where(x >= 0, 1.0, -1.0) - clipped)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for layer in params[:-1]:
            scale = layer["w"].shape[0] ** -0.5
            x = binarise(scale * x @ binarise(layer["w"]) + layer["b"])
        return cross_entropy(x @ params[-1]["w"] + params[-1]["b"], y)

    return params, loss, data.clusters(key)


@model("Autoencoder (relu, last sigmoid)", "Flax linen")
def autoencoder(key: jax.Array) -> Any:
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            code = linen.Dense(4)(linen.relu(linen.Dense(24)(x)))
            return linen.sigmoid(linen.Dense(64)(linen.relu(linen.Dense(24)(code))))

    module = Network()
    found = [1 / (1 + np.exp(-2 * x.reshape(len(x), -1))) for x, _ in data.pictures(key)]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(module.apply(params, x) - x))

    return module.init(key, found[0]), loss, found


@model("DeepSets", "Equinox")
def deep_sets(key: jax.Array) -> Any:
    each_key, all_key, data_key = jax.random.split(key, 3)
    networks = eqx.nn.MLP(3, 8, 16, 1, key=each_key), eqx.nn.MLP(8, 1, 16, 1, key=all_key)
    params, static = eqx.partition(networks, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        each, whole = eqx.combine(params, static)
        predicted = jax.vmap(lambda points: whole(jnp.sum(jax.vmap(each)(points), axis=0)))(x)
        return jnp.mean(optax.huber_loss(predicted[:, 0], y))

    def make(rng: data.Generator) -> Any:
        x = rng.normal(size=(16, 6, 3))
        return x, x[..., 0].max(axis=1)

    return params, loss, data.batches(data_key, make)


@model("Siamese network (contrastive loss)", "Equinox")
def siamese(key: jax.Array) -> Any:
    network = eqx.nn.MLP(8, 4, 16, 1, activation=jax.nn.leaky_relu, key=key)
    params, static = eqx.partition(network, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        left, right, same = batch
        embed = jax.vmap(eqx.combine(params, static))
        distance = jnp.sqrt(jnp.sum((embed(left) - embed(right)) ** 2, axis=-1) + 1e-6)
        return jnp.mean(jnp.where(same, distance**2, jnp.maximum(1.0 - distance, 0.0) ** 2))

    found = data.clusters(key, classes=3)
    return params, loss, [(x, x[::-1], y == y[::-1]) for x, y in found]


@model("Highway network", "Flax linen")
def highway(key: jax.Array) -> Any:
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.Dense(12)(x)
            for _ in range(3):
                gate = linen.sigmoid(linen.Dense(12, bias_init=linen.initializers.constant(-1.0))(x))
                x = gate * linen.elu(linen.Dense(12)(x)) + (1.0 - gate) * x
            return linen.Dense(4)(x)

    module, found = Network(), data.clusters(key)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return cross_entropy(module.apply(params, x), y)

    return module.init(key, found[0][0]), loss, found


@model("Mixture density network", "JAX")
def mixture_density(key: jax.Array) -> Any:
    keys = jax.random.split(key, 2)
    params = [dense(keys[0], 2, 16), dense(keys[1], 16, 9)]

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        hidden = jnp.tanh(x @ params[0]["w"] + params[0]["b"])
        logits, means, raw = jnp.split(hidden @ params[1]["w"] + params[1]["b"], 3, axis=-1)
        scales = jax.nn.softplus(raw) + 1e-2
        densities = jax.scipy.stats.norm.logpdf(y, means, scales)
        return -jnp.mean(jax.nn.logsumexp(jax.nn.log_softmax(logits) + densities, axis=-1))

    return params, loss, data.curves(key)


@model("Self-normalising network (selu, quantile loss)", "Equinox")
def self_normalising(key: jax.Array) -> Any:
    network = eqx.nn.MLP(2, 3, 16, 2, activation=jax.nn.selu, key=key)
    params, static = eqx.partition(network, eqx.is_inexact_array)
    levels = jnp.array([0.1, 0.5, 0.9])

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        errors = y - jax.vmap(eqx.combine(params, static))(x)
        return jnp.mean(jnp.maximum(levels * errors, (levels - 1.0) * errors))

    return params, loss, data.curves(key)
