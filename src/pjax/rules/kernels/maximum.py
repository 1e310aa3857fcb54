"""The projections of many maxima as a kernel for NVIDIA GPUs.

The compiler reads all numbers once in each round of the search for the level. A program of the kernel takes
those of several maxima to registers, and reads and writes them once.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pjax.devices import power_of_two
from pjax.rules.kernels.parts import call, load, numbers, program_id, store

FEWEST = 2**19  # numbers; fewer are not most of a step
SHORTEST = 64  # vectors; of shorter ones, the compiler makes one kernel

_MOST = 2**14  # numbers in one program
_TOGETHER = 16  # vectors, where they lie side by side


def fits(table: tuple[int, int, int], *arrays: jax.Array) -> bool:
    """Whether the kernel is for vectors in a table ``(rows, vector, columns)``, and for these arrays."""
    _, length, columns = table
    return (
        all(a.dtype == jnp.float32 for a in arrays)
        and FEWEST <= math.prod(table) < 2**31
        and length >= SHORTEST
        and power_of_two(length) * _together(columns) <= _MOST
        and math.ceil(columns / _together(columns)) < 2**16
    )


def displace(x: jax.Array, z: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The moves of vectors x, of axes ``(rows, vector, columns)``, and of what their maxima z should be.

    z and its weight w are of axes ``(rows, columns)``.
    """
    rows, length, columns = x.shape
    wide, together = power_of_two(length), _together(columns)

    def kernel(x_ref: Any, z_ref: Any, w_ref: Any, moves: Any, backs: Any) -> None:
        place = lax.broadcasted_iota(jnp.int32, (wide, together), 0)
        column = program_id(1) * together + numbers(together)
        exists = column < columns
        at = (program_id() * length + place) * columns + column[None, :]
        inside = (place < length) & exists[None, :]
        each = program_id() * columns + column

        x = load(x_ref, at, inside, -jnp.inf)
        z = load(z_ref, each, exists, 0.0)
        w = load(w_ref, each, exists, 1.0)
        # The largest of numbers and NaN is a number here.
        unknown = jnp.sum(jnp.where(x == x, 0.0, 1.0), axis=0) > 0
        top = jnp.where(unknown, jnp.nan, jnp.max(x, axis=0))
        up = z >= top

        def rise(level: jax.Array) -> tuple[jax.Array, jax.Array]:
            above = x > level[None, :]
            excess = jnp.sum(jnp.where(above, x - z[None, :], 0.0), axis=0)
            count = jnp.sum(jnp.where(above, 1.0, 0.0), axis=0)
            return jnp.maximum(level, z + excess / (w + count)), count

        def again(state: tuple[Any, ...]) -> tuple[Any, ...]:
            level, before, _ = state
            level, count = rise(level)
            return level, count, jnp.sum(jnp.where(up | (count == before), 0, 1))

        level, _, _ = lax.while_loop(lambda s: s[2] > 0, again, (*rise(z), jnp.int32(1)))
        first = jnp.min(jnp.where(x == top[None, :], place, wide), axis=0)
        back = (z - top) / (1 + w)
        raised = jnp.where(place == first[None, :], (w * back)[None, :], 0.0)
        lowered = jnp.where(x <= level[None, :], 0.0, level[None, :] - x)
        store(moves, at, jnp.where(up[None, :], raised, lowered), inside)
        store(backs, each, jnp.where(up, -back, level - z), exists)

    grid, warps = (rows, math.ceil(columns / together)), max(wide * together // 4096, 1)
    move, back = call(kernel, "max", (x.size, z.size), grid, warps)(*(a.reshape(-1) for a in (x, z, w)))
    return move.reshape(x.shape), back.reshape(z.shape)


def _together(columns: int) -> int:
    """How many vectors a program takes."""
    return min(power_of_two(columns), _TOGETHER)
