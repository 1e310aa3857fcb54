"""Methods that are written as maps on edges."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pjax.engines.edges.space import EdgeSpace, State
from pjax.graph.nodes import Node


class EdgeState(NamedTuple):
    edges: State
    squared: jax.Array
    neglected: dict[int, jax.Array]


Advance = Callable[[EdgeSpace, State, bool], tuple[State, jax.Array]]
"""A step on edges: from a space, a state and whether to measure, to a state and a squared violation."""

Shadow = Callable[[EdgeSpace, State], State]
"""From a state to the point that the method converges to."""


def first_projection(space: EdgeSpace, z: State) -> State:
    """The shadow of Douglas-Rachford and its relatives: the projection onto the first set."""
    return space.project(0, z).state


class EdgeIteration:
    """A method that is written as a map on edges."""

    def __init__(
        self, space: EdgeSpace, advance: Advance, *, shadow: Shadow | None = None, measure: bool = False
    ) -> None:
        """``shadow`` leads from the state to the solution, where that is not the state itself."""
        self._space = space
        self._advance = advance
        self._shadow = shadow
        self._measure = measure

    def start(self) -> EdgeState:
        zero = jnp.zeros((), self._space.problem.dtype)
        nothing = {v: jnp.zeros((), jnp.float32) for v in self._space.cut}
        return EdgeState(self._space.kept(self._space.start()), zero, nothing)

    def step(self, state: EdgeState) -> EdgeState:
        space, edges = self._space.inside(state.edges)
        edges, squared = self._advance(space, edges, self._measure)
        edges, neglected = space.settle(edges)
        worst = {v: jnp.maximum(state.neglected[v], x) for v, x in neglected.items()}
        return EdgeState(space.kept(edges), squared, worst)

    def values(self, state: EdgeState) -> dict[int, jax.Array]:
        return self._means(state, lambda node: not node.is_target)

    def parameters(self, state: EdgeState) -> dict[int, jax.Array]:
        return self._means(state, lambda node: node.is_parameter)

    def _means(self, state: EdgeState, wanted: Callable[[Node], bool]) -> dict[int, jax.Array]:
        edges = self._space.used(state.edges)
        edges = edges if self._shadow is None else self._shadow(self._space, edges)
        graph = self._space.problem.graph
        nodes = [n.index for n in graph.nodes if wanted(n) and graph.readers[n.index]]
        return self._space.means(nodes, edges)

    def agreed(self, state: EdgeState, mean: Callable[[jax.Array], jax.Array]) -> EdgeState:
        apart = {v: mean(move) - move for v, move in self.parameters(state).items()}
        moved = self._space.shifted(self._space.used(state.edges), apart)
        return state._replace(edges=self._space.kept(moved))
