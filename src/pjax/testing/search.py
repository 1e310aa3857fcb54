"""A search for points that beat a projection. It knows a function's values and slopes, and no formula.

Every routine works on many points at once: arrays hold one flattened point per row, and ``cost`` gives one
number per row. The best points seen so far are carried along. Loops are scans, to keep compilation short.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from pjax.graph import jaxprs

Cost: TypeAlias = Callable[[jax.Array], jax.Array]
Best: TypeAlias = tuple[jax.Array, jax.Array]
"""Points ``(n, d)`` and their costs ``(n,)``."""


def keep(best: Best, points: jax.Array, costs: jax.Array) -> Best:
    """The better of the two, row by row."""
    better = costs < best[1]
    return jnp.where(better[:, None], points, best[0]), jnp.where(better, costs, best[1])


def along(
    cost: Cost, best: Best, base: jax.Array, directions: jax.Array, reach: jax.Array, fine: int
) -> Best:
    """Search lines through ``base``: a grid over ten decades both ways, then zoom in.

    This finds jumps and kinks that no derivative sees.
    """
    grid = 10 ** jnp.linspace(-9, 0.5, 6 * fine, dtype=base.dtype)
    steps = jnp.concatenate([grid, -grid])[:, None] * reach

    def line(best: Best, direction: jax.Array) -> tuple[Best, None]:
        norm = jnp.linalg.norm(direction, axis=-1, keepdims=True)
        unit = direction / jnp.where(norm > 0, norm, 1)
        widths = 0.6 * 0.4 ** jnp.arange(fine, dtype=base.dtype)
        return _zoom(cost, best, base, unit, steps, jnp.abs, widths), None

    return jax.lax.scan(line, best, directions)[0]


def dense(cost: Cost, best: Best, base: jax.Array, unit: jax.Array, reach: jax.Array) -> Best:
    """Search one line thoroughly: many segments, the best point of each, and zoom in on every one of them.

    For functions of one number, which may have many minima. Segments are evenly spread over the reach, and
    crowded near ``base`` and near zero.
    """
    offset = jnp.sum(base * unit, axis=-1)
    part, across = jnp.linspace(0, 1, 41, dtype=base.dtype), reach + jnp.abs(offset)
    tens = 10 ** (jnp.linspace(-12, -1, 12, dtype=base.dtype)[:, None] + part)
    even = (jnp.arange(-12, 12, dtype=base.dtype)[:, None] + part) / 12
    near, far = jnp.concatenate([tens, -tens, even]), jnp.concatenate([tens, -tens])
    segments = jnp.concatenate([near[..., None] * reach, far[..., None] * across - offset])
    widths = 0.35 ** jnp.arange(14, dtype=base.dtype)

    def segment(best: Best, steps: jax.Array) -> tuple[Best, None]:
        width = jnp.max(jnp.abs(jnp.diff(steps, axis=0)), axis=0)
        return _zoom(cost, best, base, unit, steps, lambda _: width, widths), None

    return jax.lax.scan(segment, best, segments)[0]


def _zoom(
    cost: Cost, best: Best, base: jax.Array, unit: jax.Array, steps: jax.Array, size: Cost, widths: jax.Array
) -> Best:
    """The best of some steps along a line, and then the best around it, in narrower and narrower parts.

    ``size`` is that of the first part, from the best step; ``widths`` are those of all parts next to it.
    """

    def attempt(state: Best, step: jax.Array) -> tuple[Best, None]:
        there = cost(base + step[:, None] * unit)
        better = there < state[1]
        return (jnp.where(better, step, state[0]), jnp.where(better, there, state[1])), None

    first = (steps[0], jnp.full_like(steps[0], jnp.inf))
    state, _ = jax.lax.scan(attempt, first, steps)
    length = size(state[0])

    def narrower(state: Best, width: jax.Array) -> tuple[Best, None]:
        nearby = state[0] + width * length * jnp.linspace(-1, 1, 8, dtype=base.dtype)[:, None]
        return jax.lax.scan(attempt, state, nearby)[0], None

    (step, costs), _ = jax.lax.scan(narrower, state, widths)
    return keep(best, base + step[:, None] * unit, costs)


def around(cost: Cost, best: Best, radius: jax.Array, key: jax.Array, free: jax.Array) -> Best:
    """Random points around the best one, three at each of eight radii over seven decades."""
    radii = jnp.repeat(10 ** jnp.linspace(-7, 0, 8, dtype=radius.dtype), 3)

    def attempt(best: Best, draw: tuple[jax.Array, jax.Array]) -> tuple[Best, None]:
        key, size = draw
        noise = jax.random.normal(key, best[0].shape, best[0].dtype) * free
        noise = noise / (jnp.linalg.norm(noise, axis=-1, keepdims=True) + 1e-300)
        points = best[0] + (size * radius)[:, None] * noise
        return keep(best, points, cost(points)), None

    return jax.lax.scan(attempt, best, (jax.random.split(key, len(radii)), radii))[0]


def levenberg(
    value: Cost,
    cost: Cost,
    best: Best,
    starts: jax.Array,
    origin: jax.Array,
    target: jax.Array,
    weight: jax.Array,
    free: jax.Array,
) -> Best:
    """Damped Gauss-Newton on ``|x - origin|^2 + weight (value(x) - target)^2``, from many starts."""

    State = tuple[jax.Array, jax.Array, jax.Array]

    def step(state: State, _: None) -> tuple[State, None]:
        points, costs, damping = state
        values, pull = jax.vjp(value, points)
        slope = pull(jnp.ones_like(values))[0] * free
        wanted = (origin - points) + (weight * (target - values))[:, None] * slope
        stiff = 1 + damping + weight * jnp.sum(slope**2, axis=-1)
        wanted = wanted - slope * (weight * jnp.sum(slope * wanted, axis=-1) / stiff)[:, None]
        trial = points + wanted / (1 + damping)[:, None]
        trial_costs = cost(trial)
        better = trial_costs < costs
        damping = jnp.where(better, jnp.where(damping < 0.01, 0, damping / 5), jnp.maximum(4 * damping, 0.1))
        points, costs = keep((points, costs), trial, trial_costs)
        return (points, costs, damping), None

    def run(best: Best, start: jax.Array) -> tuple[Best, None]:
        state = (start, cost(start), jnp.zeros_like(target))
        (points, costs, _), _ = jax.lax.scan(step, state, None, length=24)
        return keep(best, points, costs), None

    return jax.lax.scan(run, best, starts)[0]


def descend(cost: Cost, best: Best, starts: jax.Array) -> Best:
    """Gradient descent from many starts with Barzilai-Borwein steps."""
    slope = jax.grad(lambda points: jnp.sum(cost(points)))

    State = tuple[Best, jax.Array, jax.Array, jax.Array]

    def step(state: State, _: None) -> tuple[State, None]:
        best, points, old, size = state
        new = slope(points)
        change = new - old
        # the last step was -size * old
        product = -size * jnp.sum(old * change, axis=-1)
        square = jnp.sum(change * change, axis=-1)
        size = jnp.where((square > 0) & (product > 0), product / jnp.where(square > 0, square, 1), size)
        points = points - size[:, None] * new
        return (keep(best, points, cost(points)), points, new, size), None

    def run(best: Best, start: jax.Array) -> tuple[Best, None]:
        first = slope(start)
        size = jnp.full(start.shape[:1], 1e-4, start.dtype)
        state = (best, start - size[:, None] * first, first, size)
        return jax.lax.scan(step, state, None, length=100)[0][0], None

    return jax.lax.scan(run, best, starts)[0]


# --- How inexact a function of one number is as it is written: first-order analysis of rounding ---


def rounding(fn: Callable[[Any], Any], x: jax.Array) -> jax.Array:
    r"""How far off a value may be, in units of rounding: :math:`\sum_k |v_k \, \partial f / \partial v_k|`.

    The sum is over all that is computed on the way, each of which may be off by one part in the last digit.
    It is large where a function cancels inside: :math:`\log(1 + x^2)` is off by a unit of 1, not of itself.

    Args:
        fn: the function, row by row.
        x: where, one row for each value.

    >>> round(float(rounding(lambda x: jnp.log(1 + x * x), jnp.array([1e-3]))[0]), 3)
    1.0
    """
    closed = jaxprs.flat(fn, x)
    jaxpr = closed.jaxpr
    on_the_way = [v.aval for eqn in jaxpr.eqns for v in eqn.outvars]
    numbers = [aval for aval in on_the_way if jnp.issubdtype(aval.dtype, jnp.floating)]

    def bumped(*bumps: jax.Array) -> Any:
        left = iter(bumps)
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values[jaxpr.invars[0]] = x

        def read(v: Any) -> Any:
            return values[v] if jaxprs.is_variable(v) else v.val

        for eqn in jaxpr.eqns:
            for v, found in zip(eqn.outvars, jaxprs.bind(eqn, *map(read, eqn.invars)), strict=True):
                values[v] = found * (1 + next(left)) if jnp.issubdtype(found.dtype, jnp.floating) else found
        return read(jaxpr.outvars[0])

    value, pull = jax.vjp(bumped, *(jnp.zeros(aval.shape, aval.dtype) for aval in numbers))
    parts = (jnp.abs(part.reshape(len(x), -1)) for part in pull(jnp.ones_like(value)) if part.ndim)
    return sum((jnp.sum(jnp.where(part < jnp.inf, part, 0), axis=-1) for part in parts), jnp.zeros(len(x)))
