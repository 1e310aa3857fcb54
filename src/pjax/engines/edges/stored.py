"""Edges, every one of which is a number: the definition."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pjax.engines.edges.combination import Linear
from pjax.engines.point import Problem
from pjax.graph.nodes import Node
from pjax.rules.base import Moves, total_squares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stored:
    """One number per edge; for a contraction written out to ``(*out, K)``."""

    arrays: tuple[Linear, ...]

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Stored":
        """All edges at their sources' values."""
        full = [problem.zeros(node.index, i) if s is None else s for i, s in enumerate(shifts)]
        assert node.rule is not None
        return cls(tuple(Linear.of(node.rule.expand(i, x)) for i, x in enumerate(full)))

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:  # noqa: ARG002 - one interface
        """For each slot of input i, the sum over its edges."""
        assert node.rule is not None
        return node.rule.gather(i, self.arrays[i].value)

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Stored", Moves]:
        """The edges after their node projected."""
        assert node.rule is not None
        shifts = tuple(a.value for a in self.arrays)
        moves, move = node.rule.move_edges(problem.place(node.index), shifts, goal)
        after = Stored(tuple(a + m for a, m in zip(self.arrays, moves, strict=True)))
        return after, Moves(moves, move, total_squares(moves))

    def squared(self, problem: Problem, node: Node) -> jax.Array:  # noqa: ARG002 - one interface
        """The sum of the squares of all edges."""
        return total_squares([a.value for a in self.arrays if a.terms])

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Stored"]]) -> "Stored":
        count = len(terms[0][1].arrays)
        return Stored(tuple(Linear.combine((c, edges.arrays[i]) for c, edges in terms) for i in range(count)))

    def settled(self, history: int) -> tuple["Stored", jax.Array]:  # noqa: ARG002 - one interface
        return Stored(tuple(a.settled() for a in self.arrays)), jnp.zeros((), jnp.float32)
