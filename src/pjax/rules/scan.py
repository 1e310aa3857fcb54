"""Loops that are kept as what they are: `lax.scan` as one node.

Its output is every real number that the scan returns, in one flat array, of which the function's own outputs
are layouts.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.rules.base import Arrays, Place, Rule

if TYPE_CHECKING:
    from pjax.graph.nodes import Graph


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(Rule):
    """A scan whose body is a graph of its own.

    The inputs are those of the scan: fixed ones, the initial state, and arrays to go through. In the body's
    graph those that depend on a parameter are leaves, and so are states that are real; others are constants.
    """

    body: "Graph"
    fixed: int
    carry: int
    """How many of the inputs are fixed, and how many are the initial state."""
    length: int
    reverse: bool
    unroll: int
    """How many steps are written out one after the other, as `lax.scan` was told."""
    is_leaf: tuple[bool, ...]
    """For each input."""
    outputs: tuple[tuple[tuple[int, ...], Any], ...]
    """Shape and type of each result."""

    name: ClassVar[str] = "scan"

    def forward(self, *inputs: Any) -> jax.Array:
        """All real numbers, flat."""
        return self._evaluated(None, *inputs)

    def soft(self, softness: float) -> Callable[..., jax.Array]:
        """With a body of soft nodes: JAX sweeps it step by step, from the last to the first."""
        return functools.partial(self._evaluated, softness)

    def _evaluated(self, softness: float | None, *inputs: Any) -> jax.Array:
        first = self.fixed + self.carry
        fixed, state, xs = inputs[: self.fixed], inputs[self.fixed : first], inputs[first:]

        def step(state: list[Any], xs: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
            pairs = list(zip((*fixed, *state, *xs), self.is_leaf, strict=True))
            constants, leaves = ([x for x, is_leaf in pairs if is_leaf is kind] for kind in (False, True))
            evaluate, _ = self.body.evaluator(constants, leaves, softness)
            outs = [evaluate(expr) for expr in self.body.outputs]
            return outs[: self.carry], outs[self.carry :]

        # The types of the states are those that the body returns.
        start = [jnp.asarray(x, self.outputs[i][1]) for i, x in enumerate(state)]
        last, rest = jax.lax.scan(
            step, start, xs, length=self.length, reverse=self.reverse, unroll=self.unroll
        )
        real = [x for x in (*last, *rest) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.concatenate([jnp.ravel(x).astype(self.dtype) for x in real])

    @property
    def first_order(self) -> bool:
        return self.body.first_order

    @property
    def steps(self) -> int:
        return self.length

    def move_edges(
        self, at: Place, shifts: Arrays, goal: jax.Array | None
    ) -> tuple[Arrays, jax.Array | None]:
        raise NotImplementedError("where a scan projects, its steps are nodes of their own")

    @functools.cached_property
    def dtype(self) -> Any:
        return jnp.result_type(*(dtype for _, dtype in self._real))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape, _ in self._real)

    @property
    def _real(self) -> list[tuple[tuple[int, ...], Any]]:
        return [out for out in self.outputs if jnp.issubdtype(out[1], jnp.floating)]
