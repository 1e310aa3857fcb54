"""The largest, or the smallest, of several numbers."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.devices import has_kernels, on_one_device
from pjax.errors import InputError
from pjax.rules.arithmetic import first, weight_like, wide
from pjax.rules.base import Arrays, Primitive, Projection, Weight, answering
from pjax.rules.kernels import maximum as max_kernel


@dataclasses.dataclass(frozen=True)
class Max(Primitive):
    r"""The maximum of a vector, or its minimum with ``sign=-1``.

    Set: :math:`\{(x, z) : z = \max_i x_i\}`. If :math:`z_0` is above all :math:`x_i`, the (first) largest one
    meets it at their weighted average. Otherwise everything above a level :math:`z` is lowered to it, the
    root of :math:`w (z - z_0) = \sum_i (x_i - z)_+`. The right side is convex and piecewise linear, so
    Newton's method

    .. math:: z \leftarrow \frac{w z_0 + \sum_{x_i > z} x_i}{w + \#\{x_i > z\}}

    rises from :math:`z_0` to the root in finitely many rounds, without sorting.

    Args:
        sign: 1 for the maximum, -1 for the minimum.
        behind: how many axes of the output should lie behind that of the vector in memory, on devices where
            the compiler chooses the order of axes. Makes no difference to the result.

    >>> Max().project((jnp.array([0.0, 4.0, 3.0]),), jnp.array(2.0))
    ((Array([0., 3., 3.], dtype=float32),), Array(3., dtype=float32))

    Reference: the theorem "Maximum" of the paper.
    """

    sign: int = 1
    behind: int = 0

    name: ClassVar[str] = "max"
    core: ClassVar[int] = 1
    first_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise InputError(f"max: sign must be 1 (maximum) or -1 (minimum); got {self.sign!r}.")

    def forward(self, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        return jnp.max(x, axis=-1) if self.sign == 1 else jnp.min(x, axis=-1)

    def soft(self, softness: float) -> Callable[..., jax.Array]:
        return super().soft(softness) if softness else answering(self.forward, self._answer)

    def _answer(self, inputs: Arrays, output: jax.Array, goal: jax.Array) -> Arrays:
        """The first largest number is asked to rise; all that are as large are asked to sink, together."""
        (x,) = inputs
        largest = x == output[..., None]
        each = goal / jnp.sum(largest, axis=-1, dtype=goal.dtype)
        up = (self.sign * goal > 0)[..., None]
        asked = jnp.where(up, goal[..., None], each[..., None])
        return (jnp.where(jnp.where(up, first(largest), largest), asked, 0),)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        # Relative to the old output, so that numbers near the maximum keep their low digits.
        x = self.sign * ((wide(inputs[0]) - wide(output)[..., None]) + wide(shifts[0]))
        z = self.sign * wide(shift)
        w = jnp.broadcast_to(weight_like(weight, z), z.shape)

        behind = min(self.behind, z.ndim)
        # Two rounds nearly always suffice; where each round of a loop must be waited for, five are made.
        move, back = on_one_device(
            x,
            z,
            w,
            cpu=functools.partial(_moves, 0, 0),
            cuda=functools.partial(_in_one_kernel, behind)
            if has_kernels("maximum") and max_kernel.fits(_table(x.shape, behind), x, z, w)
            else None,
            default=functools.partial(_moves, 5, behind),
        )
        return ((self.sign * move).astype(inputs[0].dtype),), (self.sign * back).astype(output.dtype)


def _moves(rounds: int, behind: int, x: jax.Array, z: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How far the numbers and their maxima move."""
    top = jnp.max(x, axis=-1)
    level = _lower(rounds, behind, x, z, w)
    lowered = jnp.minimum(level[..., None] - x, 0)
    back = (z - top) / (1 + w)
    raised = jnp.where(first(x == top[..., None]), (w * back)[..., None], 0)
    up = z >= top
    return jnp.where(up[..., None], raised, lowered), jnp.where(up, -back, level - z)


def _in_one_kernel(behind: int, x: jax.Array, z: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same."""
    axis, table = x.ndim - 1 - behind, _table(x.shape, behind)
    x = jnp.moveaxis(x, -1, axis)
    each = table[0], table[2]
    move, back = max_kernel.displace(x.reshape(table), z.reshape(each), w.reshape(each))
    return jnp.moveaxis(move.reshape(x.shape), axis, -1), back.reshape(z.shape)


def _table(shape: tuple[int, ...], behind: int) -> tuple[int, int, int]:
    """Rows, numbers of a vector, and columns, where some axes lie behind the vector's."""
    *others, length = shape
    rows = len(others) - behind
    return math.prod(others[:rows]), length, math.prod(others[rows:])


def _lower(rounds: int, behind: int, x: jax.Array, z: jax.Array, w: jax.Array) -> jax.Array:
    """The root of ``w (level - z) = sum(max(x - level, 0))``, for ``z < max(x)``.

    Some rounds are written out; after them there is a loop, as long as it takes. A loop takes arrays in the
    order of their axes, so the last one of x is put before those that lie behind it.
    """
    axis = -1 - behind
    x = jnp.moveaxis(x, -1, axis)

    def rise(level: jax.Array) -> tuple[jax.Array, jax.Array]:
        above = x > jnp.expand_dims(level, axis)
        excess = jnp.sum(jnp.where(above, x - jnp.expand_dims(z, axis), 0), axis=axis)
        # Summed as the numbers they are compared with, which is faster than whole numbers on CPU.
        count = jnp.sum(above, axis=axis, dtype=x.dtype)
        return jnp.maximum(level, z + excess / (w + count)), count

    def again(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        level, count, _ = state
        return *rise(level), count

    # The set above the level only shrinks; the level is right once the set has stopped changing.
    unknown = jnp.full_like(z, jnp.nan)
    state: tuple[jax.Array, ...] = (z, unknown, unknown)
    for _ in range(rounds):
        state = again(state)
    return jax.lax.while_loop(lambda s: jnp.any(s[1] != s[2]), again, state)[0]
