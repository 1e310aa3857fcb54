r"""The nearest point of a curve: the minimiser of :math:`t^2 + a(t)^2` over one number.

Rules whose projection comes down to one unknown share this search. Nothing is assumed of :math:`a`: it may
have kinks, jumps, poles, many minima, and be undefined (NaN or infinite) in places. Whatever it is, the
minimiser lies within :math:`|t| \le \sqrt{s^2 + a(s)^2}` of zero, for every :math:`s` that one can think of.

The search looks at points of that bracket, close together near given centres and sparse far from them, keeps
the cells that hold a minimum or a change of sign, and narrows them. The best is finished twice: by values
alone, which finds jumps and borders to the last digit, and by Newton's method on the derivative, which finds
smooth minima to the last digit. All elements are searched at once, in loops of fixed length.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

Curve: TypeAlias = Callable[[jax.Array], jax.Array]
Slopes: TypeAlias = Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]

_SIDE = 24  # points on either side of a centre
_ROUGH = 24  # rounds that narrow each cell
_STEPS = 12  # of Newton's method
_GOLDEN = 0.381966


class Cell(NamedTuple):
    """An interval with a point in it, and its cost."""

    low: jax.Array
    middle: jax.Array
    high: jax.Array
    cost: jax.Array


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


def nearest(
    rough: Curve,
    exact: Slopes,
    seeds: jax.Array,
    centres: Sequence[jax.Array],
) -> jax.Array:
    """The number ``t`` that minimises ``t² + a(t)²``.

    Args:
        rough: the function ``a``, cheaply.
        exact: ``a`` as accurately as possible, with its first and second derivative.
        seeds: points to try, stacked; the first must be zero. Each of them bounds the search.
        centres: points near which to look closely, besides zero.
    """

    def cost(t: jax.Array) -> jax.Array:
        return length(t, rough(t))

    zero, costs = seeds[0], cost(seeds)
    chosen = jnp.argmin(costs, axis=0)[None]
    start, least = (jnp.take_along_axis(v, chosen, axis=0)[0] for v in (seeds, costs))
    lost = 4 * (1 + sum(jnp.abs(centre) for centre in centres))  # no seed has a value
    reach = jnp.where(jnp.isfinite(least), least, lost)
    fine, above = _first_step(exact, zero)
    eps = jnp.finfo(zero.dtype).eps
    places = jnp.stack([zero, *centres, zero])

    def look(i: jax.Array, best: Cell) -> Cell:
        around = jnp.where(i < len(places), places[jnp.minimum(i, len(places) - 1)], best.middle)
        radius = jnp.minimum(reach, best.cost)
        radius = jnp.where(radius > 0, radius, 1)
        close = jnp.where((i == 0) | (i == len(places) - 1), fine, 0)
        first = jnp.clip(close * 0.7**i, eps * radius, radius / 1024)  # other points each time
        cells = _cells(cost, rough, jnp.clip(around, -radius, radius), radius, first)
        narrow = _narrow(cost, cells, _ROUGH)
        for k in range(cells.cost.shape[0]):
            better = narrow.cost[k] < best.cost
            found = Cell(cells.low[k], narrow.middle[k], cells.high[k], narrow.cost[k])
            best = Cell(*(jnp.where(better, new, old) for new, old in zip(found, best, strict=True)))
        return best

    best = jax.lax.fori_loop(0, len(places) + 1, look, Cell(start - reach, start, start + reach, least))
    rounds = 72 if zero.dtype == jnp.float64 else 36
    end = _narrow(cost, best, rounds).middle
    starts = jnp.stack([zero, end])
    reach = jnp.maximum(reach, above)  # the rough value may be lost in rounding
    lows, highs = jnp.stack([-reach, best.low]), jnp.stack([reach, best.high])
    ends, costs, slopes = _polish(exact, starts, lows, highs)
    return jnp.where(_better(costs[1], slopes[1], costs[0], slopes[0]), ends[1], ends[0])


def _first_step(exact: Slopes, zero: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The scale of the smallest moves: a part of the way that a straight line has to go; and ``|a|``."""
    a, b, _ = exact(zero)
    step = jnp.abs(_newton(zero, a, b, jnp.zeros_like(a))) / 16
    return jnp.where(jnp.isfinite(step), step, 0), jnp.where(jnp.isfinite(a), jnp.abs(a), 0)


