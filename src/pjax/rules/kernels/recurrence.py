"""A recurrent network of relus as two kernels for NVIDIA GPUs, one forwards in time and one back.

Samples do not depend on each other. So a program takes some of them through all steps, with the state in
registers, where the compiler would start several kernels for each layer in each step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from pjax.rules.kernels.parts import call, dot, load, numbers, program_id, store

Pieces: TypeAlias = tuple[jax.Array, ...]
"""A value of some samples: its features in parts, each of shape ``(rows, columns)``."""

_ROWS = 16  # samples in one program
_COLUMNS = 128  # of a matrix at once
_WARPS = 8


def fits(shape: Sequence[int], widths: Sequence[int], dtype: Any) -> bool:
    """Whether the kernels are for so many times and samples, and layers and a state of these widths."""
    (steps, batch), width = shape, widths[0]
    return (
        len(widths) > 2  # the compiler is faster at one layer, unless several networks are trained at once
        and set(widths) == {width}
        and dtype == jnp.float32
        and (width in (16, 32, 64) or (width % _COLUMNS == 0 and width <= 4 * _COLUMNS))
        and batch % _ROWS == 0
        and 0 < steps * batch * width < 2**31
    )


def forwards(first: jax.Array, matrices: jax.Array, biases: jax.Array, skip: bool) -> tuple[jax.Array, ...]:
    """The values of all layers at all times, and after them the states, each of the shape of `first`.

    Args:
        first: what the first layer reads beside the state, shape ``(time, batch, width)``.
        matrices: from the state to the first layer, from layer to layer, and to the state from the last layer
            or, with a skip, from every layer.
        biases: of each layer.
        skip: see `matrices`.
    """
    layers = len(biases)
    shape = first.shape

    def kernel(first_ref: Any, matrices_ref: Any, biases_ref: Any, *outs: Any) -> None:
        block = _Block(shape)

        def step(t: jax.Array, state: Pieces) -> Pieces:
            given = block.load(first_ref, t)
            shifts = [block.row(biases_ref, layer) for layer in range(layers)]
            values: list[Pieces] = []
            for layer in range(layers):
                total = block.product(values[-1] if layer else state, matrices_ref, layer)
                total = total if layer else _sum([given, total])
                values.append(
                    tuple(jnp.maximum(a + b[None, :], 0.0) for a, b in zip(total, shifts[layer], strict=True))
                )
                block.store(outs[layer], t, values[-1])
            read = values if skip else values[-1:]
            wanted = _sum(block.product(value, matrices_ref, layers + i) for i, value in enumerate(read))
            state = tuple(jnp.maximum(piece, 0.0) for piece in wanted)
            block.store(outs[layers], t, state)
            return state

        lax.fori_loop(0, shape[0], step, block.zeros())

    return _called(kernel, "recurrence", shape, layers + 1)(first, matrices, biases)


def backwards(
    values: Sequence[jax.Array], wishes: Sequence[jax.Array], matrices: jax.Array
) -> tuple[jax.Array, ...]:
    """The cotangents of what goes into the relus of all layers, and of the state, at all times.

    Args:
        values: what `forwards` found.
        wishes: the cotangents of the last layer at all times or, with a skip, of every layer.
        matrices: those of `forwards`.
    """
    layers, skip = len(values) - 1, len(wishes) == len(values) - 1
    shape = values[0].shape
    turned = jnp.swapaxes(matrices, -1, -2)

    def kernel(*refs: Any) -> None:
        found, wished = refs[: layers + 1], refs[layers + 1 : -layers - 2]
        matrices_ref, outs = refs[-layers - 2], refs[-layers - 1 :]
        block = _Block(shape)

        def step(back: jax.Array, state: Pieces) -> Pieces:
            t = shape[0] - 1 - back
            here = [block.load(ref, t) for ref in found]  # all at once, and long before they are needed
            asked = [block.load(ref, t) for ref in wished]
            state = _where_positive(here[layers], state)
            block.store(outs[layers], t, state)
            before: list[Pieces] = []
            for layer in reversed(range(layers)):
                if skip or layer == layers - 1:  # then the state reads it, and who wishes
                    read = layer if skip else 0
                    before += [asked[read], block.product(state, matrices_ref, layers + read)]
                wish = _where_positive(here[layer], _sum(before))
                block.store(outs[layer], t, wish)
                before = [block.product(wish, matrices_ref, layer)]
            return before[0]

        lax.fori_loop(0, shape[0], step, block.zeros())

    return _called(kernel, "recurrence_back", shape, layers + 1)(*values, *wishes, turned)


def _called(kernel: Callable[..., None], name: str, shape: tuple[int, ...], count: int) -> Callable[..., Any]:
    """A function that runs a kernel, for some results of a shape."""
    steps, batch, width = shape
    run = call(kernel, name, [steps * batch * width] * count, (batch // _ROWS,), _WARPS)

    def flat(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(out.reshape(shape) for out in run(*(a.reshape(-1) for a in arrays)))

    return flat


class _Block:
    """The samples of one program, and where they lie in arrays ``(time, batch, width)``."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        _, self.batch, self.width = shape
        self.columns = min(self.width, _COLUMNS)
        self.parts = range(0, self.width, self.columns)
        self.samples = program_id() * _ROWS + numbers(_ROWS)

    def zeros(self) -> Pieces:
        return tuple(jnp.zeros((_ROWS, self.columns), jnp.float32) for _ in self.parts)

    def load(self, ref: Any, t: jax.Array) -> Pieces:
        return tuple(load(ref, index) for index in self._places(t))

    def store(self, ref: Any, t: jax.Array, values: Pieces) -> None:
        for index, piece in zip(self._places(t), values, strict=True):
            store(ref, index, piece)

    def row(self, ref: Any, i: int) -> Pieces:
        """One row of an array ``(…, width)``."""
        return tuple(load(ref, i * self.width + part + numbers(self.columns)) for part in self.parts)

    def product(self, values: Pieces, ref: Any, i: int) -> Pieces:
        """With one of some matrices."""

        def tile(row: int, column: int) -> jax.Array:
            slots = numbers(self.columns)
            return load(ref, (i * self.width + row + slots)[:, None] * self.width + (column + slots)[None, :])

        return tuple(
            functools.reduce(
                jnp.add, (dot(x, tile(row, column)) for x, row in zip(values, self.parts, strict=True))
            )
            for column in self.parts
        )

    def _places(self, t: jax.Array) -> list[jax.Array]:
        rows = (t * self.batch + self.samples) * self.width
        return [rows[:, None] + (part + numbers(self.columns))[None, :] for part in self.parts]


def _sum(values: Any) -> Pieces:
    first, *rest = values
    return tuple(sum(pieces[1:], pieces[0]) for pieces in zip(first, *rest, strict=True))


def _where_positive(values: Pieces, wishes: Pieces) -> Pieces:
    return tuple(jnp.where(v > 0, w, 0.0) for v, w in zip(values, wishes, strict=True))
