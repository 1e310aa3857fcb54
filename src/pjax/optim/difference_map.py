"""The difference map."""

from collections.abc import Callable
from typing import ClassVar

import jax

from pjax.checks import is_number
from pjax.engines.edges.space import AllEdges, EdgeIteration, EdgeSpace, combine
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.optim.douglas_rachford import _Reflecting
from pjax.optim.solver import Iteration, method


@method
class DifferenceMap(_Reflecting):
    """z ← z + β (P₂(f₁(z)) − P₁(f₂(z))), f₁ = P₁ + (P₁ − 1)/β, f₂ = P₂ − (P₂ − 1)/β (Elser, 2003).

    With β = 1 it is Douglas-Rachford.

    Args:
        beta: β, not zero; usually between 0.5 and 1 in size.
    """

    name: ClassVar[str] = "DM"

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.beta) or self.beta == 0:
            raise InputError(f"beta must be finite and not zero, got {self.beta!r}")

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        beta = self.beta

        def behind(space: EdgeSpace, z: AllEdges) -> AllEdges:
            if beta == 1:
                return space.project(0, z)
            second = space.project(1, z)
            return space.project(0, combine((1 - 1 / beta, second), (1 / beta, z)))

        def advance(space: EdgeSpace, z: AllEdges) -> tuple[AllEdges, Callable[[], jax.Array]]:
            last = behind(space, z)
            first = last if beta == 1 else space.project(0, z)
            ahead = space.project(1, combine((1 + 1 / beta, first), (-1 / beta, z)))
            return combine((1, z), (beta, ahead), (-beta, last)), lambda: space.distance(ahead, last)

        return EdgeIteration(self.space(problem), advance, behind, measure)
