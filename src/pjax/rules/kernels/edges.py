"""The projection of a contraction whose edges are written out, in one pass over them on an NVIDIA GPU.

Each dot product has its edges of both inputs. A program of the kernel takes the edges of several dot products
to registers, sums over them, solves for the multipliers and writes the moves. What it writes takes the place
of what it read, so that hardly any memory is needed beside the edges. The sums of the moves, which means are
made of, come along.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from pjax.devices import power_of_two
from pjax.rules.contraction import transposed
from pjax.rules.dot import multiplier, sums_of_squares, visible
from pjax.rules.kernels.parts import call, load, numbers, program_id, store


class Projected(NamedTuple):
    """What a projection does to the edges of a contraction."""

    moves: tuple[jax.Array, jax.Array]
    """How far the edges of either input move: shape ``(*out, K)``."""
    totals: tuple[jax.Array, jax.Array]
    """For each slot of either input, the sum of the moves of its edges."""
    lam: jax.Array
    squared: jax.Array
    """For each dot product, the sum of the squared moves of its edges."""


class Blocks(NamedTuple):
    """How the dot products are divided among programs."""

    columns: int
    """So many rows of the second input at once, a power of two."""
    programs: int
    """So many programs share the rows of the first input, one row at a time."""
    warps: int

    @classmethod
    def of(cls, batch: int, rows: int, columns: int, length: int) -> "Blocks":
        """As many dot products at once as fit in registers, and enough programs for all of a GPU."""
        wide = power_of_two(length)
        side = min(power_of_two(columns), max(EDGES // wide, 1))
        programs = max(PROGRAMS // (batch * math.ceil(columns / side)), 1)
        each = math.ceil(rows / min(programs, rows))
        return cls(side, math.ceil(rows / each), min(max(side * wide // 512, 1), 4))


EDGES = 2048  # of either input at once, in one program
PROGRAMS = 4608  # several for each place that a GPU has
LONGEST = 1024  # dot product
FEWEST = 2**22  # edges; fewer are not most of a step


Terms: TypeAlias = Sequence[tuple[float, jax.Array]]
"""The sum of arrays with factors."""


def fits(rule: Any, rest: tuple[Terms, Terms], *outputs: jax.Array) -> bool:
    """Whether the kernel is made for these edges, and what is given for each dot product."""
    arrays = [array for part in rest for _, array in part]
    return (
        not rule.windowed
        and all(len(part) == 1 for part in rest)
        and all(a.dtype in (jnp.float32, jnp.bfloat16) for a in arrays)
        and all(a.dtype == jnp.float32 for a in outputs)
        and 0 < rule.length <= LONGEST
        and max(FEWEST, 1) <= rule.edges < 2**31
        and math.prod(rule.shapes[0][d] for d in rule.batch[0]) < 2**16
    )


def project(
    rule: Any,
    inputs: tuple[jax.Array, ...],
    rest: tuple[Terms, Terms],
    residual: jax.Array,
    weight: float | jax.Array = 1.0,
    read: jax.Array | None = None,
    *,
    blocks: Blocks | None = None,
) -> Projected:
    """Project edges of a `DotGeneral` that are a row of an input plus a rest, which is in one term.

    The residual is what is asked of the outputs minus what they are without the rest. Those that nobody reads
    ask for nothing.
    """
    x, y = (_rows(rule, i, at.astype(jnp.float32)) for i, at in enumerate(inputs))
    (batch, m, length), n = x.shape, y.shape[1]
    size = blocks or Blocks.of(batch, m, n, length)
    wide = power_of_two(length)
    lanes = min(wide, 128)  # so many slots side by side; the others of a dot product are in the same threads
    grid = (math.ceil(n / size.columns), size.programs, batch)
    factors, edges = zip(*(part[0] for part in rest), strict=True)
    edges = tuple(e.reshape(batch, m, n, length) for e in edges)
    each = (batch, m, n)
    given: dict[str, jax.Array] = {"residual": residual.reshape(each)}
    if not isinstance(weight, (int, float)):
        given["weight"] = jnp.broadcast_to(weight, rule.out).astype(x.dtype).reshape(each)
    if read is not None:
        given["read"] = jnp.broadcast_to(read, rule.out).astype(x.dtype).reshape(each)

    def kernel(*refs: Any) -> None:
        x_ref, y_ref, *edge_refs = refs[:4]
        each_number = dict(zip(given, refs[4:-6], strict=True))
        *move_refs, x_parts, y_parts, lam, squared = refs[-6:]
        j, g, b = map(program_id, range(3))
        column = j * size.columns + numbers(size.columns)
        slot = lanes * _along(0, wide // lanes) + _along(2, lanes)
        here, there = column < n, slot < length
        both = here[None, :, None] & there
        y = load(y_ref, (b, column[None, :, None], slot), both)

        def row(t: jax.Array, total: jax.Array) -> jax.Array:
            r = g + t * size.programs
            at = (b, r, column[None, :, None], slot)
            x = load(x_ref, (b, r, slot), there)
            more = [
                factor * load(ref, at, both).astype(jnp.float32)
                for factor, ref in zip(factors, edge_refs, strict=True)
            ]
            asked = {name: load(ref, (b, r, column), here) for name, ref in each_number.items()}
            first, second = x + more[0], y + more[1]
            wish = asked["residual"] - _over_slots(second * more[0] + x * more[1])
            if "read" in asked:
                wish = jnp.where(asked["read"] > 0, wish, 0)
            w = jnp.where(here, asked["weight"], 1) if "weight" in asked else weight
            # Not from lengths and products: they cancel where x and y are nearly equal or opposite.
            both_ways = first + second, first - second
            plus, minus = sums_of_squares(*both_ways, _over_slots)
            found = multiplier(plus, minus, wish, w, in_kernel=True)
            spheres = [found.spheres.add(i, length)[None, :, None] for i in (0, 1)]
            growth = found.growth(plus, minus)
            grown, shrunk = (g[None, :, None] / 2 * v for g, v in zip(growth, both_ways, strict=True))
            moves = (
                grown + shrunk + spheres[0] * visible(first),
                grown - shrunk + spheres[1] * visible(second),
            )
            for ref, move in zip(move_refs, moves, strict=True):
                store(ref, at, move.astype(ref.dtype), both)
            across = jnp.sum(moves[0], 1, keepdims=True)
            store(x_parts, (b, j, r, slot), across, there)
            store(lam, (b, r, column), found.lam, here)
            store(squared, (b, r, column), found.squared(plus, minus), here)
            return total + moves[1]

        rows = (m - g + size.programs - 1) // size.programs
        total = lax.fori_loop(0, rows, row, jnp.zeros(both.shape, jnp.float32))
        store(y_parts, (b, g, column[None, :, None], slot), total, both)

    sizes = (batch, grid[0], m, length), (batch, grid[1], n, length), each, each
    shapes = [jax.ShapeDtypeStruct(e.shape, e.dtype) for e in edges]
    shapes += [jax.ShapeDtypeStruct(s, jnp.float32) for s in sizes]
    split = call(kernel, "split", shapes, grid, size.warps, input_output_aliases={2: 0, 3: 1})
    *moves, x_parts, y_parts, lam, squared = split(x, y, *edges, *given.values())
    first, second = (move.reshape(*rule.out, length).astype(jnp.float32) for move in moves)
    totals = _slots(rule, 0, x_parts.sum(1)), _slots(rule, 1, y_parts.sum(1))
    return Projected((first, second), totals, lam.reshape(rule.out), squared.reshape(rule.out))


def _rows(rule: Any, i: int, x: jax.Array) -> jax.Array:
    """Input i as the rows of dot products: shape ``(batch, free, K)``."""
    return rule.rows(i, x).reshape(math.prod(x.shape[d] for d in rule.batch[i]), -1, rule.length)


def _slots(rule: Any, i: int, rows: jax.Array) -> jax.Array:
    """Rows in the shape of input i."""
    return transposed(functools.partial(_rows, rule, i), rule.shapes[i], rows)


def _along(axis: int, length: int) -> jax.Array:
    """0, 1, 2, … along one of the three axes of a block."""
    return jnp.expand_dims(numbers(length), [d for d in range(3) if d != axis])


def _over_slots(x: jax.Array) -> jax.Array:
    """For each column of a block, the sum over its slots."""
    return jnp.sum(jnp.sum(x, 0), 1)
