"""Clipping to an interval."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Primitive


@dataclasses.dataclass(frozen=True)
class Clip(Primitive):
    r"""The nearest number in ``[-scale, scale]``.

    Set: the three pieces :math:`x \le -s, z = -s`; :math:`|x| \le s, z = x`; and :math:`x \ge s, z = s`. On
    the sloped one the nearest point moves the input by :math:`w r / (1 + w)`, where :math:`r = z_0 - x_0`, as
    far as the piece goes; on the flat ones to the nearest end. The nearest of the three is taken.

    Args:
        scale: the end of the interval.

    >>> Clip().project((jnp.array(0.5),), jnp.array(0.0))
    ((Array(0.25, dtype=float32),), Array(0.25, dtype=float32))
    """

    scale: float = 1.0

    name: ClassVar[str] = "clip"
    core: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"clip: scale must be a positive finite number; got {self.scale!r}.")

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return jnp.clip(inputs[0], -self.scale, self.scale)

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        x0, dx, z0, dz = map(wide, (*inputs, *shifts, output, shift))
        w, s = weight_like(weight, x0), self.scale
        x, z = x0 + dx, z0 + dz
        residual = (dz - dx) + (z0 - x0)
        sloped = residual * (w / (1 + w))
        sloped = jnp.clip(sloped, -s - x, s - x)
        move, back = sloped, sloped - residual
        cost = move**2 + w * back**2
        for end, flat in ((s, jnp.maximum(s - x, 0)), (-s, jnp.minimum(-s - x, 0))):
            there = flat**2 + w * (end - z) ** 2
            nearer = there < cost
            move, back = jnp.where(nearer, flat, move), jnp.where(nearer, end - z, back)
            cost = jnp.where(nearer, there, cost)
        return (move.astype(inputs[0].dtype),), back.astype(output.dtype)
