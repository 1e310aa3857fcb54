"""Edges, stored or factored, and the projections that act on them.

The edges that enter an operation belong to it alone, so a state of the whole graph is one object per
operation. There are two kinds:

- `Stored`: every edge is a number. This is the definition.
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
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pjax.contraction import Contraction
from pjax.graph import Graph, Node
from pjax.primitives import Dot
from pjax.problem import Moves, Problem


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stored:
    """One number per edge; for a contraction written out to ``(*out, K)``."""

    arrays: tuple[jax.Array, ...]

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Stored":
        """All edges at their sources' values."""
        full = (problem.zeros(node.index, i) if s is None else s for i, s in enumerate(shifts))
        if isinstance(node.rule, Contraction):
            return cls(tuple(node.rule.expand(i, x) for i, x in enumerate(full)))
        return cls(tuple(full))

    def sums(self, node: Node, i: int) -> jax.Array:
        """For each slot of input i, the sum over its edges."""
        rule = node.rule
        return rule.gather(i, self.arrays[i]) if isinstance(rule, Contraction) else self.arrays[i]

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Stored", Moves]:
        """The edges after their node projected."""
        if isinstance(node.rule, Contraction):
            assert goal is not None
            written = tuple(node.rule.expand(i, x) for i, x in enumerate(problem.inputs[node.index]))
            moves, move = problem.displace_as(Dot(problem.fixed(node)), node, written, self.arrays, goal)
        else:
            moves, move = problem.displace(node, self.arrays, goal)
        arrays = tuple(a + m for a, m in zip(self.arrays, moves, strict=True))
        return Stored(arrays), Moves(moves, move, sum((m * m).sum() for m in moves))

    def squared(self, problem: Problem, node: Node) -> jax.Array:  # noqa: ARG002 - one interface
        """The sum of the squares of all edges."""
        return sum((a * a).sum() for a in self.arrays)

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Stored"]]) -> "Stored":
        arrays = zip(*(edges.arrays for _, edges in terms), strict=True)
        factors = [factor for factor, _ in terms]
        return Stored(tuple(_weighted(factors, parts) for parts in arrays))

    def settled(self, history: int) -> tuple["Stored", jax.Array]:  # noqa: ARG002 - one interface
        return self, jnp.zeros((), self.arrays[0].dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factored:
    """The edges of a contraction as the values of its sources and a history, newest term first.

    Constant inputs have no entry in `base` and `past`: they stay at their values, and every past vector
    is that value too, since all updates of the state are affine combinations.
    """

    base: tuple[jax.Array | None, jax.Array | None]
    past: tuple[jax.Array | None, jax.Array | None]
    """The vectors u, stacked."""
    plus: jax.Array
    minus: jax.Array
    """The coefficients c⁺ and c⁻, stacked: shape ``(terms, *out)``."""
    pairs: jax.Array
    """The dot products of u_x,s and u_y,t: shape ``(terms, terms, *out)``."""

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Factored":
        """All edges at their sources' values: no history."""
        base = shifts[0], shifts[1]
        past = tuple(None if b is None else jnp.zeros((0, *b.shape), problem.dtype) for b in base)
        none = jnp.zeros((0, *node.shape), problem.dtype)
        return cls(base, (past[0], past[1]), none, none, jnp.zeros((0, 0, *node.shape), problem.dtype))

    @property
    def terms(self) -> int:
        return self.plus.shape[0]

    def padded(self, terms: int) -> "Factored":
        """The same edges with empty terms, up to the given number."""
        more = terms - self.terms

        def pad(x: jax.Array, axes: int = 1) -> jax.Array:
            return jnp.pad(x, [(0, more)] * axes + [(0, 0)] * (x.ndim - axes))

        past = tuple(None if u is None else pad(u) for u in self.past)
        return Factored(
            self.base, (past[0], past[1]), pad(self.plus), pad(self.minus), pad(self.pairs, axes=2)
        )

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:
        """For each slot of input i, the sum over its edges."""
        rule, base = node.rule, self.base[i]
        assert isinstance(rule, Contraction) and base is not None
        total = base * problem.edge_counts[node.index, i]
        own, other = (self.plus + self.minus) / 2, (self.plus - self.minus) / 2
        fixed = problem.fixed(node) is not None

        def term(own: jax.Array, other: jax.Array, u: tuple[jax.Array | None, jax.Array | None]) -> jax.Array:
            now = problem.inputs[node.index]
            this, partner = (now[j] if u[j] is None else u[j] for j in (i, 1 - i))
            pulled = rule.pull(i, partner, other)
            return pulled if fixed else rule.scatter(i, own) * this + pulled

        for part in _each(term, self.terms, own, other, self.past):
            total += part
        return total

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Factored", Moves]:
        """The edges after their contraction projected: one more term."""
        rule = node.rule
        assert isinstance(rule, Contraction) and goal is not None
        v = node.index
        (x0, y0), (dx, dy) = problem.inputs[v], self.base
        x = x0 if dx is None else x0 + dx
        y = y0 if dy is None else y0 + dy
        drift = problem.drift(v, dx, dy)
        if problem.fixed(node) is not None:
            return self._displaced_fixed(problem, node, goal - drift, (x, y))
        product = problem.points[v] + drift
        forward, backward = self._products(problem, node, x, y, product)
        norm = problem.norm(v, 0, x) + problem.norm(v, 1, y)
        extra_plus, extra_minus = self._extra(problem, node, x, y, forward + backward)
        plus = jnp.maximum(norm + 2 * product + extra_plus, 0)
        minus = jnp.maximum(norm - 2 * product + extra_minus, 0)
        # The history's share of the product comes with small factors: no cancellation.
        m = problem.solve(v, plus, minus, goal - drift - (extra_plus - extra_minus) / 4)
        past = tuple(
            None if u is None else jnp.concatenate([now[None], u])
            for u, now in zip(self.past, (x, y), strict=True)
        )
        pairs = jnp.concatenate(
            [
                jnp.concatenate([product[None], forward])[None],
                jnp.concatenate([backward[:, None], self.pairs], axis=1),
            ]
        )
        after = Factored(
            self.base,
            (past[0], past[1]),
            jnp.concatenate([m.grow_plus[None], self.plus * (1 + m.grow_plus)]),
            jnp.concatenate([m.grow_minus[None], self.minus * (1 + m.grow_minus)]),
            pairs,
        )
        squared = (m.grow_plus**2 * plus + m.grow_minus**2 * minus).sum() / 2
        return after, Moves((None, None), -m.lam / problem.weight(v), squared)

    def _displaced_fixed(
        self, problem: Problem, node: Node, residual: jax.Array, now: tuple[jax.Array, jax.Array]
    ) -> tuple["Factored", Moves]:
        """With one input fixed every term runs along it, so one term holds the whole history."""
        v, fixed = node.index, problem.fixed(node)
        assert fixed is not None
        norm = problem.norm(v, fixed, now[fixed])
        lam = problem.multiplier_fixed(v, fixed, residual - self.plus.sum(0) * norm)
        past = tuple(
            None if u is None else jnp.concatenate([x[None], u]) for u, x in zip(self.past, now, strict=True)
        )
        after = Factored(
            self.base,
            (past[0], past[1]),
            jnp.concatenate([lam[None], self.plus]),
            jnp.concatenate([-lam[None], self.minus]),
            jnp.zeros((self.terms + 1, self.terms + 1, *node.shape), problem.dtype),
        )
        return after, Moves((None, None), -lam / problem.weight(v), (lam**2 * norm).sum())

    def _products(
        self, problem: Problem, node: Node, x: jax.Array, y: jax.Array, product: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The dot products of (x, past y) and of (past x, y), stacked over the terms."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        if not self.terms:
            return self.plus, self.plus
        past_x, past_y = self.past
        again = jnp.broadcast_to(product, self.plus.shape)
        # A constant input is its own past, so those products are known already.
        if past_y is None:
            forward = again
        elif past_x is None:
            forward = self.pairs[0]
        else:
            forward = jnp.stack(_each(lambda u: rule.pair(x, u), self.terms, past_y))
        if past_x is None:
            backward = again
        elif past_y is None:
            backward = self.pairs[:, 0]
        else:
            backward = jnp.stack(_each(lambda u: rule.pair(u, y), self.terms, past_x))
        return forward, backward

    def _extra(
        self, problem: Problem, node: Node, x: jax.Array, y: jax.Array, crossed: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What the history adds to |x+y|² and |x−y|²."""
        if not self.terms:
            zero = jnp.zeros(node.shape, problem.dtype)
            return zero, zero
        own = self._own(problem, node, 0, x), self._own(problem, node, 1, y)
        aligned = own[0][0] + own[1][0]
        past = own[0][1] + own[1][1]
        swapped = self.pairs + self.pairs.swapaxes(0, 1)

        def quadratic(c: jax.Array, sign: int) -> jax.Array:
            gram = past + sign * swapped
            return (c * (2 * (aligned + sign * crossed) + jnp.einsum("st...,t...->s...", gram, c))).sum(0)

        return quadratic(self.plus, 1), quadratic(self.minus, -1)

    def _own(self, problem: Problem, node: Node, i: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The products of an input with its own past, and of its past with itself, stacked."""
        rule, u = node.rule, self.past[i]
        assert isinstance(rule, Contraction)
        if u is None:
            norm = jnp.broadcast_to(problem.norm(node.index, i, x), node.shape)
            return jnp.broadcast_to(norm, (self.terms, *norm.shape)), jnp.broadcast_to(
                norm, (self.terms, self.terms, *norm.shape)
            )

        def reduce(q: jax.Array) -> jax.Array:
            return jnp.broadcast_to(rule.reduce(i, q), node.shape)

        over = jax.vmap(reduce)
        return over(x * u), jax.vmap(over)(u[:, None] * u[None])

    def squared(self, problem: Problem, node: Node) -> jax.Array:
        """The sum of the squares of all edges."""
        rule = node.rule
        assert isinstance(rule, Contraction)
        x, y = (problem.zeros(node.index, i) if b is None else b for i, b in enumerate(self.base))
        product = rule.pair(x, y)
        written = dataclasses.replace(
            self,
            past=tuple(
                jnp.broadcast_to(problem.inputs[node.index][i], (self.terms, *problem.inputs[node.index][i].shape))
                if u is None
                else u
                for i, u in enumerate(self.past)
            ),
        )
        forward, backward = written._products(problem, node, x, y, product)
        plus, minus = written._extra(problem, node, x, y, forward + backward)
        norm = rule.reduce(0, x * x) + rule.reduce(1, y * y)
        return (jnp.broadcast_to(norm, node.shape) + (plus + minus) / 2).sum()

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Factored"]]) -> "Factored":
        """A linear combination. A shorter history is the older part of a longer one."""
        longest = max((edges for _, edges in terms), key=lambda edges: edges.terms)
        factors = [factor for factor, _ in terms]

        def aligned(x: jax.Array) -> jax.Array:
            return jnp.concatenate([jnp.zeros((longest.terms - x.shape[0], *x.shape[1:]), x.dtype), x])

        base = [
            None if parts[0] is None else _weighted(factors, parts)
            for parts in zip(*(edges.base for _, edges in terms), strict=True)
        ]
        return Factored(
            (base[0], base[1]),
            longest.past,
            _weighted(factors, [aligned(edges.plus) for _, edges in terms]),
            _weighted(factors, [aligned(edges.minus) for _, edges in terms]),
            longest.pairs,
        )

    def settled(self, history: int) -> tuple["Factored", jax.Array]:
        """The edges with a history of the given length, and the size of what that neglects."""
        if self.terms <= history:
            return self.padded(history), jnp.zeros((), self.plus.dtype)
        last = history - 1

        def fold(c: jax.Array) -> jax.Array:
            return c[:history].at[last].add(c[history:].sum(0))

        dropped = jnp.maximum(jnp.abs(self.plus[history:]).max(), jnp.abs(self.minus[history:]).max())
        apart = [
            jnp.abs(u[history:] - u[last]).max() / jnp.maximum(jnp.abs(u[last]).max(), jnp.finfo(u.dtype).tiny)
            for u in self.past
            if u is not None
        ]
        past = tuple(None if u is None else u[:history] for u in self.past)
        kept = Factored(
            self.base, (past[0], past[1]), fold(self.plus), fold(self.minus), self.pairs[:history, :history]
        )
        return kept, dropped * jnp.max(jnp.stack(apart))


def _each(fn: Callable[..., jax.Array], terms: int, *args: Any) -> list[jax.Array]:
    """A function of every term of a history; batched where the history is long."""
    if terms > 4:
        return list(jax.vmap(fn)(*args))
    return [fn(*jax.tree.map(lambda x: x[s], args)) for s in range(terms)]  # noqa: B023


Edges = Stored | Factored
State = dict[int, Edges]


def _weighted(factors: Sequence[float], parts: Sequence[Any]) -> Any:
    """Σ factor · part, without the products that are not needed."""
    total: Any = None
    for factor, part in zip(factors, parts, strict=True):
        if factor == 0:
            continue
        if total is None:
            total = part if factor == 1 else factor * part
        elif factor in (1, -1):
            total = total + part if factor == 1 else total - part
        else:
            total = total + factor * part
    return jnp.zeros_like(parts[0]) if total is None else total


def combine(*terms: tuple[float, State]) -> State:
    """A linear combination of states, edge by edge."""
    nodes = terms[0][1]
    return {v: type(nodes[v]).combine([(c, state[v]) for c, state in terms]) for v in nodes}  # type: ignore[arg-type]


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
        """``history`` says which contractions are factored; without it every edge is stored."""
        self.problem = problem
        self._history = history or {}
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
            state[node.index] = self._spread(node, shifts)
        return self.settle(state)[0]

    def _spread(self, node: Node, shifts: Sequence[jax.Array | None]) -> Edges:
        kind = Factored if self._history.get(node.index) is not None else Stored
        return kind.spread(self.problem, node, shifts)

    def settle(self, state: State) -> tuple[State, jax.Array]:
        """Cut histories to their length. Returns the largest neglected term, relative, as well."""
        settled = {v: edges.settled(self._history.get(v) or 0) for v, edges in state.items()}
        worst = jnp.max(jnp.stack([n for _, n in settled.values()]))
        return {v: edges for v, (edges, _) in settled.items()}, worst

    def sums(self, v: int, i: int, edges: Edges) -> jax.Array:
        node = self.problem.graph.nodes[v]
        return edges.sums(node, i) if isinstance(edges, Stored) else edges.sums(self.problem, node, i)

    def means(self, nodes: Sequence[int], state: State) -> dict[int, jax.Array]:
        """For each node, the mean of the edges that leave it."""
        problem = self.problem
        wanted = set(nodes)
        totals: dict[int, jax.Array] = {}
        for r, i in sorted({pair for v in nodes for pair in problem.graph.readers[v]}):
            wiring = problem.wirings[r, i]
            parts = wiring.pull(self.sums(r, i, state[r]))
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
            arrays.append(jnp.where(mine > 0.5, fresh, old))
        return Stored(tuple(arrays))

    def parameters(self, state: State) -> dict[int, jax.Array]:
        """The displacements of the parameters: the means of the edges that leave them."""
        return self.means([n.index for n in self.problem.graph.parameters], state)

    def distance(self, first: State, second: State) -> jax.Array:
        """The squared distance of two states."""
        apart = combine((1, first), (-1, second))
        return sum(edges.squared(self.problem, self.problem.graph.nodes[v]) for v, edges in apart.items())

