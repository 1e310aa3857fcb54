"""Convolutional networks with residual connections, and with the norms of today."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen

from examples.zoo import data
from examples.zoo.basics import cross_entropy
from examples.zoo.convolutional import classifier
from examples.zoo.registry import model


class ResNetBlock(linen.Module):
    """Two convolutions with norms, beside a shortcut."""

    features: int
    norm: Any
    stride: int = 1

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        y = linen.relu(self.norm()(linen.Conv(self.features, (3, 3), strides, use_bias=False)(x)))
        y = linen.Conv(self.features, (3, 3), use_bias=False)(y)
        y = self.norm(scale_init=linen.initializers.zeros_init())(y)
        if x.shape != y.shape:
            x = self.norm()(linen.Conv(self.features, (1, 1), strides, use_bias=False)(x))
        return linen.relu(x + y)


class ResNet18(linen.Module):
    """Four stages of two blocks."""

    @linen.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        norm = partial(linen.BatchNorm, use_running_average=not train, momentum=0.9)
        x = linen.relu(norm()(linen.Conv(4, (3, 3), use_bias=False)(x)))
        for stage, features in enumerate((4, 6, 8, 10)):
            for block in range(2):
                x = ResNetBlock(features, norm, 2 if stage > 0 and block == 0 else 1)(x)
        return linen.Dense(4)(x.mean(axis=(1, 2)))


KINK = (
    "blocks start as the identity, of values of which many are zero: these are at the kink of the next relu"
)


@model("ResNet-18, BatchNorm, stored averages", "Flax linen", cosine=0.75, reason=KINK)
def resnet18_stored(key: jax.Array) -> Any:
    module, found = ResNet18(), data.pictures(key, channels=3)
    variables = jax.jit(partial(module.init, train=False))(key, found[0][0])

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        stored = {"params": params, "batch_stats": variables["batch_stats"]}
        return cross_entropy(module.apply(stored, x, train=False), y)

    return variables["params"], loss, found


@model("ResNet-18, BatchNorm, training", "Flax linen", has_aux=True, cosine=0.9, reason=KINK)
def resnet18_training(key: jax.Array) -> Any:
    module, found = ResNet18(), data.pictures(key, channels=3)
    variables = jax.jit(partial(module.init, train=False))(key, found[0][0])

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        stored = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, changed = module.apply(stored, x, train=True, mutable=["batch_stats"])
        kernels = [p for p in jax.tree.leaves(params) if p.ndim > 1]
        penalty = 0.5 * 1e-4 * sum(jnp.sum(k**2) for k in kernels)
        return cross_entropy(logits, y) + penalty, (changed, logits)

    return variables["params"], loss, found


@model("Fixup ResNet-20 (no norm)", "Flax linen", learning_rate=1e-3)
def fixup(key: jax.Array) -> Any:
    class Block(linen.Module):
        features: int
        stride: int

        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            def bias(name: str) -> jax.Array:
                return self.param(name, linen.initializers.zeros, ())

            strides = (self.stride, self.stride)
            y = linen.Conv(self.features, (3, 3), strides, use_bias=False)(x + bias("bias1"))
            y = linen.relu(y + bias("bias2"))
            small = linen.initializers.normal(0.02)
            y = linen.Conv(self.features, (3, 3), use_bias=False, kernel_init=small)(y + bias("bias3"))
            y = y * self.param("scale", linen.initializers.ones, ()) + bias("bias4")
            if x.shape != y.shape:
                x = linen.avg_pool(x, (2, 2), strides=(2, 2))
                x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, self.features - x.shape[-1])))
            return linen.relu(x + y)

    class Fixup(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.relu(linen.Conv(4, (3, 3), use_bias=False)(x))
            for stage, features in enumerate((4, 6, 8)):
                for block in range(3):
                    x = Block(features, 2 if stage > 0 and block == 0 else 1)(x)
            return linen.Dense(4)(x.mean(axis=(1, 2)))

    return classifier(Fixup(), key, data.pictures(key, channels=3))


@model("IMPALA ResNet", "Flax linen")
def impala(key: jax.Array) -> Any:
    class Torso(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for features in (4, 8):
                x = linen.Conv(features, (3, 3))(x)
                x = linen.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
                for _ in range(2):
                    y = linen.Conv(features, (3, 3))(linen.relu(x))
                    x = x + linen.Conv(features, (3, 3))(linen.relu(y))
            x = linen.relu(linen.Dense(16)(linen.relu(x).reshape(len(x), -1)))
            return linen.Dense(4)(x)

    return classifier(Torso(), key, data.pictures(key, channels=3))


@model("MobileNetV1, BatchNorm, training", "Flax linen", has_aux=True)
def mobilenet(key: jax.Array) -> Any:
    class MobileNet(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            def normed(x: jax.Array) -> jax.Array:
                return linen.relu6(linen.BatchNorm(use_running_average=not train)(x))

            x = normed(linen.Conv(4, (3, 3), use_bias=False)(x))
            for features, stride in ((8, 1), (8, 2), (12, 1), (12, 2)):
                inputs = x.shape[-1]
                depthwise = linen.Conv(
                    inputs, (3, 3), (stride, stride), feature_group_count=inputs, use_bias=False
                )
                x = normed(linen.Conv(features, (1, 1), use_bias=False)(normed(depthwise(x))))
            return linen.Dense(4)(x.mean(axis=(1, 2)))

    module, found = MobileNet(), data.pictures(key, channels=3)
    variables = jax.jit(partial(module.init, train=False))(key, found[0][0])

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        stored = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, changed = module.apply(stored, x, train=True, mutable=["batch_stats"])
        accuracy = jnp.mean(jnp.argmax(logits, -1) == y)
        return cross_entropy(logits, y), {"batch_stats": changed, "accuracy": accuracy}

    return variables["params"], loss, found


@model("EfficientNet block (squeeze, silu)", "Flax linen")
def efficientnet(key: jax.Array) -> Any:
    class Inverted(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            features = x.shape[-1]
            y = linen.silu(linen.GroupNorm(2)(linen.Conv(2 * features, (1, 1))(x)))
            y = linen.Conv(2 * features, (3, 3), feature_group_count=2 * features)(y)
            y = linen.silu(linen.GroupNorm(2)(y))
            squeezed = linen.silu(linen.Dense(4)(y.mean(axis=(1, 2), keepdims=True)))
            y = y * linen.sigmoid(linen.Dense(2 * features)(squeezed))
            return x + linen.GroupNorm(2)(linen.Conv(features, (1, 1))(y))

    class EfficientNet(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.silu(linen.Conv(8, (3, 3), strides=(2, 2))(x))
            for _ in range(2):
                x = Inverted()(x)
            return linen.Dense(4)(x.mean(axis=(1, 2)))

    return classifier(EfficientNet(), key, data.pictures(key, channels=3))


@model("DenseNet (GroupNorm, label smoothing)", "Flax linen")
def densenet(key: jax.Array) -> Any:
    class DenseNet(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.Conv(4, (3, 3))(x)
            for _ in range(3):
                new = linen.Conv(4, (3, 3))(linen.relu(linen.GroupNorm(2)(x)))
                x = jnp.concatenate([x, new], axis=-1)
            return linen.Dense(4)(linen.relu(x).mean(axis=(1, 2)))

    module, found = DenseNet(), data.pictures(key, channels=3)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        labels = optax.smooth_labels(jax.nn.one_hot(y, 4), 0.1)
        return optax.softmax_cross_entropy(module.apply(params, x), labels).mean()

    return jax.jit(module.init)(key, found[0][0]), loss, found


@model("ConvNeXt", "Flax linen")
def convnext(key: jax.Array) -> Any:
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            features = x.shape[-1]
            y = linen.Conv(features, (7, 7), feature_group_count=features)(x)
            y = linen.Dense(4 * features)(linen.LayerNorm(epsilon=1e-6)(y))
            y = linen.Dense(features)(linen.gelu(y, approximate=False))
            return x + self.param("gamma", linen.initializers.constant(0.1), (features,)) * y

    class ConvNeXt(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.LayerNorm()(linen.Conv(6, (2, 2), strides=(2, 2))(x))
            x = Block()(Block()(x))
            x = linen.Conv(8, (2, 2), strides=(2, 2))(linen.LayerNorm()(x))
            return linen.Dense(4)(linen.LayerNorm()(Block()(x).mean(axis=(1, 2))))

    return classifier(ConvNeXt(), key, data.pictures(key, channels=3))
