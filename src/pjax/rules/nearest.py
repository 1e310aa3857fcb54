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
_KNOTS = (1e-2, 0.2, 20.0, 1e3, 1e7)
"""Distances from a centre between which points are evenly spread, by their logarithms."""
_COUNTS = (4, 3, 24, 6, 2, 1)
"""How many points there are on one side up to these distances, and beyond."""


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


def finite(x: jax.Array) -> jax.Array:
    """The nearest finite numbers; zero for what is none."""
    most = jnp.asarray(jnp.finfo(x.dtype).max, x.dtype)
    return jax.lax.select(x == x, jax.lax.clamp(-most, x, most), jax.lax.full_like(x, 0))


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
    beside = 0.75 * close[1:]
    seeds = jnp.concatenate([seeds, middles[1:], middles[1:] - beside, middles[1:] + beside])
    least, seed = _least(length(seeds, curve(seeds)), seeds)
    lost = 4 * (1 + jnp.sum(jnp.abs(middles), axis=0))  # no seed has a value
    first = _Rays(middles, close, jnp.minimum(jnp.where(least < np.inf, least, lost), limit))

    def shrink(i: jax.Array, radius: jax.Array) -> jax.Array:
        t = first.at(first.sides, first.middle(i))
        return jnp.minimum(radius, jnp.min(length(t, curve(t)), axis=(0, 1)))

    radius = jax.lax.fori_loop(0, 2 * len(_COUNTS) + 1, shrink, least)
    radius = jnp.minimum(jnp.where(radius < np.inf, radius, lost), limit)
    size = jnp.maximum(radius, _TINY)
    found = _descend(slopes, size, *_pieces(curve, _Rays(middles, close, radius), size))
    costs = length(found.t, curve(found.t))
    cost = jnp.min(costs, axis=0)
    # Of those that cannot be told apart, the one with the smallest derivative.
    alike = costs <= cost * (1 + 4 * jnp.finfo(cost.dtype).eps)
    steep = jnp.nan_to_num(jnp.abs(found.slope), nan=np.finfo(cost.dtype).max)  # none at a border
    _, end = _least(jnp.where(alike, steep, np.inf), found.t)
    t = jnp.where(cost <= least, end, seed)
    return t, curve(t)  # compilers may decide twice, and not alike, which point is the better: ask the curve


_TINY = 1e-30


