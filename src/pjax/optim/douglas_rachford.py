"""Douglas-Rachford, and its relatives by relaxation."""

from collections.abc import Callable
from typing import ClassVar

import jax

from pjax.checks import check_whole, is_number
from pjax.engines.edges.space import AllEdges, EdgeIteration, EdgeSpace, combine, histories
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.optim.solver import EdgeSolver, Iteration, method


@method
class _Reflecting(EdgeSolver):
    """A method whose state is a point from which the solution is read off by projecting once more."""

    history: int | None = None
    """With implicit edges: how many terms of history contractions keep. By default short ones where that
    is accurate, and stored edges where that is cheap or necessary: see `pjax.optim.neglect`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history is not None:
            check_whole("history", self.history)

    def fades(self) -> bool:
        """Whether old terms of the history fade, so that it can be short."""
        return True

    @property
    def may_store(self) -> bool:
        return self.history is None

    def space(self, problem: Problem) -> EdgeSpace:
        if self.edges == "explicit" or not self.fades():
            return EdgeSpace(problem)
        return EdgeSpace(problem, histories(problem, self.history))

    def stored(self, problem: Problem) -> AllEdges:
        return self.space(problem).start()


@method
class DouglasRachford(_Reflecting):
    """Reflects in both sets and averages: z ← (1−ρ) z + ρ R₂(R₁(z)), with R = 2P − 1.

    The shadow sequence P₁(z) converges to a point of the intersection where the sets are convex and meet
    (Lions, Mercier, 1979); it is what `update` returns.

    Args:
        relaxation: ρ in (0, 1]. Other values than 0.5 store the edges.
    """

    name: ClassVar[str] = "DR"

    relaxation: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.relaxation) and 0 < self.relaxation <= 1):
            raise InputError(f"relaxation must be in (0, 1], got {self.relaxation!r}")

    def fades(self) -> bool:
        return self.relaxation == 0.5

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        def shadow(space: EdgeSpace, z: AllEdges) -> AllEdges:
            return space.project(0, z)

        def advance(space: EdgeSpace, z: AllEdges) -> tuple[AllEdges, Callable[[], jax.Array]]:
            first = shadow(space, z)
            second = space.project(1, combine((2, first), (-1, z)))
            rho = 2 * self.relaxation
            return combine((1, z), (rho, second), (-rho, first)), lambda: space.distance(first, second)

        return EdgeIteration(self.space(problem), advance, shadow, measure)
