"""Edges as numbers: every one of them, which is the definition, or what they have more than their sources.

The steps of reflecting methods, such as z + P₂(2 P₁(z) − z) − P₁(z), name the same arrays several times.
Written as combinations that add up the factors of one array (`Linear`), what cancels on paper cancels in the
program: no rounding, no pass over memory.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp

from pjax.devices import compiles_each_kernel, end_kernel, has_kernels, on_one_device
from pjax.engines.point import Problem
from pjax.graph.nodes import Node
from pjax.rules.base import Arrays, Moves, Place, Shifts, total_squares
from pjax.rules.contraction import Contraction
from pjax.rules.dot import Pair, sum_and_difference, sums_of_squares, visible
from pjax.rules.kernels import edges as split_kernel
from pjax.rules.kernels.edges import Projected


@jax.tree_util.register_pytree_node_class
class Linear:
    """Σ factor · array. The same array object occurs once."""

    __slots__ = ("_value", "terms")

    def __init__(self, terms: Iterable[tuple[float, jax.Array]]) -> None:
        merged: dict[int, tuple[float, jax.Array]] = {}
        for factor, array in terms:
            before = merged.get(id(array), (0.0, array))[0]
            merged[id(array)] = (before + factor, array)
        self.terms = tuple((f, a) for f, a in merged.values() if f != 0)
        self._value: Any = None

    @classmethod
    def of(cls, array: jax.Array) -> "Linear":
        return cls([(1.0, array)])

    @staticmethod
    def combine(parts: Iterable[tuple[float, "Linear"]]) -> "Linear":
        return Linear((factor * f, a) for factor, part in parts for f, a in part.terms)

    def __add__(self, array: jax.Array) -> "Linear":
        return Linear([*self.terms, (1.0, array)])

    @property
    def value(self) -> jax.Array:
        """The array, in float32 or wider. A combination of nothing has no shape: it must not be asked for."""
        if self._value is None:
            # Factors of one first: x + 2y needs one product less than 2y + x with a zero to start from.
            total: Any = None
            for factor, array in sorted(self.terms, key=lambda term: term[0] != 1):
                part = array.astype(jnp.promote_types(array.dtype, jnp.float32))
                part = part if abs(factor) == 1 else abs(factor) * part
                if total is None:
                    total = part if factor > 0 else -part
                else:
                    total = total + part if factor > 0 else total - part
            self._value = total
        return self._value

    def settled(self) -> "Linear":
        """The same combination as one array, with nothing left to cancel."""
        return Linear.of(self.value)

    def tree_flatten(self) -> tuple[tuple[jax.Array, ...], tuple[float, ...]]:
        return tuple(a for _, a in self.terms), tuple(f for f, _ in self.terms)

    @classmethod
    def tree_unflatten(cls, factors: tuple[float, ...], arrays: tuple[jax.Array, ...]) -> "Linear":
        made = cls(())
        made.terms = tuple(zip(factors, arrays, strict=True))
        return made


T = TypeVar("T")


def each(fn: Callable[..., Linear], *trees: T) -> T:
    """A function of the `Linear` at each place of some trees."""
    return jax.tree.map(fn, *trees, is_leaf=lambda x: isinstance(x, Linear))


def combined(terms: Sequence[tuple[float, T]]) -> T:
    """A linear combination of trees of `Linear`."""
    factors, trees = zip(*terms, strict=True)
    return each(lambda *parts: Linear.combine(zip(factors, parts, strict=True)), *trees)


class Whole:
    """Edges without a history, made of `Linear` alone."""

    combine = staticmethod(combined)

    def settled(self, history: int) -> tuple[Self, jax.Array]:  # noqa: ARG002 - one interface
        return each(Linear.settled, self), jnp.zeros((), jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stored(Whole):
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
        return after, Moves(moves, move, _squares(node, moves))

    def squared(self, problem: Problem, node: Node) -> jax.Array:  # noqa: ARG002 - one interface
        """Numbers that add up to the squares of all edges; of a contraction, one for each output."""
        return _squares(node, [a.value for a in self.arrays if a.terms])


def _squares(node: Node, arrays: Sequence[jax.Array]) -> jax.Array:
    assert node.rule is not None
    if not node.rule.many_edges:
        return total_squares(arrays)
    return functools.reduce(operator.add, ((a * a).sum(-1) for a in arrays), jnp.zeros(()))


# --- Contractions: what all of their edges share, and the rest ---

Base: TypeAlias = tuple[Linear | None, Linear | None]


def contraction(node: Node) -> Contraction:
    """The rule of a node whose edges are not simply stored."""
    return cast(Contraction, node.rule)


@dataclasses.dataclass(frozen=True)
class OfSources:
    """The edges of a contraction as the values of its sources, and more."""

    base: Base
    """The displacements of both inputs; None for a constant."""

    @property
    def shifts(self) -> Shifts:
        return tuple(None if b is None else b.value for b in self.base)

    def now(self, at: Place) -> Arrays:
        """The values of the sources."""
        return tuple(a if s is None else a + s for a, s in zip(at.inputs, self.shifts, strict=True))

    def moved(self, problem: Problem, node: Node) -> Arrays:
        """How far they have moved; zeros for constants."""
        return tuple(
            b.value if b is not None and b.terms else problem.zeros(node.index, i)
            for i, b in enumerate(self.base)
        )


SHORT = 32
"""Vectors of at most so many numbers may well be nearly equal or opposite. There lengths and products cancel,
so sums and differences are written out, which takes longer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Split(OfSources, Whole):
    """The edges of a contraction as the values of its sources plus the rest, written out."""

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
        rule, at = contraction(node), problem.place(node.index)
        inputs, drift = self.now(at), rule.change(at, self.shifts)
        rests = self.rest[0].terms, self.rest[1].terms

        def plain(drift: jax.Array, goal: jax.Array) -> Projected:
            return self._in_passes(rule, at, inputs, drift, goal)

        def kernel(drift: jax.Array, goal: jax.Array) -> Projected:
            return split_kernel.project(rule, inputs, rests, goal - drift, at.weight, at.read)

        fits = has_kernels("edges") and split_kernel.fits(rule, rests, drift, goal)
        found = on_one_device(drift, goal, cuda=kernel if fits else None, default=plain)
        rest, totals = (
            (x + a, y + b) for (x, y), (a, b) in ((self.rest, found.moves), (self.totals, found.totals))
        )
        moves = Moves((None, None), -found.lam / at.weight, found.squared)
        return Split(self.base, rest, totals), moves

    def _in_passes(
        self, rule: Contraction, at: Place, inputs: Arrays, drift: jax.Array, goal: jax.Array
    ) -> Projected:
        """The projection as sums over the edges, and what follows from them."""
        flat = rule.expand(0, inputs[0]), rule.expand(1, inputs[1])
        rest = self.rest[0].value, self.rest[1].value
        whole = flat[0] + rest[0], flat[1] + rest[1]
        total, difference = whole[0] + whole[1], whole[0] - whole[1]
        if rule.length <= SHORT:
            plus, minus = sums_of_squares(total, difference, lambda x: end_kernel(x.sum(-1)))
            crossed = end_kernel((whole[1] * rest[0] + flat[0] * rest[1]).sum(-1))
        else:
            dx, dy = self.shifts
            norm = rule.norm(at, 0, dx) + rule.norm(at, 1, dy)
            mine, crossed = self._products(rule, *inputs)
            plus, minus = sum_and_difference(norm + mine, at.point + drift + crossed, norm + abs(mine))
        m = rule.solve(at, plus, minus, goal - drift - crossed)
        # Written out: a few numbers for each dot product, not to be found again for each of its edges.
        grown, shrunk = (end_kernel(g / 2)[..., None] for g in m.growth(plus, minus))
        both = grown * total, shrunk * difference
        more = [end_kernel(m.spheres.add(i, rule.length))[..., None] * visible(whole[i]) for i in (0, 1)]
        found = both[0] + both[1] + more[0], both[0] - both[1] + more[1]

        def kept(i: int) -> jax.Array:
            return found[i].astype(self.rest[i].terms[0][1].dtype)

        # Summed as they are written, not found once more.
        first, second = jax.lax.optimization_barrier((kept(0), kept(1)))
        moves = first.astype(at.point.dtype), second.astype(at.point.dtype)
        totals = rule.gather(0, moves[0]), rule.gather(1, moves[1])
        return Projected(moves, totals, m.lam, m.squared(plus, minus))

    def _products(self, rule: Contraction, x: jax.Array, y: jax.Array) -> Pair:
        """What the rest adds to |x|² + |y|², and to ⟨x, y⟩. Term by term, so that no sum is written out."""
        first, second = self.rest
        if compiles_each_kernel():  # products with an array of its own for each output would be turned around
            common = first.terms[0][0]  # so that a minus sign need not be written out
            r, s = (Linear((f / common, a) for f, a in rest.terms).value for rest in self.rest)
            a, b = rule.expand(0, 2 * x) + common * r, rule.expand(1, 2 * y) + common * s
            return common * (a * r + b * s).sum(-1), common / 2 * (b * r + a * s).sum(-1)

        def aligned(i: int, at: jax.Array, rest: Linear) -> Any:
            return sum(factor * rule.align(i, at, r.astype(at.dtype)) for factor, r in rest.terms)

        def product(a: Linear, b: Linear) -> jax.Array:
            return (a.value * b.value).sum(-1)

        apart = aligned(0, x, first) + aligned(1, y, second)
        mine = 2 * apart + product(first, first) + product(second, second)
        crossed = aligned(1, y, first) + aligned(0, x, second) + product(first, second)
        return end_kernel(mine), end_kernel(crossed)

    def squared(self, problem: Problem, node: Node) -> jax.Array:
        """For each output, the sum of the squares of its edges."""
        written = (contraction(node).expand(i, x) for i, x in enumerate(self.moved(problem, node)))
        return _squares(node, [x + rest.value for x, rest in zip(written, self.rest, strict=True)])

    def written(self, problem: Problem, node: Node) -> "Split":
        """The same edges with a rest that is zero, but is there: as in every state that projects."""
        zero = Linear.of(jnp.zeros((*node.shape, contraction(node).length), problem.dtype))
        x, y = (Linear.of(problem.zeros(node.index, i)) for i in (0, 1))
        return Split(self.base, (zero, zero), (x, y))
