"""Arithmetic shared by the rules: at least float32 inside, the caller's type outside."""

import jax
import jax.numpy as jnp


def wide(x: jax.typing.ArrayLike) -> jax.Array:
    """The array in float32 or wider."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def weight_like(weight: jax.typing.ArrayLike, output: jax.Array) -> jax.Array:
    """The weight in the type of ``output``; it broadcasts to the shape of ``output``."""
    return jnp.asarray(weight, output.dtype)