def _newton(t: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """The step ``-(t + a b) / (1 + b² + a c)``; without ``c`` where that is not downhill.

    Scaled so that nothing overflows.
    """
    scale = 1 / jnp.maximum(1, jnp.abs(b))
    slope = t * scale + a * (b * scale)
    straight = scale + b * (b * scale)
    bend = straight + a * (c * scale)
    return -slope / jnp.where(bend > 0.1 * straight, bend, straight)


def _cells(cost: Curve, rough: Curve, around: jax.Array, radius: jax.Array, first: jax.Array) -> Cell:
    """Cells to look into, stacked: the least minimum, the first one, the first crossing, on both sides.

    Args:
        cost: of a point.
        rough: the function.
        around: where points lie close together.
        radius: as far from zero as points go.
        first: the distance of the first points from there.
    """
    growth = jnp.log(radius / first) / (_SIDE - 1)
    State: TypeAlias = tuple[Cell, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]

    def step(i: jax.Array, state: State) -> State:
        cells, before, before_cost, last, last_cost, last_sign = state
        j = i - _SIDE
        size = jnp.where(j == 0, 0, jnp.sign(j) * first * jnp.exp(growth * (jnp.abs(j) - 1)))
        t = jnp.clip(around + size, -radius, radius)
        a = rough(t)
        ended = i > 2 * _SIDE  # after the last point there is nothing
        here, sign = jnp.where(ended, jnp.inf, length(t, a)), jnp.where(ended, 0, jnp.sign(a))
        lowest = (last_cost < before_cost) & (last_cost <= here)
        away = jnp.abs(last) > first
        ahead = jnp.minimum(jnp.abs(last), jnp.abs(t))
        keys = (
            jnp.where(lowest, last_cost, jnp.inf),
            jnp.where(lowest & away, jnp.abs(last), jnp.inf),
            jnp.where(last_sign * sign < 0, ahead, jnp.inf),
        )
        right = jnp.stack([last > 0, last > 0, last + t > 0])
        key = jnp.stack(keys)
        key = jnp.concatenate([jnp.where(right, jnp.inf, key), jnp.where(right, key, jnp.inf)])
        lows = jnp.stack([before, before, last] * 2)
        middles = jnp.stack([last, last, jnp.where(here < last_cost, t, last)] * 2)
        better = key < cells.cost
        found = Cell(lows, middles, jnp.broadcast_to(t, lows.shape), key)
        cells = Cell(*(jnp.where(better, new, old) for new, old in zip(found, cells, strict=True)))
        return cells, last, last_cost, t, here, sign

    nothing = jnp.full_like(radius, jnp.inf)
    lanes = jnp.zeros((6, *radius.shape), radius.dtype)
    state = (Cell(lanes, lanes, lanes, lanes + jnp.inf), -radius, nothing, -radius, nothing, 0 * radius)
    cells, *_ = jax.lax.fori_loop(0, 2 * _SIDE + 2, step, state)
    return cells._replace(cost=cost(cells.middle))


def _narrow(cost: Curve, cell: Cell, rounds: int) -> Cell:
    """Golden section: the middle is never worse than it was."""

    def step(_: jax.Array, cell: Cell) -> Cell:
        low, middle, high, least = cell
        up = high - middle > middle - low
        probe = middle + _GOLDEN * jnp.where(up, high - middle, low - middle)
        there = cost(probe)
        better = there < least
        return Cell(
            jnp.where(better & up, middle, jnp.where(~better & ~up, probe, low)),
            jnp.where(better, probe, middle),
            jnp.where(better & ~up, middle, jnp.where(~better & up, probe, high)),
            jnp.minimum(there, least),
        )

    return jax.lax.fori_loop(0, rounds, step, cell)


def _better(cost: jax.Array, slope: jax.Array, least: jax.Array, flattest: jax.Array) -> jax.Array:
    """Of points whose costs cannot be told apart, the one with the smaller derivative is the better."""
    noise = 4 * jnp.finfo(cost.dtype).eps
    return (cost < least * (1 - noise)) | ((cost <= least * (1 + noise)) & (slope < flattest))


def _polish(
    exact: Slopes, start: jax.Array, low: jax.Array, high: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Newton's method in a bracket. Returns the best point, its cost, and the size of the derivative."""

    def step(_: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        t, low, high, best, least, flattest = state
        a, b, c = exact(t)
        here = length(t, a)
        scale = 1 / jnp.maximum(1, jnp.abs(b))
        slope = t * scale + a * (b * scale)
        size = jnp.abs(slope)
        better = _better(here, size, least, flattest)
        best = jnp.where(better, t, best)
        flattest = jnp.where(better, size, flattest)
        least = jnp.where(better, here, least)
        low, high = jnp.where(slope < 0, t, low), jnp.where(slope > 0, t, high)
        ahead = t + _newton(t, a, b, c)
        inside = (ahead >= low) & (ahead <= high)
        return jnp.where(inside, ahead, (low + high) / 2), low, high, best, least, flattest

    worst = jnp.full_like(start, jnp.inf)
    state = jax.lax.fori_loop(0, _STEPS, step, (start, low, high, start, worst, worst))
    return state[3], state[4], state[5]
