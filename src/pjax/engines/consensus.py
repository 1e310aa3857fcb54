"""Alternating and cyclic projections without edges.

When a node projects, each of its neighbours has projected since its last turn. So the edges that enter
it carry its sources' values, in consensus, and of the edges that leave it only the mean matters. Two
numbers for every scalar of every node are the whole state, exactly:

- `value`, what its readers see;
- `message`, what it sees: its value plus the mean of the moves that its readers made since.

At the end of a cycle one of the two is enough for most nodes, and always for two sets.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pjax.devices import on_one_device
from pjax.engines import extrapolation
from pjax.engines.point import Problem, add
from pjax.rules.base import Moves


class State(NamedTuple):
    """Displacements by node."""

    value: dict[int, jax.Array]
    message: dict[int, jax.Array]
    squared: jax.Array
    """The sum over all nodes of the squared moves of the last cycle, where measured."""
    neglected: dict[int, jax.Array] = {}  # noqa: RUF012
    """Nothing is: these states are exact."""


# In sets of more nodes than this inputs wait as well: that costs a copy, and saves more with each node.
_MANY = 8


def _after(x: jax.Array, last: jax.Array) -> jax.Array:
    """An array that waits for the moves of the node before, on CPU.

    Nodes of one set are independent, but a few cores do not work on more than one of them at a time: starting
    them all would only keep all their temporary arrays in memory. Other devices go as they like. The product
    with zero is not optimised away, since it could be NaN.
    """
    return on_one_device(x, last, cpu=lambda x, last: x + last.ravel()[0] * 0, default=lambda x, _: x)


def _end(moves: Moves) -> jax.Array:
    """What the next node waits for: a message, which comes last.

    To wait for one costs a copy of it, so where the messages are much larger than the output, for that.
    """
    messages = [m for m in moves.inputs if m is not None]
    if moves.output is None:
        return messages[0]
    return next((m for m in messages if m.size <= 8 * moves.output.size), moves.output)


def _neighbours(places: list[int]) -> bool:
    return places == list(range(places[0], places[0] + len(places)))


def _picked(x: jax.Array, places: list[int]) -> jax.Array:
    """The numbers at some places."""
    return x[places[0] : places[-1] + 1] if _neighbours(places) else x[np.asarray(places)]


def _put(x: jax.Array, places: list[int], number: int) -> jax.Array:
    """The transpose of `_picked`: for each of so many places, the sum of the numbers that belong there."""
    if _neighbours(places):
        return jnp.pad(x, (places[0], number - 1 - places[-1]))
    return jnp.zeros(number, x.dtype).at[np.asarray(places)].add(x)


class Cycle:
    """One cycle through the sets of a partition, again and again."""

    def __init__(self, problem: Problem, *, extrapolate: bool = False, measure: bool = False) -> None:
        self._problem = problem
        self._extrapolate = extrapolate
        self._measure = measure
        graph, set_of = problem.graph, problem.partition.set_of()
        readers = [[set_of[r] for r, _ in pairs] for pairs in graph.readers]
        self._values = [v for v, sets in enumerate(readers) if any(k < set_of[v] for k in sets)]
        self._messages = [v for v, sets in enumerate(readers) if any(k > set_of[v] for k in sets)]

    def start(self) -> State:
        """All nodes at the forward evaluation."""
        dtype = self._problem.dtype
        still = {n.index: jnp.zeros(n.shape, dtype) for n in self._problem.graph.nodes}
        return self._kept(still, still, jnp.zeros((), dtype))

    def _kept(self, value: dict[int, jax.Array], message: dict[int, jax.Array], squared: jax.Array) -> State:
        kept = self._problem.kept
        values, messages = {v: value[v] for v in self._values}, {v: message[v] for v in self._messages}
        return State(kept(values), kept(messages), squared)

    def step(self, state: State) -> State:
        """Project onto each set in turn."""
        problem, state = self._problem.inside(state)
        value = dict(state.value)
        message = {**state.value, **state.message}
        squared = jnp.zeros((), problem.dtype)
        last: jax.Array | None = None
        for nodes in problem.partition.sets:
            pulled: dict[int, jax.Array] = {}
            squares: dict[int, jax.Array] = {}
            for v in nodes:
                node = problem.graph.nodes[v]
                if node.is_parameter:
                    if v in message:  # not where it is only held
                        value[v] = message[v]
                    continue
                shifts = problem.shifts(v, value)
                goal = message.get(v)
                if last is not None and goal is not None:
                    goal = _after(goal, last)
                    if len(nodes) > _MANY:
                        shifts = tuple(
                            s if s is None or s.size > goal.size else _after(s, last) for s in shifts
                        )
                moves = problem.project(v, shifts, goal)
                last = _end(moves)
                if self._measure:
                    squared += problem.squared(v, moves)
                if moves.output is not None:
                    reached = moves.reach(message[v]) if moves.reach else message[v] + moves.output
                    value[v] = message[v] = problem.sharded(v, reached)
                problem.send(v, moves.inputs, to=pulled)
                if self._extrapolate:
                    for i in (i for i, total in enumerate(moves.inputs) if total is not None):
                        add(squares, self._squares(problem, v, i, moves))
            for s, mean in problem.means(pulled).items():
                if self._extrapolate:
                    mean = mean * extrapolation.factor(problem, s, mean, squares[s])
                message[s] = message[s] + mean
        return self._kept(value, message, squared)

    @staticmethod
    def _squares(problem: Problem, v: int, i: int, moves: Moves) -> Iterator[tuple[int, jax.Array]]:
        """For each source of an input, the sum of the squared moves of the edges from there.

        For a stack, that of each member.
        """
        assert moves.squares is not None
        origins = problem.origins(v, i)
        if origins is None:
            for source, squares in problem.pull(v, i, moves.squares(i, False), power=2):
                yield source, problem.over_members(source, squares)
            return
        total = problem.over_members(v, moves.squares(i, True)) / jnp.squeeze(problem.scale(v, i)) ** 2
        for source in dict.fromkeys(s for s, _ in origins):
            mine = [m for m, (s, _) in enumerate(origins) if s == source]
            part = _picked(total, mine) if total.ndim else total
            axis = problem.graph.axis_of_members(source)
            if axis is not None:
                number = problem.graph.nodes[source].shape[axis]
                part = _put(jnp.atleast_1d(part), [origins[m][1] for m in mine], number)
            yield source, part if axis is not None else jnp.sum(part)

    def values(self, state: State) -> dict[int, jax.Array]:
        return self._problem.widen({**state.value, **state.message})

    def parameters(self, state: State) -> dict[int, jax.Array]:
        values = self.values(state)
        return {node.index: values[node.index] for node in self._problem.graph.parameters}

    def agreed(self, state: State, mean: Callable[[jax.Array], jax.Array]) -> State:
        known = {node.index for node in self._problem.graph.parameters}
        value, message = (
            {v: mean(x) if v in known else x for v, x in d.items()} for d in (state.value, state.message)
        )
        return State(value, message, state.squared)
