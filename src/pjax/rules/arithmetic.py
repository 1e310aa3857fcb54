"""Arithmetic shared by the rules: at least float32 inside, the caller's type outside."""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

TINY = 1e-12


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
    """JAX's default rules for types and shapes. A user's stricter settings are for the user's own code."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def wide(x: jax.typing.ArrayLike) -> jax.Array:
    """The array in float32 or wider."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def wide_reals(x: jax.typing.ArrayLike) -> jax.Array:
    """The same for real numbers; indices, choices and keys stay what they are."""
    x = jnp.asarray(x)
    return wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def weight_like(weight: jax.typing.ArrayLike, output: jax.Array) -> jax.Array:
    """The weight in the type of ``output``; it broadcasts to the shape of ``output``."""
    return jnp.asarray(weight, output.dtype)


def first(chosen: jax.Array) -> jax.Array:
    """Only the first chosen entry along the last axis, without an argmax, which is a kernel of its own."""
    place = jax.lax.broadcasted_iota(jnp.int32, chosen.shape, chosen.ndim - 1)
    return place == jnp.min(jnp.where(chosen, place, chosen.shape[-1]), axis=-1, keepdims=True)


def condensed(x: np.ndarray) -> int | np.ndarray:
    """An array of counts with length one along axes where it is constant; one number if all are equal.

    If all counts are zero it stays an array: code that divides by counts treats zeros apart.

    >>> condensed(np.array([[3.0, 3.0], [2.0, 2.0]])).tolist(), condensed(np.full((4, 4), 2.0))
    ([[3.0], [2.0]], 2)
    """
    for axis in range(x.ndim):
        first = x.take(range(min(x.shape[axis], 1)), axis)  # of nothing, nothing
        if (x == first).all():
            x = first
    return int(x.reshape(())) if x.size == 1 and x.min() > 0 else x
