"""The paper's networks as plain functions: `init(key, …)` makes parameters, `apply(params, x)` logits.

`relu(x @ weight + bias)` is all there is to a layer; pjax fuses the sum, the bias and the relu into one
node. With ``skip`` the outputs of all hidden layers are concatenated before the last linear map.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]


def _layer(key: jax.Array, shape: tuple[int, ...]) -> Params:
    """He-normal weights, zero biases."""
    inputs = math.prod(shape[:-1])
    return {
        "weight": jax.random.normal(key, shape) * math.sqrt(2 / inputs),
        "bias": jnp.zeros(shape[-1]),
    }


def _last(key: jax.Array, widths: Sequence[int], classes: int, skip: bool) -> Params:
    inputs = sum(widths) if skip else widths[-1]
    return {"weight": jax.random.normal(key, (inputs, classes)) * math.sqrt(1 / inputs)}


def init_mlp(
    key: jax.Array, inputs: int, widths: Sequence[int], classes: int, *, skip: bool = False
) -> Params:
    """Parameters of a multilayer perceptron."""
    *keys, last = jax.random.split(key, len(widths) + 1)
    shapes = zip([inputs, *widths], widths, strict=False)
    hidden = [_layer(k, shape) for k, shape in zip(keys, shapes, strict=True)]
    return {"hidden": hidden, "out": _last(last, widths, classes, skip)}


def apply_mlp(params: Params, x: jax.Array, *, skip: bool = False) -> jax.Array:
    """Logits of shape ``(batch, classes)`` from inputs of shape ``(batch, inputs)``."""
    outputs = []
    for layer in params["hidden"]:
        x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
        outputs.append(x)
    if skip:
        x = jnp.concatenate(outputs, axis=-1)
    return x @ params["out"]["weight"]


def init_cnn(
    key: jax.Array, channels: int, widths: Sequence[int], classes: int, *, skip: bool = False
) -> Params:
    """Parameters of a convolutional network with 3×3 kernels."""
    *keys, last = jax.random.split(key, len(widths) + 1)
    shapes = zip([channels, *widths], widths, strict=False)
    hidden = [_layer(k, (3, 3, *shape)) for k, shape in zip(keys, shapes, strict=True)]
    return {"hidden": hidden, "out": _last(last, widths, classes, skip)}


def apply_cnn(params: Params, x: jax.Array, *, skip: bool = False) -> jax.Array:
    """Logits of shape ``(batch, classes)`` from images of shape ``(batch, height, width, channels)``.

    Each layer is a convolution of stride 1 that keeps the size, bias and relu; features are its maxima over
    space, of all layers with ``skip``, else of the last.
    """
    features = []
    for layer in params["hidden"]:
        x = jax.lax.conv_general_dilated(
            x, layer["weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + layer["bias"])
        features.append(jnp.max(x, axis=(1, 2)))
    pooled = jnp.concatenate(features, axis=-1) if skip else features[-1]
    return pooled @ params["out"]["weight"]
