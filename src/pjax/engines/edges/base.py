"""The part of a contraction's edges that all of them share: the values of its sources."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

import jax

from pjax.engines.edges.combination import Linear
from pjax.engines.point import Problem
from pjax.graph.nodes import Node
from pjax.rules.contraction import Contraction

Base: TypeAlias = tuple[Linear | None, Linear | None]
"""The displacements of both inputs; None for a constant."""


class HasBase(Protocol):
    """Edges with a part that all of them share."""

    @property
    def base(self) -> Base: ...


def contraction(node: Node) -> Contraction:
    """The rule of a node whose edges are not simply stored."""
    return cast(Contraction, node.rule)


def now(problem: Problem, node: Node, base: Base) -> tuple[jax.Array, jax.Array]:
    """The values of a contraction's sources, given their displacements."""
    at = problem.inputs[node.index]
    x, y = (a if b is None else a + b.value for a, b in zip(at, base, strict=True))
    return x, y


def combined(terms: Sequence[tuple[float, HasBase]]) -> Base:
    """A linear combination of displacements; constants have none."""

    def one(i: int) -> Linear | None:
        parts = [(factor, edges.base[i]) for factor, edges in terms]
        return None if parts[0][1] is None else Linear.combine((f, b) for f, b in parts if b is not None)

    return one(0), one(1)
