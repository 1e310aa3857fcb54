"""A search for points that beat a projection. It knows a function's values and slopes, and no formula.

Every routine works on many points at once: arrays hold one flattened point per row, and ``cost`` gives one
number per row. The best points seen so far are carried along. Loops are scans, to keep compilation short.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

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
    grid = jnp.concatenate([grid, -grid])
    widths = jnp.repeat(0.6 * 0.4 ** jnp.arange(fine, dtype=base.dtype), 5)
    zoom = widths * jnp.tile(jnp.linspace(-1, 1, 5, dtype=base.dtype), fine)
    # Steps are reach * absolute + (the step at the start of this width) * relative.
    absolute = jnp.concatenate([grid, jnp.zeros_like(zoom)])
    relative = jnp.concatenate([jnp.zeros_like(grid), 1 + zoom])
    fresh = jnp.concatenate([jnp.zeros_like(grid), jnp.tile(jnp.arange(5) == 0, fine)])

    def line(best: Best, direction: jax.Array) -> tuple[Best, None]:
        norm = jnp.linalg.norm(direction, axis=-1, keepdims=True)
        unit = direction / jnp.where(norm > 0, norm, 1)

        def attempt(
            state: tuple[jax.Array, jax.Array, jax.Array], plan: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
            (step, costs, centre), (absolute, relative, fresh) = state, plan
            centre = jnp.where(fresh > 0, step, centre)
            trial = absolute * reach + relative * centre
            trial_costs = cost(base + trial[:, None] * unit)
            better = trial_costs < costs
            return (jnp.where(better, trial, step), jnp.where(better, trial_costs, costs), centre), None

        still = jnp.zeros_like(reach)
        (step, costs, _), _ = jax.lax.scan(attempt, (still, cost(base), still), (absolute, relative, fresh))
        return keep(best, base + step[:, None] * unit, costs), None

    return jax.lax.scan(line, best, directions)[0]


def dense(cost: Cost, best: Best, base: jax.Array, unit: jax.Array, reach: jax.Array) -> Best:
    """Search one line thoroughly: many segments, the best point of each, and zoom in on every one of them.

    For functions of one number, which may have many minima. Segments are evenly spread over the reach, and
    crowded near ``base`` and near zero.
    """
    offset = jnp.sum(base * unit, axis=-1)
    along, across = jnp.linspace(0, 1, 41, dtype=base.dtype), reach + jnp.abs(offset)
    decades = jnp.linspace(-12, 0, 13, dtype=base.dtype)
    tens = 10 ** (decades[:-1, None] + along * 1.0)
    even = (jnp.arange(-12, 12, dtype=base.dtype)[:, None] + along) / 12
    nothing = jnp.zeros_like(tens)
    from_base = jnp.concatenate([tens, -tens, even, nothing, nothing])
    from_zero = jnp.concatenate([nothing, nothing, 0 * even, tens, -tens])
    shift = jnp.concatenate([0 * from_base[:-24, 0], jnp.ones(24, base.dtype)])

    def value(t: jax.Array) -> jax.Array:
        return cost(base + t[:, None] * unit)

    def attempt(state: Best, t: jax.Array) -> tuple[Best, None]:
        there = value(t)
        better = there < state[1]
        return (jnp.where(better, t, state[0]), jnp.where(better, there, state[1])), None

    def segment(best: Best, plan: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Best, None]:
        near, far, from_origin = plan
        points = near[:, None] * reach + far[:, None] * across - from_origin * offset
        worst = (points[0], jnp.full_like(reach, jnp.inf))
        state, _ = jax.lax.scan(attempt, worst, points)
        width = jnp.max(jnp.abs(jnp.diff(points, axis=0)), axis=0)

        def zoom(state: Best, size: jax.Array) -> tuple[Best, None]:
            around = state[0] + size * width * jnp.linspace(-1, 1, 8, dtype=base.dtype)[:, None]
            return jax.lax.scan(attempt, state, around)[0], None

        state, _ = jax.lax.scan(zoom, state, 0.35 ** jnp.arange(14, dtype=base.dtype))
        return keep(best, base + state[0][:, None] * unit, state[1]), None

    return jax.lax.scan(segment, best, (from_base, from_zero, shift))[0]


def around(
    cost: Cost, best: Best, radius: jax.Array, key: jax.Array, free: jax.Array, draws: int = 3
) -> Best:
    """Random points around the best one, at radii over eight decades."""
    radii = jnp.repeat(10 ** jnp.linspace(-7, 0, 8, dtype=radius.dtype), draws)

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
    steps: int,
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
        (points, costs, _), _ = jax.lax.scan(step, state, None, length=steps)
        return keep(best, points, costs), None

    return jax.lax.scan(run, best, starts)[0]


def descend(cost: Cost, best: Best, starts: jax.Array, steps: int) -> Best:
    """Gradient descent from many starts with Barzilai-Borwein steps."""
    slope = jax.grad(lambda points: jnp.sum(cost(points)))

    def step(
        state: tuple[Best, jax.Array, jax.Array, jax.Array], _: None
    ) -> tuple[tuple[Best, jax.Array, jax.Array, jax.Array], None]:
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
        return jax.lax.scan(step, state, None, length=steps)[0][0], None

    return jax.lax.scan(run, best, starts)[0]
