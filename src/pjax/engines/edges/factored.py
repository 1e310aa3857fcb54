"""The edges of a contraction: what its sources say, plus a short history.

A projected dot product is a combination of its own two inputs, so the edges of all dot products together are

    x_e = b_x + Σ_s (α_s u_x,s + β_s u_y,s),   y_e = b_y + Σ_s (α_s u_y,s + β_s u_x,s)

with node-sized b and u_s, and one number per dot product and term for α and β. In the sum x+y and the
difference x−y the coefficients c⁺ = α+β and c⁻ = α−β act alone. Each projection adds a term, and
Douglas-Rachford multiplies the old ones by about λ each time, so they fade. What is beyond the chosen length
is folded into the oldest term that is kept (its vectors are nearly the same, since networks move slowly), and
the size of what that neglects is reported. Where x = ±y the answer may be a sphere, and the direction taken
is not part of the history: that, too, is neglected, and reported.

Everything is a displacement from the forward evaluation, except u, which is absolute.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax.devices import end_kernel
from pjax.engines.edges.stored import Linear, OfSources, combined, contraction, each
from pjax.engines.point import Problem
from pjax.graph.nodes import Node
from pjax.rules.base import Arrays, Moves, Place
from pjax.rules.dot import Pair


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factored(OfSources):
    """The edges of a contraction as the values of its sources and a history, newest term first.

    Constant inputs have no entry in `base` and `past`: they stay at their values, and every past vector
    is that value too, since all updates of the state are affine combinations.
    """

    past: tuple[jax.Array | None, ...]
    """The vectors u, stacked."""
    plus: tuple[Linear, ...]
    minus: tuple[Linear, ...]
    """The coefficients c⁺ and c⁻ of each term, of the shape of the output; nothing stands for zero."""
    pairs: jax.Array
    """The dot products of u_x,s and u_y,t: shape ``(terms, terms, *out)``."""
    norms: jax.Array
    """Likewise of u_x,s and u_x,t, plus those of u_y,s and u_y,t."""
    lost: jax.Array
    """One if a point of a sphere was not kept, else zero."""

    @classmethod
    def spread(cls, problem: Problem, node: Node, shifts: Sequence[jax.Array | None]) -> "Factored":
        """All edges at their sources' values: no history."""
        x, y = (None if s is None else Linear.of(s) for s in shifts)
        past = tuple(None if s is None else jnp.zeros((0, *s.shape), problem.dtype) for s in shifts)
        none = jnp.zeros((0, 0, *node.shape), problem.dtype)
        return cls((x, y), past, (), (), none, none, jnp.zeros((), problem.dtype))

    @property
    def terms(self) -> int:
        """At least one in every state that projects."""
        return len(self.plus)

    @property
    def _zero(self) -> jax.Array:
        return jnp.zeros(self.pairs.shape[2:], self.pairs.dtype)

    @property
    def _along(self) -> jax.Array:
        """With one input fixed, how far the other has moved along it."""
        return sum((c.value for c in self.plus if c.terms), start=self._zero)

    def _coefficients(self) -> tuple[list[jax.Array], list[jax.Array]]:
        plus, minus = ([c.value if c.terms else self._zero for c in cs] for cs in (self.plus, self.minus))
        return plus, minus

    def sums(self, problem: Problem, node: Node, i: int) -> jax.Array:
        """For each slot of input i, the sum over its edges."""
        rule, base = contraction(node), self.base[i]
        assert base is not None
        total = base.value * problem.edge_counts[node.index, i]
        if not self.terms:
            return total
        at, fixed = problem.inputs[node.index], problem.fixed(node) is not None
        plus, minus = self._coefficients()

        def term(plus: jax.Array, minus: jax.Array, *u: jax.Array) -> jax.Array:
            past = dict(zip(moving, u, strict=True))
            this, partner = past.get(i, at[i]), past.get(1 - i, at[1 - i])
            other = (plus - minus) / 2
            pulled = rule.pull(i, partner, other)
            return pulled if fixed else rule.scatter(i, other + minus) * this + pulled

        moving = [j for j in (0, 1) if self.past[j] is not None]
        return sum(_each(term, plus, minus, *(self.past[j] for j in moving)), start=total)

    def displaced(self, problem: Problem, node: Node, goal: jax.Array | None) -> tuple["Factored", Moves]:
        """The edges after their contraction projected: one more term."""
        assert goal is not None
        rule, at = contraction(node), problem.place(node.index)
        (x, y), (dx, dy) = self.now(at), self.shifts
        drift = rule.change(at, (dx, dy))
        if at.fixed is not None:
            return self._displaced_fixed(at, node, goal - drift, (x, y))
        product = at.point + drift
        forward, backward, crossed = self._products(node, x, y, product)
        norm = jnp.broadcast_to(rule.norm(at, 0, dx) + rule.norm(at, 1, dy), node.shape)
        aligned = self._aligned(at, node, x, y)
        extra_plus, extra_minus = self._extra(aligned, crossed)
        plus = jnp.maximum(norm + 2 * product + extra_plus, 0)
        minus = jnp.maximum(norm - 2 * product + extra_minus, 0)
        # The history's share of the product comes with small factors: no cancellation.
        m = rule.solve(at, plus, minus, goal - drift - (extra_plus - extra_minus) / 4)
        grow_plus, grow_minus = m.growth()
        after = Factored(
            self.base,
            self._longer((x, y)),
            (Linear.of(grow_plus), *(c + c.value * grow_plus if c.terms else c for c in self.plus)),
            (Linear.of(grow_minus), *(c + c.value * grow_minus if c.terms else c for c in self.minus)),
            _bordered(product, forward, backward, self.pairs),
            _bordered(norm, aligned, aligned, self.norms),
            # In a kernel of its own: nothing waits for it.
            jnp.maximum(self.lost, jnp.isinf(jnp.max(jnp.abs(end_kernel(m.root)), initial=0))),
        )
        squared = (grow_plus**2 * plus + grow_minus**2 * minus) / 2
        return after, Moves((None, None), -m.lam / at.weight, squared)

    def _longer(self, now: Arrays) -> tuple[jax.Array | None, ...]:
        pairs = zip(self.past, now, strict=True)
        return tuple(None if u is None else jnp.concatenate([at[None], u]) for u, at in pairs)

    def _displaced_fixed(
        self, at: Place, node: Node, residual: jax.Array, now: Arrays
    ) -> tuple["Factored", Moves]:
        """With one input fixed every term runs along it, so one term holds the whole history."""
        assert at.fixed is not None
        norm = at.lengths[at.fixed]
        lam = contraction(node).solve_fixed(at, residual - self._along * norm)
        nothing = jnp.zeros((self.terms + 1, self.terms + 1, *node.shape), at.point.dtype)
        after = Factored(
            self.base,
            self._longer(now),
            (Linear.of(lam), *self.plus),
            (Linear([(-1.0, lam)]), *self.minus),
            nothing,
            nothing,
            self.lost,
        )
        return after, Moves((None, None), -lam / at.weight, lam**2 * norm)

    def _products(
        self, node: Node, x: jax.Array, y: jax.Array, product: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The dot products of (x, past y), those of (past x, y), and their sum, stacked over the terms."""
        rule = contraction(node)
        past_x, past_y = self.past
        if past_x is not None and past_y is not None:
            # The sum first: often it is all that is used.
            crossed = jnp.stack(_each(lambda u, v: rule.pairs((x, v), (u, y)), past_x, past_y))
            backward = jnp.stack(_each(lambda u: rule.pair(u, y), past_x))
            return crossed - backward, backward, crossed
        # A constant input is its own past, so those products are known already.
        again = jnp.broadcast_to(product, (self.terms, *node.shape))
        forward = again if past_y is None else self.pairs[0]
        backward = again if past_x is None else self.pairs[:, 0]
        return forward, backward, forward + backward

    def _aligned(self, at: Place, node: Node, x: jax.Array, y: jax.Array) -> jax.Array:
        """The products of the inputs with their own past, stacked over the terms."""
        rule = contraction(node)
        total = jnp.zeros((self.terms, *node.shape), at.point.dtype)
        for i, (value, u) in enumerate(zip((x, y), self.past, strict=True)):
            if u is None:
                total += at.lengths[i]
            else:
                total += jnp.stack(_each(lambda u: rule.reduce(i, value * u), u))  # noqa: B023
        return total

    def _extra(self, aligned: jax.Array, crossed: jax.Array) -> Pair:
        """What the history adds to |x+y|² and |x−y|²."""
        plus, minus = map(jnp.stack, self._coefficients())
        swapped = self.pairs + self.pairs.swapaxes(0, 1)

        def quadratic(c: jax.Array, sign: int) -> jax.Array:
            gram = self.norms + sign * swapped
            return (c * (2 * (aligned + sign * crossed) + (gram * c).sum(1))).sum(0)

        return quadratic(plus, 1), quadratic(minus, -1)

    def squared(self, problem: Problem, node: Node) -> jax.Array:
        """For each output, the sum of the squares of its edges."""
        rule, place = contraction(node), problem.place(node.index)
        at, fixed = place.inputs, place.fixed
        x, y = self.moved(problem, node)
        if fixed is not None:  # only the other input has moved, and apart from its base along the fixed one
            along = self._along
            moved, product = (y, rule.pair(at[0], y)) if fixed == 0 else (x, rule.pair(x, at[1]))
            norm = rule.reduce(1 - fixed, moved * moved)
            return norm + along * (2 * product + along * place.lengths[fixed])
        pairs = zip(at, self.past, strict=True)
        past = tuple(jnp.broadcast_to(a, (self.terms, *a.shape)) if u is None else u for a, u in pairs)
        written = dataclasses.replace(self, past=past)
        _, _, crossed = written._products(node, x, y, rule.pair(x, y))
        aligned = written._aligned(place, node, x, y)
        plus, minus = written._extra(aligned, crossed)
        norm = rule.reduce(0, x * x) + rule.reduce(1, y * y)
        return norm + (plus + minus) / 2

    @staticmethod
    def combine(terms: Sequence[tuple[float, "Factored"]]) -> "Factored":
        """A linear combination. A shorter history is the older part of a longer one."""
        longest = max((edges for _, edges in terms), key=lambda edges: edges.terms)

        def padded(cs: tuple[Linear, ...]) -> tuple[Linear, ...]:
            return (Linear(()),) * (longest.terms - len(cs)) + cs

        parts = [(factor, (edges.base, padded(edges.plus), padded(edges.minus))) for factor, edges in terms]
        base, plus, minus = combined(parts)
        lost = functools.reduce(jnp.maximum, (edges.lost for _, edges in terms))
        return dataclasses.replace(longest, base=base, plus=plus, minus=minus, lost=lost)

    def settled(self, history: int) -> tuple["Factored", jax.Array]:
        """The edges with a history of the given length, and the size of what that neglects."""
        pairs, norms, neglected = self.pairs, self.norms, self.lost
        if self.terms <= history:
            more = history - self.terms
            empty = (Linear.of(self._zero),) * more

            def pad(x: jax.Array, axes: int) -> jax.Array:
                return jnp.pad(x, [(0, more)] * axes + [(0, 0)] * (x.ndim - axes))

            past = tuple(None if u is None else pad(u, 1) for u in self.past)
            plus, minus = self.plus + empty, self.minus + empty
            pairs, norms = pad(pairs, 2), pad(norms, 2)
        else:
            last = history - 1

            def fold(cs: tuple[Linear, ...]) -> tuple[Linear, ...]:
                return (*cs[:last], Linear.combine((1.0, c) for c in cs[last:] if c.terms))

            # How far the vectors that are dropped lie from the one that takes over their share, times that
            # share. In one array, so that there is one maximum to find. On a CPU each constant in it would
            # be an array.
            length, worst = norms[last, last], []
            scale = jnp.maximum(length, jnp.finfo(norms.dtype).tiny)
            for s in range(history, self.terms):
                shares = [jnp.abs(c.value) for c in (self.plus[s], self.minus[s]) if c.terms]
                far = (norms[s, s] - norms[last, s]) + (length - norms[last, s])
                worst += [share * jnp.sqrt(jnp.abs(far) / scale) for share in shares]  # none that cancelled
            if worst:
                neglected = jnp.maximum(neglected, jnp.max(functools.reduce(jnp.maximum, worst), initial=0))
            past = tuple(None if u is None else u[:history] for u in self.past)
            plus, minus = fold(self.plus), fold(self.minus)
            pairs, norms = (table[:history][:, :history] for table in (pairs, norms))
        base, plus, minus = each(Linear.settled, (self.base, plus, minus))
        kept = Factored(base, past, plus, minus, pairs, norms, jnp.zeros_like(self.lost))
        return kept, neglected.astype(jnp.float32)


def _bordered(corner: jax.Array, row: jax.Array, column: jax.Array, inner: jax.Array) -> jax.Array:
    """A table with one more row and column in front; the last axes are carried along."""
    top = jnp.concatenate([corner[None, None], row[None]], axis=1)
    return jnp.concatenate([top, jnp.concatenate([column[:, None], inner], axis=1)])


def _each(fn: Callable[..., jax.Array], *args: Any) -> list[jax.Array]:
    """A function of every term of a history; batched where the history is long."""
    if len(args[0]) > 4:
        return list(jax.vmap(fn)(*map(jnp.asarray, args)))
    return [fn(*xs) for xs in zip(*args, strict=True)]
