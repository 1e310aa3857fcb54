"""Rounding to equidistant levels."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Primitive, apply
from pjax.rules.clip import Clip


@dataclasses.dataclass(frozen=True)
class Quantize(Primitive):
    r"""The nearest of ``levels`` equidistant points in ``[-scale, scale]``.

    Set: the union over the levels :math:`z_i` of :math:`I_i \times \{z_i\}`, where the cell :math:`I_i` holds
    the numbers nearest to :math:`z_i`. The function rounds midpoints down; for projecting, cells are closed,
    and the output returned says which level was meant.

    For levels on one side of the cell of :math:`x_0`, the cost :math:`d(x_0, I_i)^2 + w (z_i - z_0)^2` is one
    parabola in :math:`i`. So only two levels can be nearest: that of :math:`x_0`, and the one closest to the
    parabola's minimum :math:`(x_0 \pm d/2 + w z_0) / (1 + w)` on the side of :math:`z_0`, with the spacing
    :math:`d`.

    Args:
        levels: how many points, at least 2.
        scale: the largest of them.

    >>> Quantize().project((jnp.array(-0.2),), jnp.array(0.9))
    ((Array(0., dtype=float32),), Array(1., dtype=float32))

    Reference: the theorem "Quantization" of the paper.
    """

    levels: int = 2
    scale: float = 1.0

    name: ClassVar[str] = "quantize"
    core: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if isinstance(self.levels, bool) or not isinstance(self.levels, int) or self.levels < 2:
            raise InputError(f"quantize: levels must be an integer, at least 2; got {self.levels!r}.")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"quantize: scale must be a positive finite number; got {self.scale!r}.")

    def forward(self, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        return self._level(self._cell(wide(x))).astype(x.dtype)

    def project(
        self, inputs: Arrays, output: jax.Array, weight: jax.typing.ArrayLike = 1.0
    ) -> tuple[Arrays, jax.Array]:
        move, end = self._nearest(wide(inputs[0]), wide(output), weight)
        return ((wide(inputs[0]) + move).astype(inputs[0].dtype),), end.astype(output.dtype)

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        x, z = wide(inputs[0]) + wide(shifts[0]), wide(output) + wide(shift)
        move, end = self._nearest(x, z, weight)
        return (move.astype(inputs[0].dtype),), ((end - wide(output)) - wide(shift)).astype(output.dtype)

    def dithered(self) -> Primitive:
        """The mean over a uniform dither of one level's width: a clipped line."""
        return Clip(self.scale)

    def _nearest(
        self, x: jax.Array, z: jax.Array, weight: jax.typing.ArrayLike
    ) -> tuple[jax.Array, jax.Array]:
        """The move of the input, and the output."""
        w = weight_like(weight, x)
        here = self._cell(x)
        direction = jnp.where(z >= self._level(here), 1, -1)
        half = direction * (self.scale / (self.levels - 1))
        best = jnp.round(self._place((x + half + w * z) / (1 + w)) + (self.levels - 1) / 2)
        low, high = jnp.where(direction > 0, here + 1, 0), jnp.where(direction > 0, self.levels - 1, here - 1)
        there = jnp.clip(best, low, high)  # equals `here` only where there is no level on that side
        there = jnp.where(low > high, here, there)
        gap = self._level(there) - half - x
        gap = jnp.where(there == here, 0, jnp.where(direction > 0, jnp.maximum(gap, 0), jnp.minimum(gap, 0)))
        start, end = self._level(here), self._level(there)
        nearer = gap * gap < w * (end - start) * ((z - start) + (z - end))
        return jnp.where(nearer, gap, 0), jnp.where(nearer, end, start)

    def _place(self, x: jax.Array) -> jax.Array:
        """``x`` in units of the spacing."""
        return x * ((self.levels - 1) / (2 * self.scale))

    def _cell(self, x: jax.Array) -> jax.Array:
        """The index of the cell of ``x``; a midpoint belongs to the lower cell."""
        # Counted from the middle, so that the midpoint at zero is met exactly.
        half = (self.levels % 2) / 2
        return jnp.clip(
            jnp.ceil(self._place(x) - half) + (self.levels // 2 - 1 + 2 * half), 0, self.levels - 1
        )

    def _level(self, index: jax.Array) -> jax.Array:
        return ((2 * index - (self.levels - 1)) / (self.levels - 1)) * self.scale


def quantize(x: jax.typing.ArrayLike, levels: int = 2, scale: float = 1.0) -> jax.Array:
    """Round to the nearest of ``levels`` equidistant points in ``[-scale, scale]``, midpoints down.

    >>> quantize(jnp.array([-3.0, 0.1, 0.5]), levels=3)
    Array([-1.,  0.,  0.], dtype=float32)
    """
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(f"quantize: expected floating-point numbers, got {x.dtype}; convert them first.")
    return apply(Quantize(levels, scale), x)
