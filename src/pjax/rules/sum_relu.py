"""The rectified sum, the fusion of additions and a ReLU."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays
from pjax.rules.sum import Sum, signed_sum, spread


@dataclasses.dataclass(frozen=True)
class SumRelu(Sum):
    r"""The positive part of a signed sum.

    Set: :math:`\{(x, z) : z = \max(0, s)\}` with :math:`s = \sum_i s_i \mathbf 1^\top x_i`: the union of
    a flat piece (:math:`s \le 0, z = 0`) and a sloped piece (:math:`z = s \ge 0`), both closed and convex.
    The projection is the nearer of the projections onto the two. With :math:`m` numbers in all and
    :math:`k = m w` it lies on the sloped piece exactly where

    .. math:: s_0 + \kappa z_0 > 0, \quad \kappa = k \text{ if } s_0 \ge 0 \text{ else } \sqrt{1 + k} - 1,

    and is there the projection onto the hyperplane :math:`z = s`; elsewhere :math:`z = 0` and a positive
    :math:`s_0` is brought to zero.

    Args:
        signs: 1 or -1 for each input.

    >>> SumRelu((1,)).project((jnp.array([-1.0]),), jnp.array(2.0))
    ((Array([-1.], dtype=float32),), Array(0., dtype=float32))
    >>> SumRelu((1,)).project((jnp.array([-1.0]),), jnp.array(4.0))
    ((Array([1.5], dtype=float32),), Array(1.5, dtype=float32))

    Reference: the theorem "ReLU of summation" of the paper.
    """

    name: ClassVar[str] = "sum_relu"
    smooth: ClassVar[bool] = False
    only_adds: ClassVar[bool] = False

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return jnp.maximum(signed_sum(self.name, self.signs, inputs), 0).astype(inputs[0].dtype)

    def soft(self, softness: float) -> Callable[..., jax.Array]:
        if softness:
            return super().soft(softness)
        # What only adds has a transpose already.
        return lambda *inputs: _rectified(signed_sum(self.name, self.signs, inputs)).astype(inputs[0].dtype)

    def sensitivity(self, inputs: Arrays, output: jax.Array) -> float:
        return sum(x.size for x in inputs) / max(output.size, 1)

    def project(
        self, inputs: Arrays, output: jax.Array, weight: jax.typing.ArrayLike = 1.0
    ) -> tuple[Arrays, jax.Array]:
        s, z = signed_sum(self.name, self.signs, inputs), wide(output)
        step, _, end = self._steps(inputs, s, z, z - s, weight)
        moves = spread(step, self.signs, inputs)
        return tuple(x + m for x, m in zip(inputs, moves, strict=True)), end.astype(output.dtype)

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        ds, dz, point = signed_sum(self.name, self.signs, shifts), wide(shift), wide(output)
        # On the sloped piece the sum is the output itself, so that the residual holds only shifts.
        before = jnp.where(point > 0, point, signed_sum(self.name, self.signs, inputs))
        residual = jnp.where(point > 0, dz - ds, dz - (before + ds))
        step, move, _ = self._steps(inputs, before + ds, point + dz, residual, weight)
        return spread(step, self.signs, inputs), move.astype(output.dtype)

    def _steps(
        self,
        inputs: Arrays,
        s: jax.Array,
        z: jax.Array,
        residual: jax.Array,
        weight: jax.typing.ArrayLike,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Step of each input, move of the output, and the output, for a sum ``s`` and a target ``z``."""
        w = weight_like(weight, z)
        m = sum(x.shape[-1] for x in inputs)
        k = m * w
        sloped = s + jnp.where(s >= 0, k, k / (1 + jnp.sqrt(1 + k))) * z > 0
        back = residual / (1 + k)
        step = jnp.where(sloped, w * back, -jnp.maximum(s, 0) / max(m, 1))
        # Rounding must not push a point of the sloped piece below zero.
        end = jnp.where(sloped, jnp.maximum(z - back, 0), 0)
        return step, jnp.where(sloped, -back, -z), end


@jax.custom_vjp
def _rectified(s: jax.Array) -> jax.Array:
    """The positive part; what is asked of it is asked of the number, but not of one below zero.

    Nor is one at zero asked to go down.
    """
    return jnp.maximum(s, 0)


def _forwards(s: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.maximum(s, 0), jnp.sign(s).astype(jnp.int8)


def _backwards(sign: jax.Array, goal: jax.Array) -> tuple[jax.Array]:
    return (jnp.where((sign > 0) | ((sign == 0) & (goal > 0)), goal, 0),)


_rectified.defvjp(_forwards, _backwards)
