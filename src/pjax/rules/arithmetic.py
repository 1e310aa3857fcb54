"""Arithmetic shared by the rules: at least float32 inside, the caller's type outside."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

TINY = 1e-12


def wide(x: jax.typing.ArrayLike) -> jax.Array:
    """The array in float32 or wider."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def weight_like(weight: jax.typing.ArrayLike, output: jax.Array) -> jax.Array:
    """The weight in the type of ``output``; it broadcasts to the shape of ``output``."""
    return jnp.asarray(weight, output.dtype)


def rows(x: jax.Array) -> jax.Array:
    """The same array; on a GPU its last axis lies contiguously in memory.

    A chain of reductions over the last axis is then one kernel. The compiler chooses other orders where the
    array comes out of one that is wide in another axis.
    """

    def lie(x: jax.Array) -> jax.Array:
        return with_layout_constraint(x, Layout(tuple(range(x.ndim))))

    return jax.lax.platform_dependent(x, cuda=lie, default=lambda x: x)


def condensed(x: np.ndarray) -> int | np.ndarray:
    """An array of counts as a positive number, or without axes along which it does not change.

    >>> condensed(np.array([[3.0, 3.0], [2.0, 2.0]])).tolist(), condensed(np.full((4, 4), 2.0))
    ([[3.0], [2.0]], 2)
    """
    for axis in range(x.ndim):
        first = x.take([0], axis)
        if (x == first).all():
            x = first
    return int(x.reshape(())) if x.size == 1 and x.min() > 0 else x
