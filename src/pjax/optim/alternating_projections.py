"""Alternating projections."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.edges import EdgeSpace, State
from pjax.optim._iteration import EdgeIteration, Iteration
from pjax.optim._solver import Solver
from pjax.problem import Problem
from pjax.sweep import Sweep


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlternatingProjections(Solver):
    """Projects onto one set after the other: z ← P₂(P₁(z)).

    The targets are in the first set. Converges to a point of the intersection where the sets are convex
    and meet (Bregman, 1965). In node-sized memory, exactly.
    """

    name: ClassVar[str] = "AP"

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        if self.edges == "implicit":
            return Sweep(problem, measure=measure)
        return EdgeIteration(EdgeSpace(problem), _cycle, measure=measure)


def _cycle(space: EdgeSpace, z: State, measure: bool) -> tuple[State, jax.Array]:  # noqa: ARG001
    squared = jnp.zeros((), space.problem.dtype)
    for k in range(len(space.problem.partition.sets)):
        z, _, moved = space.project(k, z)
        squared += moved
    return z, squared
