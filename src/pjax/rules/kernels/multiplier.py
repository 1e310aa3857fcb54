"""The multipliers of many dot products, and the sums of what follows from them, as a kernel for NVIDIA GPUs.

The compiler makes several kernels of this, each of which reads all that the ones before have written, and its
divisions take several times as long.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from pjax.devices import sum_in_parts
from pjax.rules.dot import multiplier, sum_and_difference
from pjax.rules.kernels.parts import call, load, numbers, program_id, share, store

FEWEST = 2**19  # dot products; fewer are not most of a step

_TOGETHER = 512  # dot products at once in one program
_PROGRAMS = 2048


def fits(out: tuple[int, ...], weight: Any, *arrays: jax.Array) -> bool:
    """Whether the kernel is for outputs of this shape, with the columns last, and for what else is given."""
    return (
        out[-1] in (8, 16, 32, 64)
        and FEWEST <= math.prod(out) < 2**31
        and isinstance(weight, float)
        and all(a.dtype == jnp.float32 for a in arrays)
    )


def solve(
    drift: jax.Array,
    point: jax.Array,
    goal: jax.Array,
    norms: tuple[jax.Array, jax.Array],
    length: int,
    weight: float,
) -> list[jax.Array]:
    """Project a table of dot products, of axes ``(rows, columns)``, of factors of some length.

    They have drifted from a point, from which they should be as far as the goal. ``norms`` are the squared
    lengths of the first factors, one for each row, and of the second, one for each column.

    Returns:
        What `Multiplier.other` is; where the dot products then are; and the sums of what `Multiplier.along`
        is, over each row for the first factor, and over each column for the second.
    """
    count, columns = drift.shape
    together = _TOGETHER // columns
    blocks = math.ceil(count / together)
    programs = min(blocks, _PROGRAMS)

    def kernel(*refs: Any) -> None:
        drift, point, goal, first, second, other, reached, rows, sums = refs
        column = numbers(columns)
        theirs = second[:][None, :]

        def block(b: Any, total: jax.Array) -> jax.Array:
            row = b * together + numbers(together)
            index = row[:, None] * columns + column[None, :]
            exists = jnp.broadcast_to((row < count)[:, None], index.shape)
            moved, started, asked = (load(ref, index, exists) for ref in (drift, point, goal))
            mine = load(first, row, row < count)[:, None]
            plus, minus = sum_and_difference(mine + theirs, started + moved)
            found = multiplier(plus, minus, asked - moved, weight, in_kernel=True)
            store(other, index, found.other, exists)
            store(reached, index, asked - found.lam * (1 / weight), exists)
            along = [jnp.where(exists, found.along(i, length), 0) for i in (0, 1)]
            store(rows, row, along[0].sum(1), row < count)
            return total + along[1]

        total = jnp.zeros((together, columns), jnp.float32)
        total = share(blocks, programs, block, total)
        store(sums, program_id() * columns + column, total.sum(0))

    sizes = count * columns, count * columns, count, programs * columns
    flat = (a.reshape(-1) for a in (drift, point, goal, *norms))
    other, reached, rows, sums = call(kernel, "solve", sizes, (programs,), 8)(*flat)
    sums = sum_in_parts(sums.reshape(programs, columns).T)
    return [other.reshape(drift.shape), reached.reshape(drift.shape), rows, sums]
