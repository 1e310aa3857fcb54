"""The multipliers of many dot products, and the sums of what follows from them, as a kernel for NVIDIA GPUs.

The compiler makes several kernels of this, each of which reads all that the ones before have written, and its
divisions take several times as long.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pjax.devices import sum_in_parts
from pjax.rules.dot import multiplier, sum_and_difference

FEWEST = 2**19  # dot products; fewer are not most of a step

_TOGETHER = 512  # dot products at once in one program
_PROGRAMS = 2048


class Solved(NamedTuple):
    """What the projection of a table of dot products does to its factors: see `Multiplier`."""

    other: jax.Array
    reached: jax.Array
    """Where the dot products are: what was asked of them, less their multiplier over their weight."""
    rows: jax.Array
    """For the first factor, the sums over each row of what `Multiplier.along` is."""
    columns: jax.Array
    """For the second factor, those over each column."""


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
    *,
    interpret: bool = False,
) -> Solved:
    """Project a table of dot products.

    Args:
        drift: how far they are from `point`, of axes ``(rows, columns)``.
        point: where they started.
        goal: how far from there they should be.
        norms: the squared lengths of the first factors, one for each row, and of the second, one for each
            column.
        length: of the factors.
        weight: of the outputs.
        interpret: whether to run without a GPU.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    count, columns = drift.shape
    together = _TOGETHER // columns
    blocks = math.ceil(count / together)
    programs = min(blocks, _PROGRAMS)

    def kernel(*refs: Any) -> None:
        drift, point, goal, first, second, other, reached, rows, sums = refs
        program, column = pl.program_id(0), jnp.arange(columns, dtype=jnp.int32)
        theirs = second[:][None, :]

        def block(b: Any, total: jax.Array) -> jax.Array:
            row = b * together + jnp.arange(together, dtype=jnp.int32)
            index = row[:, None] * columns + column[None, :]
            exists = jnp.broadcast_to((row < count)[:, None], index.shape)

            def load(ref: Any) -> jax.Array:
                return triton.load(ref.at[index], mask=exists, other=0.0)

            moved, asked = load(drift), load(goal)
            mine = triton.load(first.at[row], mask=row < count, other=0.0)[:, None]
            plus, minus = sum_and_difference(mine + theirs, load(point) + moved)
            found = multiplier(plus, minus, asked - moved, weight, in_kernel=True)
            triton.store(other.at[index], found.other, mask=exists)
            triton.store(reached.at[index], asked - found.lam * (1 / weight), mask=exists)
            along = [jnp.where(exists, found.along(i, length), 0) for i in (0, 1)]
            triton.store(rows.at[row], along[0].sum(1), mask=row < count)
            return total + along[1]

        total = jnp.zeros((together, columns), jnp.float32)
        total = lax.fori_loop(program * blocks // programs, (program + 1) * blocks // programs, block, total)
        triton.store(sums.at[program * columns + column], total.sum(0))

    sizes = count * columns, count * columns, count, programs * columns
    other, reached, rows, sums = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes],
        grid=(programs,),
        name="solve",
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
    )(drift.reshape(-1), point.reshape(-1), goal.reshape(-1), norms[0], norms[1])
    sums = sum_in_parts(sums.reshape(programs, columns).T)
    return Solved(other.reshape(drift.shape), reached.reshape(drift.shape), rows, sums)
