"""The edges of a contraction: what its sources say, plus a number per edge.

The numbers are kept for the sum x+y and the difference x−y of the two inputs, on which the projection of a
dot product acts by one factor each, so that it can work in place.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pjax.contraction import Contraction
from pjax.edges.base import Base, combined, now
from pjax.graph import Node
from pjax.linear import Linear
from pjax.problem import Moves, Problem, total_squares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Split:
    """The edges of a contraction as the values of its sources plus the rest, written out."""

    base: Base
    plus: Linear
    minus: Linear
    """The rest of x + y and of x - y, of shape ``(*out, K)``; nothing stands for zero."""

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Split":  # noqa: ARG003
        """All edges at their sources' values."""
        x, y = (None if s is None else Linear.of(s) for s in shifts)
        return cls((x, y), Linear(()), Linear(()))

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:
        """For each slot of input i, the sum over its edges."""
        rule, base = node.rule, self.base[i]
        assert isinstance(rule, Contraction) and base is not None
        total = base.value * problem.edge_counts[node.index, i]
        if not self.plus.terms:
            return total
        # Sums first: they are small, the edges are not.
        plus, minus = rule.gather(i, self.plus.value), rule.gather(i, self.minus.value)
        return total + (plus + minus if i == 0 else plus - minus) / 2

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Split", Moves]:
        """The edges after their contraction projected."""
        rule, v = node.rule, node.index
        assert isinstance(rule, Contraction) and goal is not None
        x, y = now(problem, node, self.base)
        dx, dy = (None if b is None else b.value for b in self.base)
        drift = problem.drift(v, dx, dy)
        product = problem.points[v] + drift
        norm = problem.norm(v, 0, dx) + problem.norm(v, 1, dy)

        def extra(rest: Linear, sign: int) -> jax.Array:
            """What the rest adds to |x ± y|². Products with each array, so that no sum is written out."""
            if not rest.terms:
                return jnp.zeros(node.shape, problem.dtype)
            along = sum(f * (rule.align(0, x, r) + sign * rule.align(1, y, r)) for f, r in rest.terms)
            if len(rest.terms) == 1:
                factor, r = rest.terms[0]
                return 2 * along + factor**2 * (r * r).sum(-1)
            return 2 * along + (rest.value**2).sum(-1)

        extra_plus, extra_minus = extra(self.plus, 1), extra(self.minus, -1)
        plus = jnp.maximum(norm + 2 * product + extra_plus, 0)
        minus = jnp.maximum(norm - 2 * product + extra_minus, 0)
        m = problem.solve(v, plus, minus, goal - drift - (extra_plus - extra_minus) / 4)
        ball = m.radius / math.sqrt(rule.length)
        wide_x, wide_y = rule.expand(0, x), rule.expand(1, y)

        def grown(rest: Linear, sign: int, grow: jax.Array, ball: jax.Array) -> Linear:
            wide = wide_x + wide_y if sign > 0 else wide_x - wide_y
            whole = wide + rest.value if rest.terms else wide
            return rest + (grow[..., None] * whole + ball[..., None])

        after = Split(
            self.base,
            grown(self.plus, 1, m.grow_plus, jnp.maximum(ball, 0)),
            grown(self.minus, -1, m.grow_minus, jnp.maximum(-ball, 0)),
        )
        squared = (m.grow_plus**2 * plus + m.grow_minus**2 * minus + m.radius**2).sum() / 2
        return after, Moves((None, None), -m.lam / problem.weight(v), squared)

    def squared(self, problem: Problem, node: Node) -> jax.Array:
        """The sum of the squares of all edges."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        x, y = (
            rule.expand(i, problem.zeros(node.index, i) if b is None or not b.terms else b.value)
            for i, b in enumerate(self.base)
        )
        parts = (
            w + (rest.value if rest.terms else 0) for w, rest in ((x + y, self.plus), (x - y, self.minus))
        )
        return total_squares(parts) / 2

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Split"]]) -> "Split":
        return Split(
            combined(terms),
            Linear.combine((c, edges.plus) for c, edges in terms),
            Linear.combine((c, edges.minus) for c, edges in terms),
        )

    def written(self, problem: Problem, node: Node) -> "Split":
        """The same edges with a rest that may be zero, but is there."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        zero = Linear.of(jnp.zeros((*node.shape, rule.length), problem.dtype))
        return Split(
            self.base, self.plus if self.plus.terms else zero, self.minus if self.minus.terms else zero
        )

    def settled(self, history: int) -> tuple["Split", jax.Array]:  # noqa: ARG002 - one interface
        x, y = (None if b is None else b.settled() for b in self.base)
        return Split((x, y), self.plus.settled(), self.minus.settled()), jnp.zeros((), jnp.float32)
