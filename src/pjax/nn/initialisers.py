"""Initial values: functions of a key, a shape and a dtype.

Those of `jax.nn.initializers` have the same form and can be used in their place.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pjax.errors import InputError


def zeros(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:  # noqa: ARG001
    """All zeros.

    >>> zeros(jax.random.key(0), (2,)).tolist()
    [0.0, 0.0]
    """
    return jnp.zeros(shape, dtype)


def constant(value: float) -> Callable[..., jax.Array]:
    """One value everywhere.

    Args:
        value: the number.

    >>> constant(2.0)(jax.random.key(0), (2,)).tolist()
    [2.0, 2.0]
    """
    return jax.nn.initializers.constant(value)


def normal(scale: float = 1.0, fan_in: int | None = None) -> Callable[..., jax.Array]:
    """Normal with mean zero and variance ``scale / fan_in``.

    With ``scale=1`` a linear layer keeps the size of its inputs; with ``scale=2`` it does so together with
    the relu after it.

    Args:
        scale: the variance times `fan_in`.
        fan_in: how many inputs are summed for one output; by default the product of all axes but the last,
            which is right for the weights of `Linear` and `Conv2D`.

    >>> weights = normal(scale=2.0)(jax.random.key(0), (200, 300))
    >>> round(float(weights.std() * 200**0.5), 1)
    1.4
    """
    return _scaled("normal", jax.random.normal, scale, fan_in)


def uniform(scale: float = 1.0, fan_in: int | None = None) -> Callable[..., jax.Array]:
    """Uniform around zero with variance ``scale / fan_in``.

    Args:
        scale: the variance times `fan_in`.
        fan_in: how many inputs are summed for one output; by default the product of all axes but the last.

    >>> weights = uniform()(jax.random.key(0), (300, 200))
    >>> bool(abs(weights).max() <= (3 / 300) ** 0.5)
    True
    """
    reach = math.sqrt(3)
    draw = functools.partial(jax.random.uniform, minval=-reach, maxval=reach)
    return _scaled("uniform", draw, scale, fan_in)


def _scaled(
    name: str, draw: Callable[..., jax.Array], scale: float, fan_in: int | None
) -> Callable[..., jax.Array]:
    """Numbers of variance one, multiplied by the deviation that is asked for."""
    if not (isinstance(scale, int | float) and math.isfinite(scale) and scale >= 0):
        raise InputError(f"{name}: scale must be a finite number of at least 0, got {scale!r:.120}.")
    if fan_in is not None and fan_in < 1:
        raise InputError(f"{name}: fan_in must be at least 1, got {fan_in!r:.120}.")

    def initialise(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        inputs = math.prod(shape[:-1]) if fan_in is None else fan_in
        return draw(key, shape, dtype) * math.sqrt(scale / max(inputs, 1))

    return initialise
