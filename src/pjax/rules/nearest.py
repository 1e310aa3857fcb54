r"""The nearest point of a curve: the minimiser of :math:`t^2 + a(t)^2` over one number.

Rules whose projection comes down to one unknown share this search. Nothing is assumed of :math:`a`: it may
have kinks, jumps, poles, many minima, and be undefined (NaN or infinite) in places. Whatever it is, the
minimiser lies within :math:`|t| \le \sqrt{s^2 + a(s)^2}` of zero, for every :math:`s` that one can think of.

The curve :math:`(t, a(t))` is looked at in points of that bracket, which crowd near zero and near other
centres. Joined by straight lines they make a polygon; on either side of every centre, the piece of it that
comes nearest to the origin is kept. In each of these, Newton's method goes downhill between two bounds, by
halves where it fails: smooth minima, kinks, jumps and borders are found to the last digit. All points are
looked at in one evaluation, and all pieces are searched in one loop, of fixed length, which keeps programs
short: a function may be expensive to compile.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Curve: TypeAlias = Callable[[jax.Array], jax.Array]
Slopes: TypeAlias = Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]

_STEPS = {"float32": 24, "float64": 52}  # of Newton's method, or by halves
_SIDE = 14  # points on one side of a centre


class Place(NamedTuple):
    """A point, and where to go from it."""

    t: jax.Array
    a: jax.Array
    slope: jax.Array
    """Half of the derivative of ``t² + a²``, divided by that of ``a`` where that is large."""
    end: jax.Array
    """The bound of the search, downhill from there."""
    probe: jax.Array
    """Where to look next."""


def length(t: jax.Array, a: jax.Array) -> jax.Array:
    """The square root of ``t² + a²`` without overflow; infinite where ``a`` is not a number."""
    t, a = jnp.abs(t), jnp.abs(a)
    large, small = jnp.maximum(t, a), jnp.minimum(t, a)
    ratio = small / jnp.where(large > 0, large, 1)
    total = large * jnp.sqrt(1 + ratio * ratio)
    return jnp.where(jnp.isfinite(total), total, jnp.inf)


def finite(asked: jax.Array, goal: jax.Array) -> jax.Array:
    """What is asked, in the type of the goal: zero where nothing is wanted, and never infinite."""
    most = jnp.finfo(goal.dtype).max
    asked = jnp.nan_to_num(asked.astype(goal.dtype), nan=0.0, posinf=most, neginf=-most)
    return jnp.where(goal == 0, 0, asked)


def derivatives(f: Curve, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The value and two derivatives, element by element."""
    one = jnp.ones_like(x)
    (value, slope), (_, bend) = jax.jvp(lambda v: jax.jvp(f, (v,), (one,)), (x,), (one,))
    return value, slope, bend


def nearest(
    curve: Curve,
    slopes: Slopes,
    seeds: jax.Array,
    centres: Sequence[tuple[jax.Array, jax.Array]],
    limit: float = np.inf,
) -> tuple[jax.Array, jax.Array]:
    """The number ``t`` that minimises ``t² + a(t)²``, and ``a(t)``.

    Args:
        curve: the function ``a``.
        slopes: the function with its first and second derivative.
        seeds: points to try, stacked; the first must be zero. Each of them bounds the search.
        centres: points near which to look closely, and how closely. The first must be zero.
        limit: how far from zero the minimiser can be.
    """
    middles, close = (jnp.stack(v) for v in zip(*centres, strict=True))
    seeds = jnp.concatenate([seeds, middles[1:]])
    values = curve(seeds)
    least, seed, value = _least(length(seeds, values), seeds, values)
    lost = 4 * (1 + jnp.sum(jnp.abs(middles), axis=0))  # no seed has a value
    points = _points(middles, close, jnp.minimum(jnp.where(least < np.inf, least, lost), limit))
    radius = jnp.minimum(least, jnp.min(length(points, curve(points)), axis=(0, 1)))
    radius = jnp.minimum(jnp.where(radius < np.inf, radius, lost), limit)
    points = _points(middles, close, radius)
    size = jnp.maximum(radius, _TINY)
    found = _descend(slopes, size, *_pieces(points, curve(points), size))
    cost, end, a = _least(length(found.t, found.a), found.t, found.a)
    kept = cost <= least
    return jnp.where(kept, end, seed), jnp.where(kept, a, value)


_TINY = 1e-30


