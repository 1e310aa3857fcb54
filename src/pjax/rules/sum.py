"""Sums of any number of arrays, each with a sign; their positive part; and the identity."""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Primitive, Projection, Weight, apply


@dataclasses.dataclass(frozen=True)
class Sum(Primitive):
    r"""A sum of arrays of any lengths, each with a sign.

    Set: :math:`\{(x_1, \dots, x_k, z) : z = \sum_i s_i \mathbf 1^\top x_i\}` with signs :math:`s_i = \pm 1`,
    a hyperplane. With :math:`m` numbers in all and the residual
    :math:`r = z_0 - \sum_i s_i \mathbf 1^\top x_i`, the projection moves :math:`x_i` by
    :math:`s_i \lambda` and :math:`z` by :math:`-\lambda / w`, where :math:`\lambda = r / (m + 1/w)`.

    Args:
        signs: 1 or -1 for each input.

    >>> (x,), z = Sum((1,)).project((jnp.array([1.0, 2.0]),), jnp.array(6.0))
    >>> x, z
    (Array([2., 3.], dtype=float32), Array(5., dtype=float32))

    Reference: the theorem "Sum" of the paper.
    """

    signs: tuple[int, ...] = (1,)

    name: ClassVar[str] = "sum"
    core: ClassVar[int] = 1
    smooth: ClassVar[bool] = True
    only_adds: ClassVar[bool] = True

    @property
    def terms(self) -> tuple[int, ...]:
        return self.signs

    def __post_init__(self) -> None:
        if not self.signs or any(s not in (1, -1) for s in self.signs):
            raise InputError(
                f"{self.name}: signs must be a non-empty tuple of 1 and -1, one per input; got {self.signs}."
            )

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return self._total(inputs).astype(inputs[0].dtype)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        residual = wide(shift) - self._total(shifts)
        w = weight_like(weight, residual)
        back = residual / (1 + w * math.fsum(x.shape[-1] for x in inputs))
        return self._spread(w * back, inputs), -back.astype(output.dtype)

    def _total(self, arrays: Arrays) -> jax.Array:
        """The sum of all arrays over their last axes, in float32 or wider."""
        if len(arrays) != len(self.signs):
            raise InputError(
                f"{self.name}: expected {len(self.signs)} inputs, one for each sign; got {len(arrays)}."
            )
        dtype = jnp.result_type(jnp.float32, *arrays)
        terms = [
            x.astype(dtype).squeeze(-1) if x.shape[-1] == 1 else jnp.sum(x, axis=-1, dtype=dtype)
            for x in arrays
        ]
        total = terms[0] if self.signs[0] == 1 else -terms[0]
        for sign, term in zip(self.signs[1:], terms[1:], strict=True):
            total = total + term if sign == 1 else total - term
        return total

    def _spread(self, step: jax.Array, inputs: Arrays) -> Arrays:
        """Every entry of every input by ``step``, in the direction of its sign."""
        return tuple(
            jnp.broadcast_to((step if sign == 1 else -step).astype(x.dtype)[..., None], x.shape)
            for sign, x in zip(self.signs, inputs, strict=True)
        )


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
    first_order: ClassVar[bool] = True
    only_adds: ClassVar[bool] = False

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return jnp.maximum(self._total(inputs), 0).astype(inputs[0].dtype)

    def soft(self, softness: float) -> Callable[..., jax.Array]:
        if softness:
            return super().soft(softness)
        # What only adds has a transpose already.
        return lambda *inputs: _rectified(self._total(inputs)).astype(inputs[0].dtype)

    def sensitivity(self, inputs: Arrays, output: jax.Array) -> float:
        return sum(x.size for x in inputs) / max(output.size, 1)

    def project(self, inputs: Arrays, output: jax.Array, weight: Weight = 1.0) -> Projection:
        s, z = self._total(inputs), wide(output)
        moves, _, end = self._nearest(inputs, s, z, z - s, weight)
        return tuple(x + m for x, m in zip(inputs, moves, strict=True)), end.astype(output.dtype)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        ds, dz, point = self._total(shifts), wide(shift), wide(output)
        # On the sloped piece the sum is the output itself, so that the residual holds only shifts.
        before = jnp.where(point > 0, point, self._total(inputs))
        residual = jnp.where(point > 0, dz - ds, dz - (before + ds))
        moves, move, _ = self._nearest(inputs, before + ds, point + dz, residual, weight)
        return moves, move.astype(output.dtype)

    def _nearest(
        self, inputs: Arrays, s: jax.Array, z: jax.Array, residual: jax.Array, weight: Weight
    ) -> tuple[Arrays, jax.Array, jax.Array]:
        """The moves of inputs and output, and the output, for a sum ``s`` and a target ``z``."""
        w, m = weight_like(weight, z), sum(x.shape[-1] for x in inputs)
        k = m * w
        sloped = s + jnp.where(s >= 0, k, k / (1 + jnp.sqrt(1 + k))) * z > 0
        back = residual / (1 + k)
        step = jnp.where(sloped, w * back, -jnp.maximum(s, 0) / max(m, 1))
        # Rounding must not push a point of the sloped piece below zero.
        end = jnp.where(sloped, jnp.maximum(z - back, 0), 0)
        return self._spread(step, inputs), jnp.where(sloped, -back, -z), end


@jax.custom_vjp
def _rectified(s: jax.Array) -> jax.Array:
    """The positive part. Numbers above zero are asked for what is asked of it, those below for nothing.

    A number at zero is asked to rise, but not to fall.
    """
    return jnp.maximum(s, 0)


def _forwards(s: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.maximum(s, 0), jnp.sign(s).astype(jnp.int8)


def _backwards(sign: jax.Array, goal: jax.Array) -> tuple[jax.Array]:
    return (jnp.where((sign > 0) | ((sign == 0) & (goal > 0)), goal, 0),)


_rectified.defvjp(_forwards, _backwards)


@dataclasses.dataclass(frozen=True)
class Identity(Primitive):
    r"""The identity, one number to one number.

    Set: :math:`\{(x, z) : z = x\}`. The projection of :math:`(x_0, z_0)` is the weighted average
    :math:`x = z = (x_0 + w z_0) / (1 + w)`.

    >>> Identity().project((jnp.array(1.0),), jnp.array(3.0))
    ((Array(2., dtype=float32),), Array(2., dtype=float32))

    Reference: the theorem "Identity" of the paper.
    """

    name: ClassVar[str] = "identity"

    def forward(self, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        return x

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        residual = wide(shift) - wide(shifts[0])
        w = weight_like(weight, residual)
        back = residual / (1 + w)
        return ((w * back).astype(inputs[0].dtype),), -back.astype(output.dtype)


def identity(x: jax.typing.ArrayLike) -> jax.Array:
    """Return ``x`` unchanged, as a node of its own in the traced graph.

    >>> identity(3.0)
    Array(3., dtype=float32, weak_type=True)
    """
    return apply(Identity(), jnp.asarray(x))
