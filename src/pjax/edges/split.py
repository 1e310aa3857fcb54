"""The edges of a contraction: what its sources say, plus a number per edge."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax._devices import end_kernel
from pjax.contraction import Contraction
from pjax.edges.base import Base, combined, now
from pjax.graph import Node
from pjax.linear import Linear
from pjax.primitives.dot import visible
from pjax.problem import Moves, Problem, sum_and_difference, total_squares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Split:
    """The edges of a contraction as the values of its sources plus the rest, written out."""

    base: Base
    rest: tuple[Linear, Linear]
    """What the edges of each input have more, of shape ``(*out, K)``; nothing stands for zero."""

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Split":  # noqa: ARG003
        """All edges at their sources' values."""
        x, y = (None if s is None else Linear.of(s) for s in shifts)
        return cls((x, y), (Linear(()), Linear(())))

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:
        """For each slot of input i, the sum over its edges."""
        rule, base = node.rule, self.base[i]
        assert isinstance(rule, Contraction) and base is not None
        total = base.value * problem.edge_counts[node.index, i]
        return total + rule.gather(i, self.rest[i].value) if self.rest[i].terms else total

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Split", Moves]:
        """The edges after their contraction projected."""
        rule, v = node.rule, node.index
        assert isinstance(rule, Contraction) and goal is not None
        x, y = now(problem, node, self.base)
        dx, dy = (None if b is None else b.value for b in self.base)
        drift = problem.drift(v, dx, dy)
        product = problem.points[v] + drift
        norm = problem.norm(v, 0, dx) + problem.norm(v, 1, dy)
        mine, crossed = self._products(rule, x, y)
        plus, minus = sum_and_difference(norm + mine, product + crossed, norm + abs(mine))
        m = problem.solve(v, plus, minus, goal - drift - crossed)
        # Written out: a few numbers for each dot product, not to be found again for each of its edges.
        other = end_kernel(m.other)[..., None]
        whole = [
            rule.expand(i, at) + rest.value if rest.terms else rule.expand(i, at)
            for i, (at, rest) in enumerate(zip((x, y), self.rest, strict=True))
        ]

        def moved(i: int) -> Linear:
            along = end_kernel(m.along(i, rule.length))[..., None]
            return self.rest[i] + (along * visible(whole[i]) + other * whole[1 - i])

        moves = Moves((None, None), -m.lam / problem.weight(v), m.squared(plus, minus).sum())
        return Split(self.base, (moved(0), moved(1))), moves

    def _products(self, rule: Contraction, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        """What the rest adds to |x|² + |y|², and to ⟨x, y⟩. Term by term, so that no sum is written out."""
        first, second = self.rest
        if not first.terms:
            return 0, 0

        def aligned(i: int, at: jax.Array, rest: Linear) -> Any:
            return sum(factor * rule.align(i, at, r) for factor, r in rest.terms)

        def product(a: Linear, b: Linear) -> jax.Array:
            return (a.value * b.value).sum(-1)

        mine = (
            2 * (aligned(0, x, first) + aligned(1, y, second))
            + product(first, first)
            + product(second, second)
        )
        crossed = aligned(1, y, first) + aligned(0, x, second) + product(first, second)
        return end_kernel(mine), end_kernel(crossed)

    def squared(self, problem: Problem, node: Node) -> jax.Array:
        """The sum of the squares of all edges."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        x, y = (
            rule.expand(i, problem.zeros(node.index, i) if b is None or not b.terms else b.value)
            for i, b in enumerate(self.base)
        )
        return total_squares(
            w + (rest.value if rest.terms else 0) for w, rest in zip((x, y), self.rest, strict=True)
        )

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Split"]]) -> "Split":
        rest = (Linear.combine((c, edges.rest[i]) for c, edges in terms) for i in (0, 1))
        return Split(combined(terms), (next(rest), next(rest)))

    def written(self, problem: Problem, node: Node) -> "Split":
        """The same edges with a rest that may be zero, but is there."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        zero = jnp.zeros((*node.shape, rule.length), problem.dtype)
        x, y = (rest if rest.terms else Linear.of(zero) for rest in self.rest)
        return Split(self.base, (x, y))

    def settled(self, history: int) -> tuple["Split", jax.Array]:  # noqa: ARG002 - one interface
        x, y = (None if b is None else b.settled() for b in self.base)
        a, b = (rest.settled() for rest in self.rest)
        return Split((x, y), (a, b)), jnp.zeros((), jnp.float32)