def _least(key: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Along the first axis, the least key, and what the other arrays are there."""

    none = (jnp.asarray(np.inf, key.dtype), *(jnp.zeros((), v.dtype) for v in arrays))
    return tuple(jax.lax.reduce((key, *arrays), none, _better, (0,)))


class _Rays:
    """Points on both sides of every centre, ever farther away, between bounds."""

    def __init__(self, middles: jax.Array, close: jax.Array, radius: jax.Array) -> None:
        far = radius + jnp.minimum(jnp.abs(middles), radius)
        close = jnp.where(close > 0, jnp.minimum(close, far / 1024), 1e-24 * far)
        low, high = jnp.log(close), jnp.log(far)
        shares = np.cumsum(_COUNTS) / sum(_COUNTS)
        knotted = (far > _KNOTS[1]) & jnp.asarray(np.arange(len(middles)) > 0).reshape(-1, *[1] * radius.ndim)
        between = [
            jnp.where(knotted, jnp.clip(np.log(knot), low, high), low + share * (high - low))
            for knot, share in zip(_KNOTS, shares[:-1], strict=True)
        ]
        knots = jnp.stack([low, *between, high])
        counts = jnp.asarray(_COUNTS, radius.dtype).reshape(-1, *[1] * middles.ndim)
        self.knots = jnp.where(far > 0, jnp.exp(knots), 0)
        """Distances between which points are evenly spread, by their logarithms."""
        self.ratios = jnp.exp(jnp.diff(knots, axis=0) / counts)
        """From each knot to the next, the ratio of a distance to the one before it."""
        self.inner, self.radius = jnp.clip(middles, -radius, radius), radius
        self.sides = jnp.asarray([1, -1], radius.dtype).reshape(-1, *[1] * middles.ndim)

    def at(self, sides: jax.Array, distance: jax.Array) -> jax.Array:
        """Points of shape ``(2, centres, ...)``."""
        return jnp.clip(self.inner + sides * distance, -self.radius, self.radius)

    def middle(self, i: jax.Array) -> jax.Array:
        """A distance: of every other number a knot, of the others the middle between two of them."""
        return jnp.sqrt(self.knots[i // 2]) * jnp.sqrt(self.knots[(i + 1) // 2])

    def step(self, i: jax.Array, distance: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A point by its number, and its distance, given that of the one before.

        The first is a little on the other side, the second is the centre.
        """
        distance = jnp.where(i < 3, self.knots[0], distance * self.ratios[jnp.asarray(_SEGMENTS)[i]])
        return self.at(jnp.where(i == 0, -1, jnp.where(i == 1, 0, 1)) * self.sides, distance), distance


_SEGMENTS = np.concatenate([[0, 0, 0], np.repeat(np.arange(len(_COUNTS)), _COUNTS), [len(_COUNTS) - 1]])
"""Between which knots each point is, and one more."""


class Seen(NamedTuple):
    """What is known of the points on one side, up to some point. Values are in units of the search."""

    distance: jax.Array
    """How far the last point is from its centre."""
    t: tuple[jax.Array, ...]
    """The last three points."""
    a: tuple[jax.Array, ...]
    """The values at the last four, not a number where there is none."""
    piece: tuple[jax.Array, ...]
    """How near the nearest piece comes, where, and how far from there to search."""
    point: tuple[jax.Array, ...]
    """Like `piece`, for the best point: as deep as a parabola through it and its neighbours goes."""


def _pieces(curve: Curve, rays: _Rays, size: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where to search: on each side the piece of a polygon nearest to the origin, and the best points.

    Returns:
        The lower bound of each piece, where to begin, and the upper bound.
    """
    most = float(jnp.finfo(size.dtype).max) ** 0.5 / 16  # of what can be squared

    def cost(t: jax.Array, a: jax.Array) -> jax.Array:
        return jnp.where(jnp.isnan(a), np.inf, (t / size) ** 2 + a * a)

    def look(i: jax.Array, seen: Seen) -> Seen:
        (t1, t2, t3), (a0, a1, a2, a3) = seen.t, seen.a
        # What is computed here is for the next time: compilers would repeat it for all that depends on it.
        new, distance = rays.step(i, seen.distance)
        value = jnp.clip(curve(new) / size, -most, most)
        before, after = (jnp.nan_to_num(jnp.abs(a)) for a in (a0, a3))
        known, ahead = jnp.nan_to_num(a1), jnp.nan_to_num(a2)
        # At a pole values are the larger the nearer they are to a piece, on either side of it.
        pole = (jnp.abs(known) > before) & (jnp.abs(ahead) >= after)
        along, rise = t2 - t1, ahead - known
        flat = along / size
        square = flat * flat + rise * rise
        part = -(t1 / size * flat + known * rise) / jnp.where(square > 0, square, 1)
        whole = ~(jnp.isnan(a1) | jnp.isnan(a2) | pole)
        part = jnp.where(whole, jnp.clip(part, 0, 1), jnp.where(jnp.isnan(a1), 1, 0))
        start = t1 + part * along
        near = (start / size) ** 2 + (known + part * rise) ** 2
        lost = (jnp.isnan(a1) & jnp.isnan(a2)) | (jnp.minimum(jnp.abs(known), jnp.abs(ahead)) >= most)
        near = jnp.where(lost | (i < 3), np.inf, near)
        low, here, high = cost(t1, a1), cost(t2, a2), cost(t3, a3)
        # Of dips that are nearer to the origin than to their centre the points about the origin know more.
        own = jnp.abs(t2 - rays.inner) <= jnp.abs(t2)
        dip = (here <= low) & (here <= high) & own & (i > _COUNTS[0] + 3)
        about = jnp.asarray(np.arange(t2.shape[1]) == 0).reshape(-1, *[1] * size.ndim)
        point = jnp.where(dip, here - _deeper(flat, (t3 - t2) / size, here - low, high - here), here)
        point = jnp.where(about | dip, point, np.inf)
        both = jnp.maximum(jnp.abs(along), jnp.abs(t3 - t2))  # on either side of the second point
        return Seen(
            distance,
            (t2, t3, new),
            (a1, a2, a3, value),
            _better(seen.piece, (near, start, 2 * jnp.where(part < 1, jnp.abs(along), both))),
            _better(seen.point, (point, t2, both)),
        )

    t, distance = rays.step(jnp.asarray(0), rays.knots[0])
    nothing, worst = jnp.full_like(t, np.nan), (jnp.full_like(t, np.inf), t, jnp.zeros_like(t))
    first = Seen(distance, (t,) * 3, (nothing,) * 4, worst, worst)
    seen = jax.lax.fori_loop(0, len(_SEGMENTS) + 1, look, first)
    sides = [v.reshape(-1, *size.shape) for v in seen.piece[1:]]
    start, width = (jnp.concatenate(v) for v in zip(sides, _least(*seen.point)[1:], strict=True))
    return start - width, start, start + width


def _deeper(before: jax.Array, after: jax.Array, fall: jax.Array, rise: jax.Array) -> jax.Array:
    """How far below the second of three points a parabola goes that passes through them."""
    down, up = fall / before, rise / after
    slope, bend = (down * after + up * before) / (before + after), (up - down) / (before + after)
    depth = slope * slope / (4 * bend)
    return jnp.where(depth < np.inf, depth, 0)


def _better(one: tuple[jax.Array, ...], other: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Number by number, the one of two whose first array is smaller."""
    return tuple(jnp.where(other[0] < one[0], new, old) for old, new in zip(one, other, strict=True))


def _descend(slopes: Slopes, size: jax.Array, low: jax.Array, start: jax.Array, high: jax.Array) -> Place:
    """The best point that is found downhill from the start: at first between bounds, then beyond them."""
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
        # So is one ahead from which it goes on downhill.
        flatter = (jnp.abs(slope) < jnp.abs(here.slope)) | ((slope < 0) == (here.slope < 0))
        better = (new < old) | ((new <= old * (1 + 2 * noise)) & flatter) | (i == 0)
        back = jnp.where(i == 0, jnp.where(slope > 0, low, high), here.t)
        onwards = (slope < 0) == (here.end > here.t)
        end = jnp.where(better, jnp.where(onwards & (i > 0), here.end, back), t)
        # Where it still goes downhill at a bound, the bound was too close.
        beyond = jnp.where(
            end == high, jnp.maximum(high, size), jnp.where(end == low, jnp.minimum(low, -size), end)
        )
        end = jnp.where(i == half, beyond, end)
        best = jnp.where(better, t, here.t)
        quick = (jnp.abs(change) < jnp.abs(t - here.t) / 2) | (i == 0) | (i == half)
        inside = better & quick & (jnp.sign(ahead - t) * jnp.sign(ahead - end) < 0)
        probe = jnp.where(inside, ahead, (best + end) / 2)
        return Place(best, jnp.where(better, a, here.a), jnp.where(better, slope, here.slope), end, probe)

    steps = _STEPS[start.dtype.name]
    half = steps // 2
    first = Place(start, start, start, start, start)
    return jax.lax.fori_loop(0, steps, step, first)
