"""A stream: all stages of a chain work in every step, each on another micro-batch.

In step :math:`t` stage :math:`s` of :math:`S` evaluates what the stage below handed over in the step before,
micro-batch :math:`t - s`. In the same step it is projected with the wish that the stage above handed down,
for micro-batch :math:`t - 2 (S - 1) + s`, whose inputs it kept; the last stage with the wish of the losses of
the micro-batch that it has just evaluated. A projection is one soft sweep of the stage (`pjax.engines.soft`)
at its kept inputs. So nothing waits, and nothing but wires between neighbours moves.

Parameters move while a micro-batch is under way. Where it is known how fast, by their last move, all of a
micro-batch is evaluated and projected at one point: where the parameters will be, if they go on like this,
when it leaves the stream. That is :math:`2 (S - 1) - s` steps ahead for what stage :math:`s` evaluates, and
:math:`s` steps for what it projects.

Stages are equal, and run as one batched operation. What is before and after them, the ends, belongs to the
first and to the last stage.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pjax.engines import soft
from pjax.engines.point import Problem
from pjax.graph import read
from pjax.graph.chain import Chain
from pjax.graph.nodes import Graph
from pjax.graph.partition import last_to_first
from pjax.graph.wires import Wire


class Flight(NamedTuple):
    """What is under way between two steps. An axis of stages comes first where nothing else is said."""

    steps: jax.Array
    """How many were made."""
    inputs: Any
    """What each stage evaluates next."""
    kept: Any
    """The inputs of the last `slots` steps, along the second axis."""
    wishes: list[jax.Array]
    """What is asked of the outputs of each stage: one array for each that is real."""
    scales: jax.Array
    """By which factor that is smaller than what the losses want."""
    entered: jax.Array
    """When the micro-batches of the last `slots` steps entered; -1 where none did. No axis of stages."""
    batches: Any
    """These micro-batches. No axis of stages."""
    age: jax.Array
    """How many steps ago the micro-batch entered for which a wish came last; -1 before any did."""


class Parameters(NamedTuple):
    """The parameters of a chain, or something for each of them."""

    rest: Any
    layers: Any


class Totals(NamedTuple):
    """What steps ask of parameters, summed, and the losses that they saw."""

    rest: Any
    layers: Any
    loss: jax.Array
    losses: jax.Array
    """How many micro-batches the sum of losses is over."""


class _Points(NamedTuple):
    """Where the parameters will be when a micro-batch leaves."""

    rest: Callable[[Any], Any]
    """Those that belong to no layer, so many steps ahead."""
    forwards: Any
    """Those of layers, for what each stage evaluates."""
    backwards: Any
    """The same for what each stage projects."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """Steps of a stream, on one device, or as what each of several does, inside of `jax.shard_map`."""

    chain: Chain
    stages: int
    each: int
    """How many layers a stage has."""
    softness: float
    reach: float
    axis: str | None = None
    """Of the mesh, over which stages are divided."""
    devices: int = 1
    """Along that axis."""

    @property
    def slots(self) -> int:
        """How long inputs are kept, in steps."""
        return 2 * self.stages - 1

    def empty(self, rest: Any, layers: Any, micro: Any) -> Flight:
        """Nothing under way. Refuses layers that do not return what they take."""
        wires = jax.eval_shape(self.chain.first, rest, micro)
        one = jax.tree.map(lambda leaf: leaf[0], layers)
        self.chain.check_layer(wires, jax.eval_shape(self.chain.layer, rest, one, wires))

        def zeros(*axes: int) -> Any:
            return lambda x: jnp.zeros((*axes, *jnp.shape(x)), jnp.result_type(x))

        n = self.stages
        return Flight(
            jnp.zeros((), jnp.int32),
            jax.tree.map(zeros(n), wires),
            jax.tree.map(zeros(n, self.slots), wires),
            [jnp.zeros((n, *x.shape), _wide(x)) for x in jax.tree.leaves(wires) if _is_real(x)],
            jnp.ones(n),
            jnp.full(self.slots, -1, jnp.int32),
            jax.tree.map(zeros(self.slots), micro),
            jnp.full(n, -1, jnp.int32),
        )

    def run(
        self, params: Parameters, velocity: Parameters | None, flight: Flight, micros: Any, drain: bool
    ) -> tuple[Totals, Flight]:
        """As many steps as there are micro-batches; with ``drain``, until none is under way.

        Args:
            params: those of layers as ``(stages, layers, ...)``.
            velocity: by how much they move in a step, as far as is known.
            flight: what is under way.
            micros: the micro-batches, stacked.
            drain: whether to go on without new ones.
        """
        number = len(jax.tree.leaves(micros)[0])
        new = jnp.ones(number, bool)
        if drain:
            more = 2 * (self.stages - 1)
            new = jnp.concatenate([new, jnp.zeros(more, bool)])
            micros = jax.tree.map(lambda x: jnp.concatenate([x, jnp.repeat(x[:1], more, 0)]), micros)
        whole, mine = 2 * (self.stages - 1), self._mine
        rest, layers = (
            functools.partial(_moving, tree, v)
            for tree, v in zip(params, velocity or Parameters(None, None), strict=True)
        )
        at = _Points(rest, layers(whole - mine), layers(mine))

        def step(i: jax.Array, carry: tuple[Totals, Flight]) -> tuple[Totals, Flight]:
            totals, flight = carry
            more, flight = self._step(at, flight, *jax.tree.map(lambda x: x[i], (micros, new)))
            return jax.tree.map(jnp.add, totals, more), flight

        shapes = jax.eval_shape(
            lambda m: self._step(at, flight, m, new[0])[0], jax.tree.map(lambda x: x[0], micros)
        )
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        many: Any = len(new)
        if many == 1:  # hidden from the compiler: a loop of one step would be none, and copy what is kept
            many = jax.lax.optimization_barrier(jnp.int32(1))
        return jax.lax.fori_loop(0, many, step, (nothing, flight))

    @property
    def _mine(self) -> jax.Array:
        """The stages of this device."""
        each = self.stages // self.devices
        return self._place() * each + jnp.arange(each)

    def _step(self, at: _Points, flight: Flight, micro: Any, new: jax.Array) -> tuple[Totals, Flight]:
        """One step of all stages. Where ``new`` is false nothing enters; ``micro`` only has the shape."""
        t, n, mine = flight.steps, self.stages, self._mine
        whole = 2 * (n - 1)

        def ago(steps: int | jax.Array) -> jax.Array:
            return (t - steps) % self.slots

        now = ago(0)
        entered = flight.entered.at[now].set(jnp.where(new, t, -1))
        batches = jax.tree.map(lambda ring, x: ring.at[now].set(x), flight.batches, micro)

        # Forwards.
        entering = self._only(0, self.chain.first, at.rest(whole), micro)
        inputs = jax.tree.map(
            lambda xs, x: xs.at[0].set(jnp.where(self._place() == 0, x, xs[0])), flight.inputs, entering
        )
        outputs = jax.vmap(lambda steps, *given: self._stage(at.rest(steps), *given))(
            whole - mine, at.forwards, inputs
        )
        kept = jax.tree.map(lambda ring, x: ring.at[:, now].set(x), flight.kept, inputs)
        places = ago(whole - 2 * mine)
        old = jax.tree.map(lambda ring: jax.vmap(lambda r, i: r[i])(ring, places), kept)

        # The losses of what has come to the end.
        labels = jax.tree.map(lambda ring: ring[ago(n - 1)], batches)
        at_end = jax.tree.map(lambda x: x[-1], outputs)
        loss, scale, of_rest, wish = self._only(self.devices - 1, self._end, at.rest(n - 1), at_end, labels)
        is_last = self._place() == self.devices - 1
        seen = is_last & (entered[ago(n - 1)] >= 0)
        of_rest = _where(seen, of_rest)
        wishes = [
            all_.at[-1].set(jnp.where(is_last, w, all_[-1]))
            for all_, w in zip(flight.wishes, wish, strict=True)
        ]
        scales = flight.scales.at[-1].set(jnp.where(is_last, scale, flight.scales[-1]))

        # Backwards.
        waited = whole - mine
        about = entered[ago(waited)]
        came = about >= 0
        for_rest, for_layers, below = jax.vmap(lambda steps, *given: self._back(at.rest(steps), *given))(
            mine, at.backwards, old, wishes
        )
        below = _where(came, below)
        for_layers = _where(came, for_layers, scales)
        of_rest = jax.tree.map(lambda a, b: a + b.sum(0), of_rest, _where(came, for_rest, scales))
        first = jax.tree.map(lambda ring: ring[ago(whole)], batches)
        of_first = self._only(0, self._begin, at.rest(0), first, [w[0] for w in below])
        of_first = _where((self._place() == 0) & came[0], of_first, scales[0])
        totals = Totals(
            jax.tree.map(jnp.add, of_rest, of_first),
            for_layers,
            jnp.where(seen, loss, 0),
            seen.astype(loss.dtype),
        )
        return totals, Flight(
            t + 1,
            jax.tree.map(self._up, outputs),
            kept,
            list(map(self._down, below)),
            self._down(scales),
            entered,
            batches,
            jnp.where(came, waited, flight.age),
        )

    # --- What a stage does ---

    def _stage(self, rest: Any, layers: Any, wires: Any) -> Any:
        """The layers of one stage, one after the other."""
        if self.each == 1:
            return self.chain.layer(rest, jax.tree.map(lambda leaf: leaf[0], layers), wires)
        return self.chain.through(rest, layers, wires, self.each)

    def _back(self, rest: Any, layers: Any, wires: Any, goals: list[jax.Array]) -> tuple[Any, Any, Any]:
        """What a stage asks of parameters and of its inputs, given what is asked of its outputs."""
        found = self._asked(self._stage, (rest, layers, wires), goals)
        return *found[:2], _real(found[2], wires)

    def _begin(self, rest: Any, micro: Any, goals: list[jax.Array]) -> Any:
        if not jax.tree.leaves(rest):
            return rest
        return self._asked(lambda rest: self.chain.first(rest, micro), (rest,), goals)[0]

    def _asked(self, fn: Callable[..., Any], args: tuple[Any, ...], goals: list[jax.Array]) -> Any:
        """What a function asks of its arguments; zeros for what is not real."""
        problem, give = _problem(lambda *args: _real(fn(*args)), args, losses=False)
        _, answer = problem.answering(
            [Wire(expr) for expr in problem.graph.outputs], soft.vanishing(self.softness, self.reach)
        )
        return give(answer(goals))

    def _end(self, rest: Any, wires: Any, micro: Any) -> tuple[jax.Array, jax.Array, Any, list[jax.Array]]:
        """The loss, the scale of its wishes, and what it asks of parameters, and, scaled, of wires."""
        problem, give = _problem(
            lambda rest, wires: self.chain.last(rest, wires, micro), (rest, wires), losses=True
        )
        found, scale = soft.sweep(problem, self.softness, self.reach, alone=False)
        of_rest, wishes = give(found)
        return problem.loss, scale, jax.tree.map(lambda x: x / scale, of_rest), _real(wishes, wires)

    # --- Where stages are on several devices ---

    def _place(self) -> Any:
        return 0 if self.axis is None else jax.lax.axis_index(self.axis)

    def _only(self, device: int, fn: Callable[..., Any], *args: Any) -> Any:
        """What a function returns on one device; zeros on the others, which do not call it."""
        if self.axis is None:
            return fn(*args)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(fn, *args))
        return jax.lax.cond(self._place() == device, lambda: fn(*args), lambda: zeros)

    def _up(self, x: jax.Array) -> jax.Array:
        """What each stage gets from the one below."""
        return jnp.concatenate([self._passed(x[-1:], 1), x[:-1]])

    def _down(self, x: jax.Array) -> jax.Array:
        """What each stage gets from the one above."""
        return jnp.concatenate([x[1:], self._passed(x[:1], -1)])

    def _passed(self, x: jax.Array, by: int) -> jax.Array:
        """What comes from the device so many before; zeros where there is none."""
        if self.axis is None:
            return jnp.zeros_like(x)
        pairs = [(i, i + by) for i in range(self.devices) if 0 <= i + by < self.devices]
        return jax.lax.ppermute(x, self.axis, pairs)


def _problem(
    fn: Callable[..., Any], args: tuple[Any, ...], losses: bool
) -> tuple[Problem, Callable[..., Any]]:
    """A function at some arguments, whose real leaves are its parameters; and their tree from answers."""
    leaves, treedef = jax.tree.flatten(args)
    real = [i for i, leaf in enumerate(leaves) if _is_real(leaf)]

    def of_real(given: list[Any]) -> Any:
        every = list(leaves)
        for i, leaf in zip(real, given, strict=True):
            every[i] = leaf
        return fn(*jax.tree.unflatten(treedef, every))

    parameters = [leaves[i] for i in real]
    traced = read.read(of_real, parameters)
    graph: Graph = read.build(traced, sweeps=True, losses=losses)
    problem = Problem(last_to_first(graph), traced.constants, parameters, sweeps=True)

    def give(found: list[jax.Array]) -> Any:
        answers: list[Any] = [jnp.zeros(jnp.shape(leaf), _wide(leaf)) for leaf in leaves]
        for i, answer in zip(real, found, strict=True):
            answers[i] = answer.astype(_wide(leaves[i]))
        return jax.tree.unflatten(treedef, answers)

    return problem, give


def _is_real(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.floating))


def _real(tree: Any, of: Any = None) -> list[Any]:
    """The leaves of a tree for which those of another one, or they themselves, are real numbers."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(tree if of is None else of), strict=True)
    return [leaf for leaf, other in pairs if _is_real(other)]


def _wide(x: Any) -> Any:
    """The type in which wishes are carried."""
    return jnp.result_type(jnp.float32, x) if _is_real(x) else jnp.float32


def _moving(tree: Any, velocity: Any, steps: jax.Array | int) -> Any:
    """Arrays some steps later, where it is known how they move.

    With a number of steps for each entry of their first axis, or for all.
    """
    if velocity is None:
        return tree
    return jax.tree.map(lambda x, v: x + (_before(x, steps) * v).astype(x.dtype), tree, velocity)


def _where(mask: jax.Array, tree: Any, scale: jax.Array | float = 1.0) -> Any:
    """Arrays over a scale where a mask for their first axes holds, and zero elsewhere."""
    scale = jnp.broadcast_to(scale, jnp.shape(mask))
    return jax.tree.map(lambda x: jnp.where(_before(x, mask), x / _before(x, scale), 0), tree)


def _before(x: jax.Array, first: jax.Array | int) -> jax.Array:
    """What there is for the first axes of an array, with axes for the others."""
    return jnp.reshape(first, (*jnp.shape(first), *(1 for _ in range(x.ndim - jnp.ndim(first)))))
