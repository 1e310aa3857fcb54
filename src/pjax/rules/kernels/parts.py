"""What kernels are made of. Pallas takes long to import, and is, when there is a kernel to make."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def call(
    kernel: Callable[..., None],
    name: str,
    sizes: Sequence[int | jax.ShapeDtypeStruct],
    grid: tuple[int, ...],
    warps: int,
    **more: Any,
) -> Callable[..., Any]:
    """A function that runs a kernel, for results of some shapes, or in float32 and flat, of some sizes."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct((s,), jnp.float32) if isinstance(s, int) else s for s in sizes],
        grid=grid,
        name=name,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        **more,
    )


def program_id(axis: int = 0) -> jax.Array:
    """The number of a program along an axis of the grid."""
    from jax.experimental import pallas as pl

    return pl.program_id(axis)


def share(items: int, programs: int, add: Callable[[Any, Any], Any], total: Any) -> Any:
    """A total after one program has added its share of the items."""
    this = program_id()
    if programs == items:
        return add(this, total)
    return jax.lax.fori_loop(this * items // programs, (this + 1) * items // programs, add, total)


def numbers(size: int) -> jax.Array:
    """0, 1, 2, …"""
    return jnp.arange(size, dtype=jnp.int32)


def load(ref: Any, index: Any, where: jax.Array | None = None, other: float = 0.0) -> jax.Array:
    """Numbers of an array, all or some; another one elsewhere."""
    from jax.experimental.pallas import triton

    return triton.load(ref.at[index], mask=where, other=None if where is None else other)


def store(ref: Any, index: Any, values: jax.Array, where: jax.Array | None = None) -> None:
    """Write numbers to an array, or some of them."""
    from jax.experimental.pallas import triton

    triton.store(ref.at[index], values, mask=where)


def dot(x: jax.Array, y: jax.Array, transposed: bool = False) -> jax.Array:
    """The product of two matrices, in TF32."""
    from jax.experimental.pallas import triton

    return triton.dot(x, y, trans_a=transposed, allow_tf32=True)
