"""The dot product, and the scalar equation behind its projection."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from pjax.devices import compiles_each_kernel
from pjax.errors import InputError
from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Place, Primitive, Projection, Weight

Pair: TypeAlias = tuple[jax.Array, jax.Array]


class Spheres(NamedTuple):
    """Where all points of a sphere are as near: see `multiplier`."""

    beyond: jax.Array
    """On a sphere, of which ``x + y`` or, with a minus sign, ``x - y`` is a point: a quarter of its squared
    radius. Else zero."""
    square: jax.Array
    """On a sphere, the squared length of ``x``, which then is that of ``y``."""

    def add(self, i: int, length: int) -> jax.Array:
        """What they add to ``own``: the vectors grow apart, or as one where both vanish."""
        size = jnp.sqrt(jnp.abs(self.beyond)) * jax.lax.rsqrt(self.size(length))
        return size if i == 0 else jnp.where(self.vanish & (self.beyond > 0), size, -size)

    @property
    def vanish(self) -> jax.Array:
        """Whether both vectors vanish."""
        return self.square <= VISIBLE**2

    def size(self, length: int) -> jax.Array:
        """The squared length of each `visible` vector."""
        return jnp.where(self.vanish, VISIBLE**2 * length, self.square)


class Multiplier(NamedTuple):
    """How a dot product is projected: see `multiplier`."""

    lam: jax.Array
    """The multiplier, in [-1, 1]."""
    own: jax.Array
    """``x`` moves by ``own * x + other * y``, and ``y`` by ``own * y + other * x``."""
    other: jax.Array
    spheres: Spheres
    root: jax.Array
    """``lam / (1 - abs(lam))``; infinite on a sphere."""

    def growth(self, plus: jax.typing.ArrayLike = 1, minus: jax.typing.ArrayLike = 1) -> Pair:
        """``x + y`` is multiplied by one plus the first, ``x - y`` by one plus the second.

        From the root, which has all digits also where one grows far: a sum of `own` and `other` would cancel.
        Given ``|x + y|²`` and ``|x - y|²``, nothing grows where these are zero: it would be rounding.
        """

        def grown(u: jax.Array, square: jax.typing.ArrayLike) -> jax.Array:
            u = jnp.where((u == jnp.inf) | (square == 0), jnp.minimum(u, 0), u)
            u = jnp.maximum(u, -HUGE)
            return u / (1 + 2 * jnp.maximum(-u, 0))

        return grown(self.root, plus), grown(-self.root, minus)

    def squared(self, plus: jax.Array, minus: jax.Array) -> jax.Array:
        """How far ``x`` and ``y`` move, squared, given ``|x + y|²`` and ``|x - y|²``."""
        grow_plus, grow_minus = self.growth()
        return (grow_plus**2 * plus + grow_minus**2 * minus) / 2 + 2 * jnp.abs(self.spheres.beyond)

    def along(self, i: int, length: int) -> jax.Array:
        """Like ``own``, for a `visible` input of the given length, with what spheres add."""
        return jnp.where(self.spheres.beyond == 0, self.own, self.spheres.add(i, length) - 0.25)

    def both_along(self, length: int) -> Pair:
        """`along` of both inputs; on a CPU, from one quotient, which the compiler keeps."""
        if not compiles_each_kernel():
            return self.along(0, length), self.along(1, length)
        u, at = jnp.abs(self.root), self.spheres
        sphere = u == jnp.inf
        above, below = jnp.sqrt(jnp.abs(at.beyond)), jnp.sqrt(at.size(length))
        above = jnp.where(at.vanish & (at.beyond > 0), above, -above)
        own = jnp.where(sphere, above, u * u) / jnp.where(sphere, below, 1 + 2 * u)
        return jnp.where(sphere, jnp.abs(own) - 0.25, own), jnp.where(sphere, own - 0.25, own)


VISIBLE = 1e-18
HUGE = 1e18
"""One more is no more, in any type."""
FEW = 8192
"""So few equations are solved again sooner than a kernel more is started on a GPU."""


def visible(x: jax.Array) -> jax.Array:
    """The input with nothing smaller than `VISIBLE` in it, so that zeros have a direction to move in."""
    return jnp.where(jnp.abs(x) <= VISIBLE, jnp.asarray(VISIBLE, x.dtype), x)


def times_visible(factor: jax.Array, x: jax.Array) -> jax.Array:
    """``factor * visible(x)``, with the choice last: on a CPU no array of what is visible is then written."""
    return jnp.where(jnp.abs(x) <= VISIBLE, factor * VISIBLE, factor * x)


def sum_and_difference(total: jax.Array, product: jax.Array, size: jax.Array | None = None) -> Pair:
    """|x+y|² and |x−y|² from |x|² + |y|² and ⟨x, y⟩; zero where no more is left of them than rounding.

    ``size`` is that of the numbers that the total is a sum of, where they are of both signs.
    """
    least = 8 * jnp.finfo(total.dtype).eps * (total if size is None else size)
    plus, minus = total + 2 * product, total - 2 * product
    return jnp.where(plus < least, 0, plus), jnp.where(minus < least, 0, minus)  # what is NaN stays NaN


def sums_of_squares(total: jax.Array, difference: jax.Array, sums: Callable[[jax.Array], jax.Array]) -> Pair:
    """|x+y|² and |x−y|² from x + y and x − y; zero where no more is left of them than rounding.

    More accurate than `sum_and_difference` where x and y are nearly equal or opposite. ``sums`` are over the
    slots of each dot product.
    """
    plus, minus = sums(total * total), sums(difference * difference)
    least = (8 * jnp.finfo(plus.dtype).eps) ** 2 * (plus + minus)
    return jnp.where(plus < least, 0, plus), jnp.where(minus < least, 0, minus)


def multiplier(
    plus: jax.Array,
    minus: jax.Array,
    residual: jax.Array,
    weight: jax.typing.ArrayLike = 1.0,
    *,
    in_kernel: bool = False,
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
    :math:`4 (r - 3M/16 - 1/w)` is then a solution. The one in the direction of :math:`x` is taken; that of
    :math:`(1, \dots, 1)` where :math:`x = y = 0`.

    Args:
        plus: :math:`P = |x + y|^2`.
        minus: :math:`M = |x - y|^2`.
        residual: :math:`r = z_0 - \langle x, y \rangle`.
        weight: :math:`w > 0`, the weight of the output.
        in_kernel: whether this is part of a kernel, where nothing is computed twice.

    >>> multiplier(jnp.array(4.0), jnp.array(0.0), jnp.array(3.5)).lam.round(6)
    Array(0.5, dtype=float32)
    """
    mirrored = _mirrored(plus, minus, residual, weight)
    root = _solve(*mirrored, in_kernel=in_kernel)
    if in_kernel:  # where the larger of a number and NaN is the number
        root = jnp.where(jnp.isnan(plus + minus + residual), jnp.nan, root)
    # Not by `jnp.isinf`, for whose absolute value the compiler would begin a kernel where sums have it, too.
    sphere, sign = (root == jnp.inf) | (root == -jnp.inf), jnp.where(root >= 0, 1, -1).astype(root.dtype)
    finite = jnp.where(sphere, 0, root)
    u = jnp.abs(finite)
    one, two = 1 + u, 1 + 2 * u

    def chosen(at_infinity: Any, value: jax.Array) -> jax.Array:
        return jnp.where(sphere, at_infinity, value)

    if in_kernel:  # with one division; a compiler would do it three times
        inverse = 1 / (one * two)
        lam = chosen(sign, finite * (inverse * two))
        own = chosen(-0.25, u * (u * (inverse * one)))
        other = chosen(0.25 * sign, finite * (one * (inverse * one)))
    else:  # with the quotient last, which a compiler keeps: it does not do again what would come after
        lam, own = chosen(sign, finite) / one, chosen(-0.25, u * u) / two
        other = chosen(0.25 * sign, finite * one) / two
    return Multiplier(lam, own, other, _spheres(*mirrored), root)


