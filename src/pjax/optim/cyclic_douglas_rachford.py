"""Cyclic Douglas-Rachford."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.engines.edges import EdgeSpace, State, combine
from pjax.engines.iteration import EdgeIteration, Iteration, first_projection
from pjax.engines.point import Problem
from pjax.graph.nodes import Graph
from pjax.graph.partition import Partition, cyclic_layers
from pjax.optim.solver import Solver


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicDouglasRachford(Solver):
    """A Douglas-Rachford step between each layer and the next, in a cycle (Borwein, Tam, 2014).

    z ← T_{m,1}(…T_{2,3}(T_{1,2}(z))), with T_{i,j} = (1 + R_j R_i)/2. Stores the edges.
    """

    name: ClassVar[str] = "CDR"

    def partition(self, graph: Graph) -> Partition:
        return cyclic_layers(graph)

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        return EdgeIteration(EdgeSpace(problem), _cycle, shadow=first_projection, measure=measure)


def _cycle(space: EdgeSpace, z: State, measure: bool) -> tuple[State, jax.Array]:
    count = len(space.problem.partition.sets)
    squared = jnp.zeros((), space.problem.dtype)
    for i in range(count):
        first = space.project(i, z).state
        second = space.project((i + 1) % count, combine((2, first), (-1, z))).state
        if measure:
            squared += space.distance(first, second)
        z = combine((1, z), (1, second), (-1, first))
    return z, squared
