"""The dot product, and the scalar equation behind its projection."""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.primitives._arithmetic import weight_like, wide
from pjax.primitives._primitive import Arrays, Primitive


class Multiplier(NamedTuple):
    """How a dot product is projected: see `multiplier`."""

    lam: jax.Array
    """The multiplier, in [-1, 1]."""
    grow_plus: jax.Array
    """``x + y`` is multiplied by ``1 + grow_plus``."""
    grow_minus: jax.Array
    """``x - y`` is multiplied by ``1 + grow_minus``."""
    radius_plus: jax.Array
    """Length of a vector to add to ``x + y``; zero unless ``x + y`` vanishes."""
    radius_minus: jax.Array
    """Length of a vector to add to ``x - y``; zero unless ``x - y`` vanishes."""


def multiplier(
    plus: jax.Array, minus: jax.Array, residual: jax.Array, weight: jax.typing.ArrayLike = 1.0
) -> Multiplier:
    r"""The multiplier of the projection onto :math:`z = \langle x, y\rangle`, elementwise.

    It is the root in :math:`[-1, 1]` of the strictly increasing function

    .. math:: \frac P4 \frac{\lambda(2-\lambda)}{(1-\lambda)^2}
        + \frac M4 \frac{\lambda(2+\lambda)}{(1+\lambda)^2} + \frac\lambda w - r.

    By symmetry let :math:`r \ge 0`. In the variable :math:`u = \lambda / (1 - \lambda)`, which is small with
    :math:`\lambda` and large near the pole, it reads (:math:`A = P/4, B = M/4, c = 1/w`)

    .. math:: A u (2 + u) + B \frac{u (2 + 3u)}{(1 + 2u)^2} + c \frac{u}{1 + u} = r.

    The two saturating terms are close to one fraction :math:`k u / (1 + \mu u)` of the same slope at 0 and
    the same limit, which leaves a cubic equation with one positive root; the dominant terms of the cubic
    give it within a factor of two. Two Halley steps then reach float32 precision, three float64.

    If :math:`P = 0` the root may be :math:`\lambda = 1`: every :math:`x + y` of squared length
    :math:`4 (r - 3M/16 - 1/w)` is then a solution, and ``radius_plus`` is that length.

    Args:
        plus: :math:`P = |x + y|^2`.
        minus: :math:`M = |x - y|^2`.
        residual: :math:`r = z_0 - \langle x, y \rangle`.
        weight: :math:`w > 0`, the weight of the output.

    >>> multiplier(jnp.array(4.0), jnp.array(0.0), jnp.array(3.5)).lam.round(6)
    Array(0.5, dtype=float32)
    """
    c = 1 / weight_like(weight, residual)
    positive = residual >= 0
    # One array comes out of the costly part, so that a compiler can fuse it into one loop.
    u = _root(
        jnp.where(positive, plus, minus) / 4, jnp.where(positive, minus, plus) / 4, c, jnp.abs(residual)
    )
    sphere = jnp.isinf(u)
    near = jnp.where(sphere, 0, u)
    far = jnp.where(sphere, -0.5, -near / (1 + 2 * near))
    lam = jnp.where(sphere, 1, near / (1 + near))
    squared = jnp.abs(residual) - 3 / 16 * jnp.where(positive, minus, plus) - c
    radius = jnp.where(sphere, 2 * jnp.sqrt(jnp.maximum(squared, 0)), 0)
    return Multiplier(
        jnp.where(positive, lam, -lam),
        jnp.where(positive, near, far),
        jnp.where(positive, far, near),
        jnp.where(positive, radius, 0),
        jnp.where(positive, 0, radius),
    )


def _root(a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array) -> jax.Array:
    """The root u of the mirrored problem; infinite where the answer is a sphere."""
    # Dimensionless: nothing below can overflow, whatever the scale of the inputs.
    scale = jnp.maximum(jnp.maximum(a, b), jnp.maximum(r, c))
    shrink = 1 / jnp.maximum(scale, jnp.finfo(r.dtype).tiny * 4)
    a, b, c, r = a * shrink, b * shrink, c * shrink, r * shrink
    double = r.dtype == jnp.float64
    floor = 1e-48 if double else 1e-22  # with a this small, it matters less than rounding
    sphere = (a < floor) & (r > 0.75 * b + c)
    a = jnp.maximum(a, floor)
    u = _guess(a, b, c, r)
    for _ in range(3 if double else 2):
        u = _halley(u, a, b, c, r)
    return jnp.where(sphere, jnp.inf, u)


