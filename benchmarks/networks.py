"""The networks of `python -m benchmarks beside_adam`, in plain Flax, as one writes them for gradients."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

HE = nn.initializers.he_normal()


class Layer(nn.Module):
    """One layer of the residual MLP, as the body of a scan over layers."""

    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        y = nn.relu(nn.LayerNorm(dtype=self.dtype)(x))
        return x + nn.Dense(self.width, dtype=self.dtype)(y), None


class ResidualMLP(nn.Module):
    """``depth`` equal residual layers between an input and an output layer."""

    depth: int = 128
    width: int = 128
    classes: int = 10
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:  # noqa: ARG002 - the same in both
        layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
        x = nn.Dense(self.width, dtype=self.dtype)(x.reshape(len(x), -1))
        x, _ = layers(self.width, self.dtype)(x, None)
        return nn.Dense(self.classes, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))


class VGG(nn.Module):
    """Convolutions, each followed by a maximum over 2 × 2 pixels, and two dense layers."""

    channels: tuple[int, ...] = (64, 128, 256)
    hidden: int = 512
    classes: int = 10
    dropout: float = 0.3
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for channels in self.channels:
            x = nn.relu(nn.Conv(channels, (3, 3), kernel_init=HE, dtype=self.dtype)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(self.hidden, kernel_init=HE, dtype=self.dtype)(x.reshape(len(x), -1)))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.classes, dtype=self.dtype)(x)


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, and a projection beside them where the shape changes."""

    channels: int
    stride: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        def convolution(channels: int, size: int, stride: int, x: jax.Array) -> jax.Array:
            x = nn.Conv(
                channels, (size, size), (stride, stride), use_bias=False, kernel_init=HE, dtype=self.dtype
            )(x)
            return nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=self.dtype)(x)

        y = nn.relu(convolution(self.channels, 3, self.stride, x))
        y = convolution(self.channels, 3, 1, y)
        if x.shape != y.shape:
            x = convolution(self.channels, 1, self.stride, x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """ResNet-18 for pictures of 32 × 32 pixels: a first convolution of 3 × 3, and no pooling after it."""

    channels: tuple[int, ...] = (64, 128, 256, 512)
    blocks: int = 2
    classes: int = 10
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Conv(self.channels[0], (3, 3), use_bias=False, kernel_init=HE, dtype=self.dtype)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=self.dtype)(x))
        for stage, channels in enumerate(self.channels):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = ResidualBlock(channels, stride, self.dtype)(x, train)
        return nn.Dense(self.classes, dtype=self.dtype)(x.mean(axis=(1, 2)))


class Attention(nn.Module):
    """Causal softmax attention with several heads."""

    heads: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        batch, length, width = x.shape
        start = nn.initializers.normal(0.02)
        parts = nn.Dense(3 * width, use_bias=False, kernel_init=start, dtype=self.dtype)(x)
        query, key, value = jnp.split(parts.reshape(batch, length, self.heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
        past = jnp.tril(jnp.ones((length, length), bool))
        weights = nn.softmax(jnp.where(past, scores, -1e9), axis=-1)
        weights = nn.Dropout(self.dropout, deterministic=not train)(weights)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, width)
        return nn.Dense(width, use_bias=False, kernel_init=start, dtype=self.dtype)(y)


class GPT(nn.Module):
    """A transformer that predicts the next character, with layer norms before its parts."""

    characters: int
    context: int = 256
    depth: int = 6
    heads: int = 6
    width: int = 384
    dropout: float = 0.2
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        start = nn.initializers.normal(0.02)
        drop = nn.Dropout(self.dropout, deterministic=not train)
        embedding = nn.Embed(self.characters, self.width, embedding_init=start, dtype=self.dtype)
        places = self.param("places", start, (self.context, self.width))
        x = drop(embedding(x) + places[: x.shape[1]].astype(self.dtype))
        for _ in range(self.depth):
            y = nn.LayerNorm(dtype=self.dtype)(x)
            x = x + drop(Attention(self.heads, self.dropout, self.dtype)(y, train))
            y = nn.LayerNorm(dtype=self.dtype)(x)
            y = nn.gelu(nn.Dense(4 * self.width, kernel_init=start, dtype=self.dtype)(y))
            x = x + drop(nn.Dense(self.width, kernel_init=start, dtype=self.dtype)(y))
        return embedding.attend(nn.LayerNorm(dtype=self.dtype)(x))
