"""Clipping to an interval, and rounding to equidistant levels in it."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.checks import check_float, check_positive, check_whole
from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Primitive, Projection, Weight, apply


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

    def __post_init__(self) -> None:
        check_positive("clip: scale", self.scale)

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return jnp.clip(inputs[0], -self.scale, self.scale)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
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

    def __post_init__(self) -> None:
        check_whole("quantize: levels", self.levels, 2)
        check_positive("quantize: scale", self.scale)

    def forward(self, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        return self._level(self._cell(wide(x))).astype(x.dtype)

    def project(self, inputs: Arrays, output: jax.Array, weight: Weight = 1.0) -> Projection:
        move, end = self._nearest(wide(inputs[0]), wide(output), weight)
        return ((wide(inputs[0]) + move).astype(inputs[0].dtype),), end.astype(output.dtype)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
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
    return apply(Quantize(levels, scale), check_float("quantize: values", x))