def _guess(a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array) -> jax.Array:
    """The root within a factor of two; exact to first order for small roots."""
    k = 2 * b + c
    mu = jnp.clip(k / jnp.maximum(0.75 * b + c, jnp.finfo(r.dtype).tiny), 1, 8 / 3)
    # a3 u^3 + a2 u^2 + a1 u = r; only a1 can be negative
    a3, a2, a1 = a * mu, a * (1 + 2 * mu), 2 * a + k - r * mu
    # Two quadratics: of the lower terms where a1 > 0, of the higher ones where it is not. Without a branch, so
    # that rounding cannot take one side here and the other there.
    up, down = jnp.maximum(a1, 0), jnp.maximum(-a1, 0)
    lower = 2 * r / (up + jnp.sqrt(up * up + 4 * a2 * r) + jnp.finfo(r.dtype).tiny)
    higher = 2 * down / (a2 + jnp.sqrt(a2 * a2 + 4 * a3 * down))
    return jnp.maximum(higher, jnp.minimum(lower, _rough_cbrt(0.6 * r / a)))  # 0.6: about 1 / mu


def _rough_cbrt(x: jax.Array) -> jax.Array:
    """The cube root within a few per cent: a third of the exponent, read as an integer."""
    if x.dtype != jnp.float32:
        return jnp.cbrt(x)
    bits = jax.lax.bitcast_convert_type(x, jnp.int32).astype(jnp.float32)
    return jax.lax.bitcast_convert_type((bits * (1 / 3)).astype(jnp.int32) + 709921077, jnp.float32)


def _halley(u: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array) -> jax.Array:
    """One step of Halley's method; at most a factor of eight, which only guards against rounding."""
    one, two = 1 + u, 1 + 2 * u
    inverse = 1 / (one * two)
    i1, i2 = inverse * two, inverse * one
    value = a * u * (2 + u) + b * (u * (2 + 3 * u) * (i2 * i2)) + c * (u * i1) - r
    slope = 2 * a * one + 2 * b * (one * i2) * (i2 * i2) + c * (i1 * i1)
    curve = 2 * a - b * ((10 + 8 * u) * i2) * (i2 * i2 * i2) - 2 * c * (i1 * i1 * i1)
    below = jnp.maximum(2 * slope * slope - value * curve, 0.5 * slope * slope)
    return jnp.clip(u - 2 * value * slope / below, 0.125 * u, 8 * u)


@dataclasses.dataclass(frozen=True)
class Dot(Primitive):
    r"""The dot product of two vectors.

    Set: :math:`\{(x, y, z) : z = \langle x, y \rangle\}`. The projection is

    .. math:: x + y \leftarrow \frac{x + y}{1 - \lambda}, \quad x - y \leftarrow \frac{x - y}{1 + \lambda},
        \quad z \leftarrow z - \frac\lambda w

    with the `multiplier` :math:`\lambda`. Where :math:`x = \pm y` the answer may be a whole sphere; then the
    point in the direction :math:`(1, \dots, 1)` is taken.

    With one factor ``fixed`` the set is a hyperplane: the other factor moves by :math:`\lambda c`, where
    :math:`c` is the fixed one and :math:`\lambda = r / (|c|^2 + 1/w)`.

    Args:
        fixed: ``None``, or 0 or 1: the input that is a constant.

    >>> (x, y), z = Dot().project((jnp.zeros(1), jnp.zeros(1)), jnp.array(5.0))
    >>> x, y, z
    (Array([2.], dtype=float32), Array([2.], dtype=float32), Array(4., dtype=float32))

    Reference: the theorem "Dot product" of the paper; H. H. Bauschke, M. Krishan Lal, X. Wang, "Projections
    onto hyperbolas or bilinear constraint sets in Hilbert spaces", 2022.
    """

    fixed: int | None = None

    name: ClassVar[str] = "dot"
    core: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.fixed not in (None, 0, 1):
            raise InputError(f"dot: fixed must be None, 0 or 1, the input held constant; got {self.fixed!r}.")

    def forward(self, *inputs: jax.Array) -> jax.Array:
        x, y = inputs
        return jnp.sum(wide(x) * wide(y), axis=-1).astype(jnp.result_type(x, y))

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        (x, y), (dx, dy) = map(wide, inputs), map(wide, shifts)
        residual = wide(shift) - jnp.sum(dx * (y + dy) + x * dy, axis=-1)
        w = weight_like(weight, residual)
        x, y = x + dx, y + dy
        if self.fixed is not None:
            held = x if self.fixed == 0 else y
            back = residual / (1 + w * jnp.sum(held * held, axis=-1))
            push = (w * back)[..., None] * held
            moves = (jnp.zeros_like(x), push) if self.fixed == 0 else (push, jnp.zeros_like(y))
        else:
            plus, minus = x + y, x - y
            solved = multiplier(jnp.sum(plus * plus, axis=-1), jnp.sum(minus * minus, axis=-1), residual, w)
            unit = 1 / math.sqrt(x.shape[-1])
            plus = solved.grow_plus[..., None] * plus + (unit * solved.radius_plus)[..., None]
            minus = solved.grow_minus[..., None] * minus + (unit * solved.radius_minus)[..., None]
            moves = (plus + minus) / 2, (plus - minus) / 2
            back = solved.lam / w
        kept = tuple(m.astype(i.dtype) for m, i in zip(moves, inputs, strict=True))
        return kept, -back.astype(output.dtype)
