"""Convolutional networks without residual connections, and networks of points."""

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
from examples.zoo.basics import cross_entropy
from examples.zoo.registry import model


def classifier(module: linen.Module, key: jax.Array, found: list[Any]) -> Any:
    """A linen module of pictures alone, with the mean cross-entropy."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return cross_entropy(module.apply({"params": params}, x), y)

    return jax.jit(module.init)(key, found[0][0])["params"], loss, found


@model("Flax MNIST CNN (linen)", "Flax linen")
def flax_cnn(key: jax.Array) -> Any:
    class CNN(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.Conv(features=6, kernel_size=(3, 3))(x)
            x = linen.relu(x)
            x = linen.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
            x = linen.Conv(features=8, kernel_size=(3, 3))(x)
            x = linen.relu(x)
            x = linen.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
            x = x.reshape((x.shape[0], -1))
            x = linen.relu(linen.Dense(features=24)(x))
            return linen.Dense(features=4)(x)

    return classifier(CNN(), key, data.pictures(key))


@model("Flax MNIST CNN (NNX, BatchNorm, Dropout)", "Flax NNX", has_aux=True)
def nnx_cnn(key: jax.Array) -> Any:
    class CNN(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.conv1 = nnx.Conv(1, 6, kernel_size=(3, 3), rngs=rngs)
            self.batch_norm1 = nnx.BatchNorm(6, rngs=rngs)
            self.dropout1 = nnx.Dropout(rate=0.025, rngs=rngs)
            self.conv2 = nnx.Conv(6, 8, kernel_size=(3, 3), rngs=rngs)
            self.batch_norm2 = nnx.BatchNorm(8, rngs=rngs)
            self.linear1 = nnx.Linear(32, 16, rngs=rngs)
            self.dropout2 = nnx.Dropout(rate=0.025, rngs=rngs)
            self.linear2 = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.relu(self.batch_norm1(self.dropout1(self.conv1(x))))
            x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
            x = nnx.relu(self.batch_norm2(self.conv2(x)))
            x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
            x = nnx.relu(self.dropout2(self.linear1(x.reshape(x.shape[0], -1))))
            return self.linear2(x)

    graph, params, rest = nnx.split(CNN(nnx.Rngs(key)), nnx.Param, ...)

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        network = nnx.merge(graph, params, rest, copy=True)
        logits = network(x)
        return cross_entropy(logits, y), (logits, nnx.state(network, nnx.BatchStat))

    return params, loss, data.pictures(key)


@model("Equinox MNIST CNN", "Equinox")
def equinox_cnn(key: jax.Array) -> Any:
    class CNN(eqx.Module):
        layers: list[Any]

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 4)
            self.layers = [
                eqx.nn.Conv2d(1, 3, kernel_size=4, key=keys[0]),
                eqx.nn.MaxPool2d(kernel_size=2),
                jax.nn.relu,
                jnp.ravel,
                eqx.nn.Linear(48, 24, key=keys[1]),
                jax.nn.sigmoid,
                eqx.nn.Linear(24, 16, key=keys[2]),
                jax.nn.relu,
                eqx.nn.Linear(16, 4, key=keys[3]),
                jax.nn.log_softmax,
            ]

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = layer(x)
            return x

    params, static = eqx.partition(CNN(key), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        predicted = jax.vmap(eqx.combine(params, static))(x.transpose(0, 3, 1, 2))
        return -jnp.mean(jnp.take_along_axis(predicted, jnp.expand_dims(y, 1), axis=1))

    return params, loss, data.pictures(key)


@model("LeNet-5 (tanh)", "Flax linen")
def lenet5(key: jax.Array) -> Any:
    class LeNet(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.tanh(linen.Conv(6, (5, 5))(x))
            x = linen.avg_pool(x, (2, 2), strides=(2, 2))
            x = linen.tanh(linen.Conv(8, (3, 3), padding="VALID")(x))
            x = linen.avg_pool(x, (2, 2), strides=(2, 2))
            x = linen.tanh(linen.Dense(12)(x.reshape(len(x), -1)))
            x = linen.tanh(linen.Dense(10)(x))
            return linen.Dense(4)(x)

    return classifier(LeNet(), key, data.pictures(key, side=12))


@model("VGG-11, dropout", "Flax linen")
def vgg11(key: jax.Array) -> Any:
    class VGG(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            for features in (4, "pool", 8, "pool", 8, 8, "pool", 12, 12, 12, 12):
                if isinstance(features, str):
                    x = linen.max_pool(x, (2, 2), strides=(2, 2))
                else:
                    x = linen.relu(linen.Conv(features, (3, 3))(x))
            x = x.reshape(len(x), -1)
            for _ in range(2):
                x = linen.Dropout(0.2, deterministic=not train)(linen.relu(linen.Dense(24)(x)))
            return linen.Dense(4)(x)

    module, found = VGG(), data.pictures(key, channels=3)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y, key = batch
        return cross_entropy(module.apply({"params": params}, x, train=True, rngs={"dropout": key}), y)

    params = jax.jit(functools.partial(module.init, train=False))(key, found[0][0])["params"]
    return params, loss, data.with_keys(key, found)


@model("SqueezeNet", "Equinox")
def squeezenet(key: jax.Array) -> Any:
    class Fire(eqx.Module):
        squeeze: eqx.nn.Conv2d
        narrow: eqx.nn.Conv2d
        wide: eqx.nn.Conv2d

        def __init__(self, inputs: int, squeezed: int, expanded: int, key: jax.Array) -> None:
            keys = jax.random.split(key, 3)
            self.squeeze = eqx.nn.Conv2d(inputs, squeezed, 1, key=keys[0])
            self.narrow = eqx.nn.Conv2d(squeezed, expanded, 1, key=keys[1])
            self.wide = eqx.nn.Conv2d(squeezed, expanded, 3, padding=1, key=keys[2])

        def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
            x = jax.nn.relu(self.squeeze(x))
            return jnp.concatenate([jax.nn.relu(self.narrow(x)), jax.nn.relu(self.wide(x))])

    keys = jax.random.split(key, 5)
    network = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            Fire(8, 4, 8, keys[1]),
            Fire(16, 4, 8, keys[2]),
            eqx.nn.MaxPool2d(2, 2),
            Fire(16, 6, 12, keys[3]),
            eqx.nn.Conv2d(24, 4, 1, key=keys[4]),
            eqx.nn.AdaptiveAvgPool2d(1),
            eqx.nn.Lambda(jnp.ravel),
        ]
    )
    params, static = eqx.partition(network, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return cross_entropy(jax.vmap(eqx.combine(params, static))(x.transpose(0, 3, 1, 2)), y)

    return params, loss, data.pictures(key, channels=3)


@model("JAX DP-SGD CNN (stax)", "JAX")
def stax_cnn(key: jax.Array) -> Any:
    init, apply = stax.serial(
        stax.Conv(6, (4, 4), padding="SAME", strides=(2, 2)),
        stax.Relu,
        stax.MaxPool((2, 2), (1, 1)),
        stax.Conv(8, (2, 2), padding="VALID", strides=(1, 1)),
        stax.Relu,
        stax.MaxPool((2, 2), (1, 1)),
        stax.Flatten,
        stax.Dense(16),
        stax.Relu,
        stax.Dense(4),
    )
    _, params = init(key, (-1, 8, 8, 1))

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        logits = jax.nn.log_softmax(apply(params, x))
        return -jnp.mean(jnp.sum(logits * jax.nn.one_hot(y, 4), axis=1))

    return params, loss, data.pictures(key)


@model("Hypernetwork CNN", "Flax linen")
def hypernetwork(key: jax.Array) -> Any:
    class Hyper(linen.Module):
        """A small network makes the kernels of each layer from a learned vector of that layer."""

        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            layers = self.param("layers", linen.initializers.normal(1.0), (2, 4))
            hidden = linen.relu(linen.Dense(16)(layers))
            kernels = linen.Dense(3 * 3 * 6 * 6, kernel_init=linen.initializers.normal(0.05))(hidden)
            x = linen.Conv(6, (1, 1))(x)
            for kernel in kernels.reshape(2, 3, 3, 6, 6):
                x = jax.lax.conv_general_dilated(
                    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                x = linen.relu(x)
            return linen.Dense(4)(x.mean(axis=(1, 2)))

    return classifier(Hyper(), key, data.pictures(key))


@model("TCN (weight norm)", "Flax linen")
def tcn(key: jax.Array) -> Any:
    class TCN(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for i, features in enumerate((8, 8)):
                left = x
                for _ in range(2):
                    conv = linen.Conv(features, (3,), kernel_dilation=(2**i,), padding="CAUSAL")
                    left = linen.relu(linen.WeightNorm(conv)(left))
                x = linen.relu(left + linen.Conv(features, (1,))(x))
            return linen.Dense(3)(x[:, -1])

    return classifier(TCN(), key, data.signals(key))


@model(
    "PointNet, BatchNorm, training",
    "Flax linen",
    has_aux=True,
    cosine=0.97,
    reason="the gradient of a maximum looks for numbers equal to it, which some programs round differently",
)
def pointnet(key: jax.Array) -> Any:
    class PointNet(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            for features in (8, 16):
                x = linen.BatchNorm(use_running_average=not train)(linen.Dense(features)(x))
                x = linen.relu(x)
            x = x.max(axis=1)
            x = linen.relu(linen.BatchNorm(use_running_average=not train)(linen.Dense(12)(x)))
            return linen.Dense(3)(x)

    module = PointNet()

    def make(rng: data.Generator) -> Any:
        y = rng.integers(3, size=12)
        stretch = 1.0 + 2.0 * np.eye(3)[y][:, None]
        return stretch * rng.normal(size=(12, 15, 3)), y

    found = data.batches(key, make)
    variables = jax.jit(functools.partial(module.init, train=False))(key, found[0][0])

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        stored = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, changed = module.apply(stored, x, train=True, mutable=["batch_stats"])
        return cross_entropy(logits, y), changed["batch_stats"]

    return variables["params"], loss, found


# --- Pictures to pictures ---


def segments(key: jax.Array) -> list[Any]:
    """Noisy pictures, and which of their pixels belong to a square."""

    def make(rng: data.Generator) -> Any:
        corners = rng.integers(5, size=(6, 2, 1, 1))
        rows, columns = np.arange(8)[:, None], np.arange(8)[None, :]
        in_rows = (rows >= corners[:, 0]) & (rows < corners[:, 0] + 4)
        inside = in_rows & (columns >= corners[:, 1]) & (columns < corners[:, 1] + 4)
        mask = inside.astype(np.float32)[..., None]
        return mask + 0.5 * rng.normal(size=mask.shape), mask

    return data.batches(key, make)


class UNet(linen.Module):
    """Two levels; `up` doubles the sides of a picture."""

    transposed: bool

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def block(x: jax.Array, features: int) -> jax.Array:
            return linen.relu(linen.Conv(features, (3, 3))(linen.relu(linen.Conv(features, (3, 3))(x))))

        first = block(x, 4)
        second = block(linen.max_pool(first, (2, 2), strides=(2, 2)), 8)
        x = block(linen.max_pool(second, (2, 2), strides=(2, 2)), 12)
        for skip in (second, first):
            features = skip.shape[-1]
            if self.transposed:
                x = linen.ConvTranspose(features, (2, 2), strides=(2, 2))(x)
            else:
                x = jax.image.resize(x, (*skip.shape[:3], x.shape[-1]), method="bilinear")
            x = block(jnp.concatenate([skip, x], axis=-1), features)
        return linen.Conv(1, (1, 1))(x)


def unet(key: jax.Array, transposed: bool) -> Any:
    """A network that finds the squares, with the mean cross-entropy of pixels."""
    module, found = UNet(transposed), segments(key)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, mask = batch
        return optax.sigmoid_binary_cross_entropy(module.apply(params, x), mask).mean()

    return jax.jit(module.init)(key, found[0][0]), loss, found


@model("U-Net (bilinear resize)", "Flax linen")
def unet_resize(key: jax.Array) -> Any:
    return unet(key, transposed=False)


@model("U-Net (transposed convolutions)", "Flax linen")
def unet_transposed(key: jax.Array) -> Any:
    return unet(key, transposed=True)


@model("Capsule network (routing by agreement)", "JAX")
def capsules(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    params = {
        "conv": 0.2 * jax.random.normal(keys[0], (3, 3, 1, 8)),
        "primary": 0.2 * jax.random.normal(keys[1], (3, 3, 8, 8)),
        "route": 0.3 * jax.random.normal(keys[2], (32, 4, 4, 4)),
    }

    def squash(s: jax.Array) -> jax.Array:
        squared = jnp.sum(s**2, axis=-1, keepdims=True)
        return squared / (1.0 + squared) * s / jnp.sqrt(squared + 1e-6)

    def conv(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)

    def capsules_of_classes(params: Any, x: jax.Array) -> jax.Array:
        x = conv(jax.nn.relu(conv(x, params["conv"], 1)), params["primary"], 2)
        primary = squash(x.reshape(len(x), 32, 4))
        votes = jnp.einsum("nid,ijde->nije", primary, params["route"])
        held, logits = jax.lax.stop_gradient(votes), jnp.zeros(votes.shape[:3])
        for _ in range(2):
            outputs = squash(jnp.einsum("nij,nije->nje", jax.nn.softmax(logits, axis=2), held))
            logits = logits + jnp.einsum("nije,nje->nij", held, outputs)
        return squash(jnp.einsum("nij,nije->nje", jax.nn.softmax(logits, axis=2), votes))

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        lengths = jnp.sqrt(jnp.sum(capsules_of_classes(params, x) ** 2, axis=-1) + 1e-6)
        present = jax.nn.one_hot(y, 4)
        right = present * jnp.maximum(0.0, 0.9 - lengths) ** 2
        wrong = 0.5 * (1.0 - present) * jnp.maximum(0.0, lengths - 0.1) ** 2
        return jnp.mean(jnp.sum(right + wrong, axis=-1))

    return params, loss, data.pictures(key)