def spheres(
    plus: jax.Array, minus: jax.Array, residual: jax.Array, weight: jax.typing.ArrayLike = 1.0
) -> Spheres:
    """The spheres among the answers of `multiplier`, for which nothing need be solved."""
    return _spheres(*_mirrored(plus, minus, residual, weight))


def _mirrored(
    plus: jax.Array, minus: jax.Array, residual: jax.Array, weight: jax.typing.ArrayLike
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Whether the residual is positive; and A, B, c, r of the problem in which it is."""
    positive = residual >= 0
    a, b = jnp.where(positive, plus, minus) * 0.25, jnp.where(positive, minus, plus) * 0.25
    return positive, a, b, 1 / weight_like(weight, residual), jnp.abs(residual)


def _spheres(positive: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array) -> Spheres:
    beyond = jnp.where(_is_sphere(a, b, c, r), r - 0.75 * b - c, 0)
    return Spheres(jnp.where(positive, beyond, -beyond), b)


def _solve(
    positive: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array, *, in_kernel: bool = False
) -> jax.Array:
    """The root u of the mirrored problem, infinite on a sphere, with the sign of the residual."""
    # One array comes out of the costly part; the barrier keeps a compiler from doing that part again for
    # each of the arrays that follow from it, where they are many. With its sign, so that they follow from it
    # alone.
    ratio = _rough_ratio if in_kernel else _joined_ratio if compiles_each_kernel() else jnp.divide
    above, below = _root(a, b, c, r, ratio)
    root = jnp.where(positive, above, -above) / below
    return root if in_kernel or root.size <= FEW else jax.lax.optimization_barrier(root)


_Ratio = Callable[[jax.typing.ArrayLike, jax.Array], jax.Array]


def _rough_ratio(x: jax.typing.ArrayLike, y: jax.Array) -> jax.Array:
    """A number over a positive one, to six digits: three instructions of a GPU, not the ten of a division."""
    return jax.lax.rsqrt(y) ** 2 * x


def _joined_ratio(x: jax.typing.ArrayLike, y: jax.Array) -> jax.Array:
    """A number over a positive one; on a CPU, in one kernel with what reads it, if that is more than one.

    The compiler would write quotients and roots out, and whatever they follow from, and begin a kernel for
    each: that takes longer to compile than one for all, and no less time to run. An absolute value it holds
    to be cheap.
    """
    return jnp.abs(x / y)


def _root(
    a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array, ratio: _Ratio
) -> tuple[jax.Array, jax.Array]:
    """The root u of the mirrored problem, as a fraction; infinite where the answer is a sphere."""
    sphere = _is_sphere(a, b, c, r)
    a = jnp.maximum(a, _least(b, c, r))
    u = _guess(a, b, c, r, ratio)
    for _ in range(2 if r.dtype == jnp.float64 else 1):
        u = ratio(*_halley(u, a, b, c, r, ratio))
    above, below = _halley(u, a, b, c, r, ratio)
    return jnp.where(sphere, jnp.inf, above), below


def _least(b: jax.Array, c: jax.Array, r: jax.Array) -> jax.Array:
    """With ``a`` as small as this, it matters less than rounding."""
    floor = 1e-48 if r.dtype == jnp.float64 else 1e-22
    return floor * jnp.maximum(jnp.maximum(b, c), jnp.maximum(r, jnp.finfo(r.dtype).tiny / floor))


def _is_sphere(a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array) -> jax.Array:
    """Whether the root is at infinity."""
    return (a < _least(b, c, r)) & (r > 0.75 * b + c)


def _guess(a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array, ratio: _Ratio) -> jax.Array:
    """The root within a factor of two; exact to first order for small roots. Squares nothing."""
    k = 2 * b + c
    mu = jnp.clip(ratio(k, jnp.maximum(0.75 * b + c, jnp.finfo(r.dtype).tiny)), 1, 8 / 3)
    # mu a u^3 + (1 + 2 mu) a u^2 + slope u = r; only the slope can be negative
    slope = 2 * a + k - r * mu
    # Two quadratics: of the lower terms where the slope is positive, of the higher ones where it is not.
    # Without a branch, so that rounding cannot take one side here and the other there.
    up, down = jnp.maximum(slope, 0), jnp.maximum(-slope, 0)
    middle, root = (1 + 2 * mu) * a, jnp.abs(jnp.sqrt(a))  # see `_joined_ratio`
    lower = ratio(2 * r, up + _rough_hypot(up, 4.5 * root * jnp.sqrt(r)) + jnp.finfo(r.dtype).tiny)
    higher = ratio(2 * down, middle + _rough_hypot(middle, 2.7 * root * jnp.sqrt(down)))
    return jnp.maximum(higher, jnp.minimum(lower, _rough_cbrt(ratio(0.6 * r, a))))  # 0.6: about 1 / mu


def _rough_hypot(x: jax.Array, y: jax.Array) -> jax.Array:
    """The hypotenuse within eight per cent; exact where one side is far longer."""
    return jnp.maximum(x, y) + 0.4 * jnp.minimum(x, y)


def _rough_cbrt(x: jax.Array) -> jax.Array:
    """The cube root within a few per cent: a third of the exponent, read as an integer."""
    if x.dtype != jnp.float32:
        return jnp.cbrt(x)
    bits = jax.lax.bitcast_convert_type(x, jnp.int32).astype(jnp.float32)
    return jax.lax.bitcast_convert_type((bits * (1 / 3)).astype(jnp.int32) + 709921077, jnp.float32)


def _halley(
    u: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, r: jax.Array, ratio: _Ratio
) -> tuple[jax.Array, jax.Array]:
    """One step of Halley's method; at most a factor of eight, which only guards against rounding.

    The result is a fraction. With its division last, a compiler keeps the quotient: it does not take
    divisions for cheap enough to do them again wherever the quotient is used.
    """
    one, two = 1 + u, 1 + 2 * u
    both = ratio(1, one * two)
    i1, i2 = both * two, both * one
    b2, c1 = b * (i2 * i2), c * i1
    b3, c2 = b2 * i2, c1 * i1
    value = u * (a * (2 + u) + b2 * (2 + 3 * u) + c1) - r
    slope = 2 * one * (a + b3) + c2
    curve = a - (b3 * i2) * (5 + 4 * u) - c2 * i1  # half of it
    flat = ratio(1, slope)
    newton = value * flat
    below = jnp.maximum(1 - newton * (curve * flat), 0.25)
    reach = u * below
    return jnp.clip(reach - newton, 0.125 * reach, 8 * reach), below


@dataclasses.dataclass(frozen=True)
class Dot(Primitive):
    r"""The dot product of two vectors.

    Set: :math:`\{(x, y, z) : z = \langle x, y \rangle\}`. The projection is

    .. math:: x + y \leftarrow \frac{x + y}{1 - \lambda}, \quad x - y \leftarrow \frac{x - y}{1 + \lambda},
        \quad z \leftarrow z - \frac\lambda w

    with the `multiplier` :math:`\lambda`. Where :math:`x = \pm y` the answer may be a whole sphere; then the
    point in the direction of :math:`x` is taken, or of :math:`(1, \dots, 1)` where that is zero.

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
    smooth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.fixed not in (None, 0, 1):
            raise InputError(f"dot: fixed must be None, 0 or 1, the input held constant; got {self.fixed!r}.")

    def move_edges(self, at: Place, shifts: Arrays, goal: jax.Array | None) -> tuple[Arrays, jax.Array]:
        rule = self if at.fixed is None else Dot(at.fixed)
        return Primitive.move_edges(rule, at, shifts, goal)

    def forward(self, *inputs: jax.Array) -> jax.Array:
        x, y = inputs
        dtype = jnp.result_type(x, y)
        if x.shape[-1] == y.shape[-1] == 1:  # nothing to sum
            x, y = x.squeeze(-1), y.squeeze(-1)
            return (wide(x) * wide(y)).astype(dtype)
        return jnp.sum(wide(x) * wide(y), axis=-1).astype(dtype)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
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
            # Not by `Multiplier.own` and `other`: they cancel where x and y are nearly equal or opposite.
            plus, minus = x + y, x - y
            mirrored = _mirrored(*sums_of_squares(plus, minus, lambda v: jnp.sum(v, axis=-1)), residual, w)
            positive, root, at = mirrored[0], _solve(*mirrored), _spheres(*mirrored)
            half, nothing = jnp.sqrt(jnp.abs(at.beyond)), at.vanish
            lean = jnp.where(nothing, 0, half * jax.lax.rsqrt(jnp.where(nothing, 1, at.square)))
            sphere = jnp.isinf(root)
            u = jnp.where(sphere, 0, jnp.abs(root))
            near = jnp.where(mirrored[1] > 0, u, 0)[..., None]  # what is only rounding does not grow
            far = jnp.where(sphere, -0.5, -u / (1 + 2 * u))[..., None]
            grown = jnp.where(positive[..., None], plus, minus)
            rest = jnp.where(positive[..., None], minus, plus)
            added = jnp.where(nothing, 2 * half / math.sqrt(x.shape[-1]), 0)
            grown = near * grown + lean[..., None] * rest + added[..., None]
            shrunk = far * rest
            sign = jnp.where(positive, 1, -1).astype(u.dtype)
            moves = (grown + shrunk) / 2, sign[..., None] * (grown - shrunk) / 2
            back = sign * jnp.where(sphere, 1, u / (1 + u)) / w
        kept = tuple(m.astype(i.dtype) for m, i in zip(moves, inputs, strict=True))
        return kept, -back.astype(output.dtype)
