"""Edges, stored or factored, and the projections that act on them.

The edges that enter an operation belong to it alone, so a state of the whole graph is one object per
operation. There are three kinds:

- `Stored`: every edge is a number. This is the definition.
- `Split`: the edges of a contraction as the values of its sources plus a number per edge, in the sum x+y
  and the difference x−y of its inputs, on which the projection acts by one factor each.
- `Factored`: the edges of a contraction, as the values of its sources plus a short history. A projected
  dot product is a combination of its own two inputs, so the edges of all dot products together are

      x_e = b_x + Σ_s (α_s u_x,s + β_s u_y,s),   y_e = b_y + Σ_s (α_s u_y,s + β_s u_x,s)

  with node-sized b and u_s, and one number per dot product and term for α and β. In the sum x+y and the
  difference x−y the coefficients c⁺ = α+β and c⁻ = α−β act alone. Each projection adds a term, and
  Douglas-Rachford multiplies the old ones by about λ each time, so they fade. What is beyond the chosen
  length is folded into the oldest term that is kept (its vectors are nearly the same, since networks move
  slowly), and the size of what that neglects is reported.

Everything here is a displacement from the forward evaluation, except u, which is absolute.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from pjax.contraction import Contraction
from pjax.graph import Graph, Node
from pjax.linear import Linear
from pjax.primitives import Dot
from pjax.problem import Moves, Problem, total_squares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stored:
    """One number per edge; for a contraction written out to ``(*out, K)``."""

    arrays: tuple[Linear, ...]

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Stored":
        """All edges at their sources' values."""
        full = [problem.zeros(node.index, i) if s is None else s for i, s in enumerate(shifts)]
        if isinstance(node.rule, Contraction):
            full = [node.rule.expand(i, x) for i, x in enumerate(full)]
        return cls(tuple(map(Linear.of, full)))

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:  # noqa: ARG002 - one interface
        """For each slot of input i, the sum over its edges."""
        rule, edges = node.rule, self.arrays[i].value
        return rule.gather(i, edges) if isinstance(rule, Contraction) else edges

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Stored", Moves]:
        """The edges after their node projected."""
        shifts = tuple(a.value for a in self.arrays)
        move: jax.Array | None
        if isinstance(node.rule, Contraction):
            written = tuple(node.rule.expand(i, x) for i, x in enumerate(problem.inputs[node.index]))
            moves, move = problem.displace_as(Dot(problem.fixed(node)), node, written, shifts, goal)
        else:
            moves, move = problem.displace(node, shifts, goal)
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Split:
    """The edges of a contraction as the values of its sources plus the rest, written out."""

    base: tuple[Linear | None, Linear | None]
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
        x, y = _now(problem, node, self.base)
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
            grown(self.plus, 1, m.grow_plus, jnp.where(m.lam > 0, ball, 0)),
            grown(self.minus, -1, m.grow_minus, jnp.where(m.lam > 0, 0, ball)),
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
            _combined_base(terms),
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factored:
    """The edges of a contraction as the values of its sources and a history, newest term first.

    Constant inputs have no entry in `base` and `past`: they stay at their values, and every past vector
    is that value too, since all updates of the state are affine combinations.
    """

    base: tuple[Linear | None, Linear | None]
    past: tuple[jax.Array | None, jax.Array | None]
    """The vectors u, stacked."""
    plus: tuple[Linear, ...]
    minus: tuple[Linear, ...]
    """The coefficients c⁺ and c⁻ of each term, of the shape of the output; nothing stands for zero."""
    pairs: jax.Array
    """The dot products of u_x,s and u_y,t: shape ``(terms, terms, *out)``."""
    norms: jax.Array
    """Likewise of u_x,s and u_x,t, plus those of u_y,s and u_y,t."""

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Factored":
        """All edges at their sources' values: no history."""
        base = tuple(None if s is None else Linear.of(s) for s in shifts)
        past = tuple(None if s is None else jnp.zeros((0, *s.shape), problem.dtype) for s in shifts)
        none = jnp.zeros((0, 0, *node.shape), problem.dtype)
        return cls((base[0], base[1]), (past[0], past[1]), (), (), none, none)

    @property
    def terms(self) -> int:
        return len(self.plus)

    def _coefficients(self, problem: Problem, node: Node) -> tuple[jax.Array, jax.Array]:
        zero = jnp.zeros(node.shape, problem.dtype)
        plus, minus = (
            jnp.stack([c.value if c.terms else zero for c in cs]) for cs in (self.plus, self.minus)
        )
        return plus, minus

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:
        """For each slot of input i, the sum over its edges."""
        rule, base = node.rule, self.base[i]
        assert isinstance(rule, Contraction) and base is not None
        total = base.value * problem.edge_counts[node.index, i]
        if not self.terms:
            return total
        plus, minus = self._coefficients(problem, node)
        fixed = problem.fixed(node) is not None

        def term(own: jax.Array, other: jax.Array, u: tuple[Any, Any]) -> jax.Array:
            at = problem.inputs[node.index]
            this, partner = (at[j] if u[j] is None else u[j] for j in (i, 1 - i))
            pulled = rule.pull(i, partner, other)
            return pulled if fixed else rule.scatter(i, own) * this + pulled

        return sum(_each(term, self.terms, (plus + minus) / 2, (plus - minus) / 2, self.past), start=total)

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Factored", Moves]:
        """The edges after their contraction projected: one more term."""
        assert goal is not None
        v = node.index
        x, y = _now(problem, node, self.base)
        dx, dy = (None if b is None else b.value for b in self.base)
        drift = problem.drift(v, dx, dy)
        if problem.fixed(node) is not None:
            return self._displaced_fixed(problem, node, goal - drift, (x, y))
        product = problem.points[v] + drift
        forward, backward = self._products(node, x, y, product)
        norm = jnp.broadcast_to(problem.norm(v, 0, dx) + problem.norm(v, 1, dy), node.shape)
        aligned = self._aligned(problem, node, x, y)
        extra_plus, extra_minus = self._extra(problem, node, aligned, forward + backward)
        plus = jnp.maximum(norm + 2 * product + extra_plus, 0)
        minus = jnp.maximum(norm - 2 * product + extra_minus, 0)
        # The history's share of the product comes with small factors: no cancellation.
        m = problem.solve(v, plus, minus, goal - drift - (extra_plus - extra_minus) / 4)
        after = Factored(
            self.base,
            self._longer((x, y)),
            (Linear.of(m.grow_plus), *(c + c.value * m.grow_plus if c.terms else c for c in self.plus)),
            (Linear.of(m.grow_minus), *(c + c.value * m.grow_minus if c.terms else c for c in self.minus)),
            _bordered(product, forward, backward, self.pairs),
            _bordered(norm, aligned, aligned, self.norms),
        )
        squared = (m.grow_plus**2 * plus + m.grow_minus**2 * minus).sum() / 2
        return after, Moves((None, None), -m.lam / problem.weight(v), squared)

    def _longer(self, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array | None, jax.Array | None]:
        x, y = (
            None if u is None else jnp.concatenate([at[None], u])
            for u, at in zip(self.past, now, strict=True)
        )
        return x, y

    def _displaced_fixed(
        self, problem: Problem, node: Node, residual: jax.Array, now: tuple[jax.Array, jax.Array]
    ) -> tuple["Factored", Moves]:
        """With one input fixed every term runs along it, so one term holds the whole history."""
        v, fixed = node.index, problem.fixed(node)
        assert fixed is not None
        norm = problem.norm(v, fixed, None)
        so_far = sum((c.value for c in self.plus if c.terms), start=jnp.zeros_like(residual))
        lam = problem.multiplier_fixed(v, fixed, residual - so_far * norm)
        nothing = jnp.zeros((self.terms + 1, self.terms + 1, *node.shape), problem.dtype)
        after = Factored(
            self.base,
            self._longer(now),
            (Linear.of(lam), *self.plus),
            (Linear([(-1.0, lam)]), *self.minus),
            nothing,
            nothing,
        )
        return after, Moves((None, None), -lam / problem.weight(v), (lam**2 * norm).sum())

    def _products(
        self, node: Node, x: jax.Array, y: jax.Array, product: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The dot products of (x, past y) and of (past x, y), stacked over the terms."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        past_x, past_y = self.past
        again = jnp.broadcast_to(product, (self.terms, *node.shape))
        # A constant input is its own past, so those products are known already.
        if past_y is None or not self.terms:
            forward = again
        elif past_x is None:
            forward = self.pairs[0]
        else:
            forward = jnp.stack(_each(lambda u: rule.pair(x, u), self.terms, past_y))
        if past_x is None or not self.terms:
            backward = again
        elif past_y is None:
            backward = self.pairs[:, 0]
        else:
            backward = jnp.stack(_each(lambda u: rule.pair(u, y), self.terms, past_x))
        return forward, backward

    def _aligned(self, problem: Problem, node: Node, x: jax.Array, y: jax.Array) -> jax.Array:
        """The products of the inputs with their own past, stacked over the terms."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        total = jnp.zeros((self.terms, *node.shape), problem.dtype)
        for i, (now, u) in enumerate(zip((x, y), self.past, strict=True)):
            if u is None:
                total += problem.norm(node.index, i, None)
            elif self.terms:
                parts = _each(lambda u: rule.reduce(i, now * u), self.terms, u)  # noqa: B023
                total += jnp.stack(parts)
        return total

    def _extra(
        self, problem: Problem, node: Node, aligned: jax.Array, crossed: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What the history adds to |x+y|² and |x−y|²."""
        if not self.terms:
            zero = jnp.zeros(node.shape, problem.dtype)
            return zero, zero
        plus, minus = self._coefficients(problem, node)
        swapped = self.pairs + self.pairs.swapaxes(0, 1)

        def quadratic(c: jax.Array, sign: int) -> jax.Array:
            gram = self.norms + sign * swapped
            return (c * (2 * (aligned + sign * crossed) + (gram * c).sum(1))).sum(0)

        return quadratic(plus, 1), quadratic(minus, -1)

    def squared(self, problem: Problem, node: Node) -> jax.Array:
        """The sum of the squares of all edges."""
        rule, at, fixed = node.rule, problem.inputs[node.index], problem.fixed(node)
        assert isinstance(rule, Contraction)
        x, y = (
            problem.zeros(node.index, i) if b is None or not b.terms else b.value
            for i, b in enumerate(self.base)
        )
        if fixed is not None:  # only the other input has moved, and apart from its base along the fixed one
            along = sum((c.value for c in self.plus if c.terms), start=jnp.zeros(node.shape, problem.dtype))
            moved, product = (y, rule.pair(at[0], y)) if fixed == 0 else (x, rule.pair(x, at[1]))
            norm = rule.reduce(1 - fixed, moved * moved)
            return (norm + along * (2 * product + along * problem.norm(node.index, fixed, None))).sum()
        past_x, past_y = (
            jnp.broadcast_to(at[i], (self.terms, *at[i].shape)) if u is None else u
            for i, u in enumerate(self.past)
        )
        written = dataclasses.replace(self, past=(past_x, past_y))
        forward, backward = written._products(node, x, y, rule.pair(x, y))
        aligned = written._aligned(problem, node, x, y)
        plus, minus = written._extra(problem, node, aligned, forward + backward)
        norm = rule.reduce(0, x * x) + rule.reduce(1, y * y)
        return (jnp.broadcast_to(norm, node.shape) + (plus + minus) / 2).sum()

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Factored"]]) -> "Factored":
        """A linear combination. A shorter history is the older part of a longer one."""
        longest = max((edges for _, edges in terms), key=lambda edges: edges.terms)

        def coefficients(which: Callable[["Factored"], tuple[Linear, ...]]) -> tuple[Linear, ...]:
            aligned = [
                (factor, (Linear(()),) * (longest.terms - edges.terms) + which(edges))
                for factor, edges in terms
            ]
            return tuple(
                Linear.combine((factor, cs[s]) for factor, cs in aligned) for s in range(longest.terms)
            )

        return dataclasses.replace(
            longest,
            base=_combined_base(terms),
            plus=coefficients(lambda edges: edges.plus),
            minus=coefficients(lambda edges: edges.minus),
        )

    def settled(self, history: int) -> tuple["Factored", jax.Array]:
        """The edges with a history of the given length, and the size of what that neglects."""
        shape, dtype = self.pairs.shape[2:], self.pairs.dtype
        base = tuple(None if b is None else b.settled() for b in self.base)
        if self.terms <= history:
            more = history - self.terms
            empty = (Linear.of(jnp.zeros(shape, dtype)),) * more

            def pad(x: jax.Array, axes: int) -> jax.Array:
                return jnp.pad(x, [(0, more)] * axes + [(0, 0)] * (x.ndim - axes))

            past = tuple(None if u is None else pad(u, 1) for u in self.past)
            plus, minus = (tuple(c.settled() for c in cs) + empty for cs in (self.plus, self.minus))
            pairs, norms = pad(self.pairs, 2), pad(self.norms, 2)
            return Factored((base[0], base[1]), (past[0], past[1]), plus, minus, pairs, norms), jnp.zeros(
                (), jnp.float32
            )
        last = history - 1

        def fold(cs: tuple[Linear, ...]) -> tuple[Linear, ...]:
            kept = [c.settled() for c in cs[:last]]
            return (*kept, Linear.combine((1.0, c) for c in cs[last:] if c.terms).settled())

        dropped = [c.value for c in (*self.plus[history:], *self.minus[history:]) if c.terms]
        dropped = dropped or [jnp.zeros((), dtype)]  # all of it cancelled
        # How far the vectors that are dropped lie from the one that takes over their share.
        scale = jnp.maximum(self.norms[last, last], jnp.finfo(dtype).tiny)
        apart = [
            (self.norms[s, s] - 2 * self.norms[last, s] + self.norms[last, last]) / scale
            for s in range(history, self.terms)
        ]
        far = jnp.sqrt(jnp.maximum(jnp.max(jnp.stack(apart)), 0))
        neglected = jnp.max(jnp.stack([jnp.max(jnp.abs(c)) for c in dropped])) * far
        past = tuple(None if u is None else u[:history] for u in self.past)
        kept = Factored(
            (base[0], base[1]),
            (past[0], past[1]),
            fold(self.plus),
            fold(self.minus),
            self.pairs[:history, :history],
            self.norms[:history, :history],
        )
        return kept, neglected.astype(jnp.float32)


Base: TypeAlias = tuple[Linear | None, Linear | None]


def _now(problem: Problem, node: Node, base: Base) -> tuple[jax.Array, jax.Array]:
    """The values of a contraction's sources, given their displacements."""
    at = problem.inputs[node.index]
    x, y = (a if b is None else a + b.value for a, b in zip(at, base, strict=True))
    return x, y


def _combined_base(terms: Sequence[tuple[float, "Split | Factored"]]) -> Base:
    """A linear combination of displacements; constants have none."""

    def one(i: int) -> Linear | None:
        parts = [(factor, edges.base[i]) for factor, edges in terms]
        return None if parts[0][1] is None else Linear.combine((f, b) for f, b in parts if b is not None)

    return one(0), one(1)


def _bordered(corner: jax.Array, row: jax.Array, column: jax.Array, inner: jax.Array) -> jax.Array:
    """A table with one more row and column in front; the last axes are carried along."""
    top = jnp.concatenate([corner[None], row])
    return jnp.concatenate([top[None], jnp.concatenate([column[:, None], inner], axis=1)])


def _each(fn: Callable[..., jax.Array], terms: int, *args: Any) -> list[jax.Array]:
    """A function of every term of a history; batched where the history is long."""
    if terms > 4:
        return list(jax.vmap(fn)(*args))
    return [fn(*jax.tree.map(lambda x: x[s], args)) for s in range(terms)]  # noqa: B023


Edges: TypeAlias = Stored | Split | Factored
State: TypeAlias = dict[int, Edges]


def combine(*terms: tuple[float, State]) -> State:
    """A linear combination of states, edge by edge."""

    def one(v: int) -> Edges:
        kind: Any = type(terms[0][1][v])
        return kind.combine([(factor, state[v]) for factor, state in terms])

    return {v: one(v) for v in terms[0][1]}


# Contractions with at most this many edges per scalar of their inputs and output store them.
CHEAP = 12
# The same for a contraction that a target reads: there the history fades slowly.
CHEAP_AT_TARGET = 64


def histories(graph: Graph, length: int | None) -> dict[int, int | None]:
    """For each contraction, the length of its history; None where storing the edges is cheap."""
    chosen: dict[int, int | None] = {}
    for node in graph.nodes:
        if not isinstance(node.rule, Contraction):
            continue
        if length is not None:
            chosen[node.index] = length
            continue
        scalars = math.prod(node.shape) + sum(math.prod(w.shape) for w in node.wires)
        at_target = any(graph.nodes[r].is_target for r, _ in graph.readers[node.index])
        cheap = node.rule.edges <= (CHEAP_AT_TARGET if at_target else CHEAP) * scalars
        chosen[node.index] = None if cheap else 2 if at_target else 1
    return chosen


class Projected(NamedTuple):
    """A state after the projection onto one set."""

    state: State
    values: dict[int, jax.Array]
    squared: jax.Array
    """The sum over the set's nodes of the squared moves of their edges."""


class EdgeSpace:
    """The edges of a graph, and the projections onto the sets of its partition."""

    def __init__(self, problem: Problem, history: dict[int, int | None] | None = None) -> None:
        """``history`` is what `histories` returns; without it every edge is stored."""
        self.problem = problem
        # With one input fixed a history of one term is exact.
        self._history = {
            v: length if problem.fixed(problem.graph.nodes[v]) is None else 1
            for v, length in (history or {}).items()
        }
        self._sets = problem.partition.sets
        self._place = problem.partition.set_of()

    def start(self) -> State:
        """All edges at the forward evaluation."""
        graph, problem = self.problem.graph, self.problem
        state: State = {}
        for node in graph.nodes:
            if node.is_parameter:
                continue
            shifts = [None if w.constant else problem.zeros(node.index, i) for i, w in enumerate(node.wires)]
            edges = self._spread(node, shifts)
            state[node.index] = edges.written(problem, node) if isinstance(edges, Split) else edges
        return self.settle(state)[0]

    def _spread(self, node: Node, shifts: Sequence[jax.Array | None]) -> Edges:
        kind: type[Edges] = Stored
        if node.index in self._history:
            kind = Split if self._history[node.index] is None else Factored
        return kind.spread(self.problem, node, shifts)

    def settle(self, state: State) -> tuple[State, jax.Array]:
        """Cut histories to their length. Returns the largest neglected term, relative, as well."""
        settled = {v: edges.settled(self._history.get(v) or 0) for v, edges in state.items()}
        worst = jnp.max(jnp.stack([n for _, n in settled.values()])).astype(self.problem.dtype)
        return {v: edges for v, (edges, _) in settled.items()}, worst

    def means(self, nodes: Sequence[int], state: State) -> dict[int, jax.Array]:
        """For each node, the mean of the edges that leave it."""
        problem = self.problem
        wanted = set(nodes)
        totals: dict[int, jax.Array] = {}
        for r, i in sorted({pair for v in nodes for pair in problem.graph.readers[v]}):
            wiring = problem.wirings[r, i]
            parts = wiring.pull(state[r].sums(problem, problem.graph.nodes[r], i))
            for s, part in zip(wiring.wire.sources, parts, strict=True):
                if s in wanted:
                    totals[s] = totals[s] + part if s in totals else part
        return {v: problem.mean(v, total) for v, total in totals.items()}

    def project(self, k: int, state: State) -> Projected:
        """Project onto set k: its operations move their inputs, its nodes overwrite what they send."""
        problem, graph = self.problem, self.problem.graph
        new = dict(state)
        values = self.means(self._sets[k], state)
        squared = jnp.zeros((), problem.dtype)
        for v in self._sets[k]:
            node = graph.nodes[v]
            if node.is_parameter:
                continue
            new[v], moves = state[v].displaced(problem, node, values.get(v))
            squared += problem.squared(v, moves)
            if moves.output is not None:
                values[v] = values[v] + moves.output
        for node in graph.nodes:
            if not node.is_parameter and self._place[node.index] != k:
                new[node.index] = self._overwritten(k, node, new[node.index], values)
        return Projected(new, values, squared)

    def _overwritten(self, k: int, node: Node, edges: Edges, values: dict[int, jax.Array]) -> Edges:
        """The edges into a node after its sources in set k have projected."""
        sources = {s for wire in node.wires for s in wire.sources}
        ours = {s for s in sources if self._place[s] == k}
        # The constants of a node project with the set after its own.
        constants = (self._place[node.index] + 1) % len(self._sets) == k
        problem = self.problem
        if ours == sources and constants:
            shifts = [problem.push(node.index, i, values) for i in range(len(node.wires))]
            return self._spread(node, shifts)
        if not ours and not constants:
            return edges
        assert isinstance(edges, Stored)
        arrays = []
        for i, (wire, old) in enumerate(zip(node.wires, edges.arrays, strict=True)):
            wiring = problem.wirings.get((node.index, i))
            fixed = jnp.ones(wire.shape, problem.dtype)
            fresh = jnp.zeros(wire.shape, problem.dtype)
            mine = jnp.zeros(wire.shape, problem.dtype)
            if wiring is not None:
                zeros = {s: jnp.zeros_like(problem.points[s]) for s in wire.sources}
                fixed = fixed - wiring.push(*(jnp.ones_like(z) for z in zeros.values()))
                fresh = wiring.push(*(values[s] if s in ours else z for s, z in zeros.items()))
                mine = wiring.push(*(jnp.ones_like(z) if s in ours else z for s, z in zeros.items()))
            if constants:
                mine = mine + fixed
            rule = node.rule
            if isinstance(rule, Contraction):
                fresh, mine = rule.expand(i, fresh), rule.expand(i, mine)
                if constants:  # slots beyond the border of a convolution are constants, too
                    mine = mine + 1 - rule.expand(i, jnp.ones(wire.shape, problem.dtype))
            arrays.append(Linear.of(jnp.where(mine > 0.5, fresh, old.value)))
        return Stored(tuple(arrays))

    def parameters(self, state: State) -> dict[int, jax.Array]:
        """The displacements of the parameters: the means of the edges that leave them."""
        return self.means([n.index for n in self.problem.graph.parameters], state)

    def distance(self, first: State, second: State) -> jax.Array:
        """The squared distance of two states."""
        apart = combine((1, first), (-1, second))
        nodes = self.problem.graph.nodes
        parts = [edges.squared(self.problem, nodes[v]) for v, edges in apart.items()]
        return functools.reduce(operator.add, parts)
