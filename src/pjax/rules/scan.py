"""Loops that are kept as what they are: `lax.scan` as one node.

Its output is everything that the scan returns, in one flat array, followed by the states that its steps
started from. So the function's own outputs are layouts of it, and nothing is evaluated twice.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.rules.base import Arrays, Moves, Place, Rule, Shifts

if TYPE_CHECKING:
    from pjax.graph.nodes import Graph

Inner = Callable[["Graph", Sequence[Any], Sequence[Any], Sequence[jax.Array]], list[jax.Array]]
"""From a body's graph, its constants and leaves, and what is asked of its outputs, to what is asked of its
leaves."""


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(Rule):
    """A scan whose body is a graph of its own.

    The inputs are those of the scan: fixed ones, the initial state, and arrays to go through. In the body's
    graph those that depend on a parameter are leaves, and so are the states; the others are constants.
    """

    body: "Graph"
    fixed: int
    carry: int
    """How many of the inputs are fixed, and how many are the initial state."""
    length: int
    reverse: bool
    is_leaf: tuple[bool, ...]
    """For each input."""
    outputs: tuple[tuple[tuple[int, ...], Any], ...]
    """Shape and type of each result, with those of the states that the steps start from."""

    name: ClassVar[str] = "scan"

    def forward(self, *inputs: Any) -> jax.Array:
        """Everything, flat."""
        fixed, state, xs = self._split(inputs)

        def step(state: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            constants, leaves = self._sort([*fixed, *state, *xs])
            evaluate, _ = self.body.evaluator(constants, leaves)
            outs = [evaluate(expr) for expr in self.body.outputs]
            return outs[: self.carry], [*outs[self.carry :], *state]

        # The types of the states are those that the body returns.
        start = [jnp.asarray(x, self.outputs[i][1]) for i, x in enumerate(state)]
        last, rest = self._scan(step, start, xs, self.reverse)
        return jnp.concatenate([jnp.ravel(x).astype(self.dtype) for x in (*last, *rest)])

    def wishes(
        self,
        inputs: Sequence[Any],
        output: jax.Array,
        goal: jax.Array,
        softness: float,  # noqa: ARG002 - `inner` knows it
        inner: Inner,
    ) -> list[Any]:
        """What is asked of each input, given what is asked of the output: from the last step to the first.

        Args:
            inputs: of the scan.
            output: of `forward`.
            goal: of the same shape; what it asks of the states in between is left out.
            softness: of the sweep.
            inner: what one step asks of its leaves.

        Returns:
            One array for each input; None for constants.
        """
        fixed, _, xs = self._split(inputs)
        values, goals = self._unflatten(output), self._unflatten(goal)
        asked, states = goals[: self.carry], values[len(values) - self.carry :]
        for_outputs = goals[self.carry : len(goals) - self.carry]
        kinds = self._split(self.is_leaf)

        def step(so_far: Any, now: Any) -> tuple[Any, list[jax.Array]]:
            (asked, totals), (xs, state, for_outputs) = so_far, now
            constants, leaves = self._sort([*fixed, *state, *xs])
            wanted = iter(inner(self.body, constants, leaves, [*asked, *for_outputs]))
            of_fixed = [next(wanted) for is_leaf in kinds[0] if is_leaf]
            of_state = [next(wanted) for is_leaf in kinds[1] if is_leaf]
            totals = [total + part for total, part in zip(totals, of_fixed, strict=True)]
            return (of_state, totals), list(wanted)

        none = [jnp.zeros(jnp.shape(x), goal.dtype) for x, leaf in zip(fixed, kinds[0], strict=True) if leaf]
        now = (xs, states, for_outputs)
        (asked, totals), of_xs = self._scan(step, (asked, none), now, not self.reverse)
        found = itertools.chain(totals, asked, of_xs)
        return [next(found) if is_leaf else None for is_leaf in self.is_leaf]

    @property
    def steps(self) -> int:
        return self.length

    def move(self, at: Place, shifts: Shifts, goal: jax.Array | None) -> Moves:
        raise NotImplementedError("where a scan projects, its steps are nodes of their own")

    def move_edges(
        self, at: Place, shifts: Arrays, goal: jax.Array | None
    ) -> tuple[Arrays, jax.Array | None]:
        raise NotImplementedError("where a scan projects, its steps are nodes of their own")

    @functools.cached_property
    def dtype(self) -> Any:
        return jnp.result_type(*(dtype for _, dtype in self.outputs))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape, _ in self.outputs)

    def result(self, i: int) -> Callable[[jax.Array], jax.Array]:
        """The layout that picks one result."""
        return lambda flat: self._unflatten(flat)[i]

    def _unflatten(self, flat: jax.Array) -> list[jax.Array]:
        ends = itertools.accumulate(math.prod(shape) for shape, _ in self.outputs)
        starts = [0, *ends]
        return [
            flat[a:b].reshape(shape)
            for a, b, (shape, _) in zip(starts, starts[1:], self.outputs, strict=False)
        ]

    def _split(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        first = self.fixed + self.carry
        return list(inputs[: self.fixed]), list(inputs[self.fixed : first]), list(inputs[first:])

    def _sort(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Constants and leaves."""
        pairs = list(zip(inputs, self.is_leaf, strict=True))
        return [x for x, is_leaf in pairs if not is_leaf], [x for x, is_leaf in pairs if is_leaf]

    def _scan(self, step: Any, start: Any, xs: Any, reverse: bool) -> Any:
        return jax.lax.scan(step, start, xs, length=self.length, reverse=reverse)