def _least(key: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Along the first axis, the least key, and what the other arrays are there."""

    def pick(one: tuple[jax.Array, ...], other: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(jnp.where(other[0] < one[0], new, old) for old, new in zip(one, other, strict=True))

    none = (jnp.asarray(np.inf, key.dtype), *(jnp.zeros((), v.dtype) for v in arrays))
    return tuple(jax.lax.reduce((key, *arrays), none, pick, (0,)))


def _points(middles: jax.Array, close: jax.Array, radius: jax.Array) -> jax.Array:
    """Points on both sides of every centre: an array of shape ``(points, sides, ...)``.

    The first is a little on the other side, the second is the centre, and the others are ever farther away.
    """
    far = radius + jnp.minimum(jnp.abs(middles), radius)
    close = jnp.where(close > 0, jnp.minimum(close, far / 1024), 1e-24 * radius)
    ones = [1] * middles.ndim
    powers = jnp.asarray([0, 0, *np.linspace(0, 1, _SIDE)], radius.dtype).reshape(-1, 1, *ones)
    factors = jnp.asarray([-1, 0] + [1] * _SIDE, radius.dtype).reshape(-1, 1, *ones)
    factors = factors * jnp.asarray([1, -1], radius.dtype).reshape(-1, *ones)
    sizes = jnp.where(radius > 0, close * jnp.exp(powers * jnp.log(far / close)), powers)
    points = jnp.clip(jnp.clip(middles, -radius, radius) + factors * sizes, -radius, radius)
    return points.reshape(len(points), -1, *radius.shape)


def _pieces(points: jax.Array, values: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """On each side, the piece of a polygon that is nearest to the origin.

    Returns:
        The lower bound of each piece, where to begin, and the upper bound.
    """
    known = jnp.isfinite(values)
    t, a = points / size, jnp.clip(jnp.where(known, values / size, 0), -1e9, 1e9)
    (t0, t1), (a0, a1), (known0, known1) = ((v[:-1], v[1:]) for v in (t, a, known))
    along, rise = t1 - t0, a1 - a0
    square = along * along + rise * rise
    part = -(t0 * along + a0 * rise) / jnp.where(square > 0, square, 1)
    pole = _rises(jnp.abs(a))
    part = jnp.where(known0 & known1 & ~pole, jnp.clip(part, 0, 1), jnp.where(known0, 0, 1))
    there, above = t0 + part * along, a0 + part * rise
    near = jnp.where(known0 | known1, there * there + above * above, np.inf)
    before, after = jnp.concatenate([points[:1], points[:-2]]), jnp.concatenate([points[2:], points[-1:]])
    _, one, start, other = _least(near, before, points[:-1] + part * (points[1:] - points[:-1]), after)
    return jnp.minimum(one, other), start, jnp.maximum(one, other)


def _rises(size: jax.Array) -> jax.Array:
    """Whether the values at either side of a piece are the larger the nearer they are to it, as at a pole."""
    up = size[1:] > size[:-1]
    always = jnp.ones_like(up[:1])
    return jnp.concatenate([always, up[:-1]]) & jnp.concatenate([~up[1:], always])


def _descend(slopes: Slopes, size: jax.Array, low: jax.Array, start: jax.Array, high: jax.Array) -> Place:
    """The best point that is found downhill from the start, between the bounds."""
    noise = 4 * jnp.finfo(start.dtype).eps

    def cost(t: jax.Array, a: jax.Array) -> jax.Array:
        return (t / size) ** 2 + (a / size) ** 2

    def step(i: jax.Array, here: Place) -> Place:
        t = here.probe
        a, b, c = slopes(t)
        scale = 1 / jnp.maximum(1, jnp.abs(b))
        slope, straight = t * scale + a * (b * scale), scale + b * (b * scale)
        bend = straight + a * (c * scale)
        change = -slope / jnp.where(bend > straight / 8, bend, straight)
        ahead = t + change
        old, new = cost(here.t, here.a) * (1 - noise), cost(t, a)
        # Of points whose costs cannot be told apart, the one with the smaller derivative is the better.
        flatter = jnp.abs(slope) < jnp.abs(here.slope)
        better = (new < old) | ((new <= old * (1 + 2 * noise)) & flatter) | (i == 0)
        back = jnp.where(i == 0, jnp.where(slope > 0, low, high), here.t)
        onwards = (slope < 0) == (here.end > here.t)
        end = jnp.where(better, jnp.where(onwards & (i > 0), here.end, back), t)
        best = jnp.where(better, t, here.t)
        quick = (jnp.abs(change) < jnp.abs(t - here.t) / 2) | (i == 0)
        inside = better & quick & (jnp.sign(ahead - t) * jnp.sign(ahead - end) < 0)
        probe = jnp.where(inside, ahead, (best + end) / 2)
        return Place(best, jnp.where(better, a, here.a), jnp.where(better, slope, here.slope), end, probe)

    first = Place(start, start, start, start, start)
    return jax.lax.fori_loop(0, _STEPS[start.dtype.name], step, first)
