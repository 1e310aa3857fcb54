"""Alternating projections."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from pjax.engines.consensus import Cycle, State
from pjax.engines.edges.space import AllEdges, EdgeIteration, EdgeSpace
from pjax.engines.point import Problem
from pjax.optim.solver import EdgeSolver, Iteration, Moved, method


@method
class Projecting(EdgeSolver):
    """Projects onto one set after the other.

    Args:
        extrapolate: ``None``: a node goes to the mean of what its readers ask for, as in the paper;
            ``"tensor"``: beyond it, by a factor for the whole node that is the larger, the fewer of its
            readers ask for a move at all (see `pjax.engines.extrapolation`). Converges as well where the sets
            are convex and meet. Within `Outer`, whose transformation chooses the steps of the parameters
            itself, these are left out.
    """

    extrapolate: Literal[None, "tensor"] = None

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        beyond = self.extrapolate is not None
        if self.edges == "implicit":
            return Cycle(problem, extrapolate=beyond, measure=measure)

        def advance(space: EdgeSpace, z: AllEdges) -> tuple[AllEdges, Callable[[], jax.Array]]:
            squared = jnp.zeros((), problem.dtype)
            for k in range(len(problem.partition.sets)):
                after, moved = space.measured(k, z)
                z = space.extrapolated(k, z, after) if beyond else after
                squared += moved
            return z, lambda: squared

        return EdgeIteration(EdgeSpace(problem), advance, measure=measure)


@method
class AlternatingProjections(Projecting):
    """Projects onto one set after the other: z ← P₂(P₁(z)).

    The first target is in the first set. Converges to a point of the intersection where the sets are convex
    and meet (Bregman, 1965). In node-sized memory, exactly.
    """

    name: ClassVar[str] = "AP"

    def moves_in_parts(self, make: Callable[[Any], Problem], arrays: Any) -> Moved:
        """With implicit edges and no extrapolation exactly what the whole batch would do.

        Within a step no node sees what another part asks of a parameter. So each part makes its step from the
        same parameters, and these then are at the mean of where the parts would have them.
        """
        if self.edges != "implicit" or self.extrapolate:
            return super().moves_in_parts(make, arrays)

        def apart(state: Any) -> tuple[Any, Any]:
            """Parameters, and the rest."""
            mine = tuple({v: x for v, x in d.items() if v in parameters} for d in state[:2])
            rest = tuple({v: x for v, x in d.items() if v not in parameters} for d in state[:2])
            return mine, (*rest, state[2])

        def begin(arrays: Any) -> Any:
            problem = make(arrays)
            iteration = self.iteration(problem)
            state = iteration.start()
            return state, iteration.parameters(state), problem.loss

        states, parameters, losses = jax.lax.map(begin, arrays)
        mine, rest = apart(states)
        mine = jax.tree.map(lambda x: x[0], mine)

        def step(_: Any, carry: Any) -> Any:
            mine, rest = carry

            def part(total: Any, given: Any) -> tuple[Any, Any]:
                arrays, (value, message, squared) = given
                state = State(mine[0] | value, mine[1] | message, squared)
                moved, rest = apart(self.iteration(make(arrays)).step(state))
                return jax.tree.map(jnp.add, total, moved), rest

            total, rest = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, mine), (arrays, rest))
            return jax.tree.map(lambda x: x / len(losses), total), rest

        (value, message), _ = jax.lax.fori_loop(0, self.steps_per_update, step, (mine, rest))
        ends = value | message
        return Moved({v: ends[v] for v in parameters}, {}, jnp.mean(losses), [])
