"""The edges of a contraction: what its sources say, plus a number per edge."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax.devices import end_kernel, has_kernels, on_one_device
from pjax.engines.edges.base import Base, combined, contraction, now
from pjax.engines.edges.combination import Linear
from pjax.engines.point import Problem
from pjax.graph.nodes import Node
from pjax.rules.base import Moves, Place, total_squares
from pjax.rules.contraction import Contraction
from pjax.rules.dot import Pair, sum_and_difference, sums_of_squares, visible
from pjax.rules.kernels import edges as split_kernel
from pjax.rules.kernels.edges import Projected

SHORT = 32
"""Vectors of at most so many numbers may well be nearly equal or opposite. There lengths and products cancel,
so sums and differences are written out, which takes longer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Split:
    """The edges of a contraction as the values of its sources plus the rest, written out."""

    base: Base
    rest: tuple[Linear, Linear]
    """What the edges of each input have more, of shape ``(*out, K)``; nothing stands for zero. The largest of
    all arrays: they are read in the type in which they are kept."""
    totals: tuple[Linear, Linear]
    """For each slot of each input, the sum of the rest over its edges."""

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Split":  # noqa: ARG003
        """All edges at their sources' values."""
        x, y = (None if s is None else Linear.of(s) for s in shifts)
        return cls((x, y), (Linear(()), Linear(())), (Linear(()), Linear(())))

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:
        """For each slot of input i, the sum over its edges."""
        base = self.base[i]
        assert base is not None
        total = base.value * problem.edge_counts[node.index, i]
        return total + self.totals[i].value if self.totals[i].terms else total

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Split", Moves]:
        """The edges after their contraction projected."""
        assert goal is not None
        rule, at, inputs = contraction(node), problem.place(node.index), now(problem, node, self.base)
        drift = rule.change(at, self._shifts)

        def plain(drift: jax.Array, goal: jax.Array) -> Projected:
            return self._in_passes(rule, at, inputs, drift, goal)

        def kernel(drift: jax.Array, goal: jax.Array) -> Projected:
            return split_kernel.project(rule, inputs, self.rest, goal - drift, at.weight, at.read)

        fits = has_kernels() and split_kernel.fits(rule, self.rest, drift, goal)
        found = on_one_device(drift, goal, cuda=kernel if fits else None, default=plain)
        rest, totals = (
            (x + a, y + b) for (x, y), (a, b) in ((self.rest, found.moves), (self.totals, found.totals))
        )
        moves = Moves((None, None), -found.lam / at.weight, found.squared.sum())
        return Split(self.base, rest, totals), moves

    @property
    def _shifts(self) -> tuple[jax.Array | None, jax.Array | None]:
        x, y = (None if b is None else b.value for b in self.base)
        return x, y

    def _in_passes(
        self, rule: Contraction, at: Place, inputs: Pair, drift: jax.Array, goal: jax.Array
    ) -> Projected:
        """The projection as sums over the edges, and what follows from them."""
        flat = rule.expand(0, inputs[0]), rule.expand(1, inputs[1])
        rest = [r.value if r.terms else jnp.zeros((), at.point.dtype) for r in self.rest]
        whole = flat[0] + rest[0], flat[1] + rest[1]
        if rule.length <= SHORT:
            total, difference = whole[0] + whole[1], whole[0] - whole[1]
            plus, minus = sums_of_squares(total, difference, lambda x: end_kernel(x.sum(-1)))
            crossed = end_kernel((whole[1] * rest[0] + flat[0] * rest[1]).sum(-1))
            m = rule.solve(at, plus, minus, goal - drift - crossed)
            grown, shrunk = (end_kernel(g / 2)[..., None] for g in m.growth)
            both = grown * total, shrunk * difference
            spheres = [end_kernel(m.on_sphere(i, rule.length))[..., None] * visible(whole[i]) for i in (0, 1)]
            found = both[0] + both[1] + spheres[0], both[0] - both[1] + spheres[1]
        else:
            dx, dy = self._shifts
            norm = rule.norm(at, 0, dx) + rule.norm(at, 1, dy)
            mine, crossed = self._products(rule, *inputs)
            plus, minus = sum_and_difference(norm + mine, at.point + drift + crossed, norm + abs(mine))
            m = rule.solve(at, plus, minus, goal - drift - crossed)
            # Written out: a few numbers for each dot product, not to be found again for each of its edges.
            other = end_kernel(m.other)[..., None]
            along = [end_kernel(m.along(i, rule.length))[..., None] * visible(whole[i]) for i in (0, 1)]
            found = along[0] + other * whole[1], along[1] + other * whole[0]

        def kept(i: int) -> jax.Array:
            return found[i].astype(self.rest[i].terms[0][1].dtype) if self.rest[i].terms else found[i]

        # Summed as they are written, not found once more.
        first, second = jax.lax.optimization_barrier((kept(0), kept(1)))
        moves = first.astype(at.point.dtype), second.astype(at.point.dtype)
        totals = rule.gather(0, moves[0]), rule.gather(1, moves[1])
        return Projected(moves, totals, m.lam, m.squared(plus, minus))

    def _products(self, rule: Contraction, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        """What the rest adds to |x|² + |y|², and to ⟨x, y⟩. Term by term, so that no sum is written out."""
        first, second = self.rest
        if not first.terms:
            return 0, 0

        def aligned(i: int, at: jax.Array, rest: Linear) -> Any:
            return sum(factor * rule.align(i, at, r.astype(at.dtype)) for factor, r in rest.terms)

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
        rule = contraction(node)
        x, y = (
            rule.expand(i, problem.zeros(node.index, i) if b is None or not b.terms else b.value)
            for i, b in enumerate(self.base)
        )
        return total_squares(
            w + (rest.value if rest.terms else 0) for w, rest in zip((x, y), self.rest, strict=True)
        )

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Split"]]) -> "Split":
        def one(i: int, of: Callable[["Split"], tuple[Linear, Linear]]) -> Linear:
            return Linear.combine((c, of(edges)[i]) for c, edges in terms)

        rest, totals = (
            (one(0, of), one(1, of)) for of in (lambda edges: edges.rest, lambda edges: edges.totals)
        )
        return Split(combined(terms), rest, totals)

    def written(self, problem: Problem, node: Node) -> "Split":
        """The same edges with a rest that may be zero, but is there."""
        zero = jnp.zeros((*node.shape, contraction(node).length), problem.dtype)
        x, y = (rest if rest.terms else Linear.of(zero) for rest in self.rest)
        a, b = (
            total if total.terms else Linear.of(problem.zeros(node.index, i))
            for i, total in enumerate(self.totals)
        )
        return Split(self.base, (x, y), (a, b))

    def settled(self, history: int) -> tuple["Split", jax.Array]:  # noqa: ARG002 - one interface
        x, y = (None if b is None else b.settled() for b in self.base)
        (a, b), (c, d) = ((x.settled(), y.settled()) for x, y in (self.rest, self.totals))
        return Split((x, y), (a, b), (c, d)), jnp.zeros((), jnp.float32)
