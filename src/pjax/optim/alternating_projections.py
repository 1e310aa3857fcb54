"""Alternating projections."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from pjax.edges import EdgeSpace, State
from pjax.extrapolation import Extrapolation
from pjax.optim._iteration import EdgeIteration, Iteration
from pjax.optim._solver import Solver, check_option
from pjax.problem import Problem
from pjax.sweep import Sweep


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlternatingProjections(Solver):
    """Projects onto one set after the other: z ← P₂(P₁(z)).

    The targets are in the first set. Converges to a point of the intersection where the sets are convex
    and meet (Bregman, 1965). In node-sized memory, exactly.

    Args:
        extrapolate: ``None``: a node goes to the mean of what its readers ask for, as in the paper;
            ``"tensor"``: beyond it, by a factor for the whole node that is the larger, the fewer of its
            readers ask for a move at all (see `pjax.extrapolation`); ``"sample"``: by one for each sample,
            where its first axis is that of the samples. Converges as well where the sets are convex and meet.
            With an outer optimiser, which chooses the steps of the parameters itself, they are left out.
    """

    name: ClassVar[str] = "AP"

    extrapolate: Literal["tensor", "sample"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("extrapolate", self.extrapolate, (None, "tensor", "sample"))

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        if self.edges == "implicit":
            return Sweep(problem, extrapolation=self._extrapolation, measure=measure)
        return EdgeIteration(EdgeSpace(problem), self._cycle, measure=measure)

    @property
    def stacks(self) -> bool:
        return super().stacks and self.extrapolate is None

    @property
    def _extrapolation(self) -> Extrapolation | None:
        if self.extrapolate is None:
            return None
        return Extrapolation(per_sample=self.extrapolate == "sample", parameters=self.outer is None)

    def _cycle(self, space: EdgeSpace, z: State, measure: bool) -> tuple[State, jax.Array]:  # noqa: ARG002
        squared = jnp.zeros((), space.problem.dtype)
        for k in range(len(space.problem.partition.sets)):
            after, _, moved = space.project(k, z)
            extrapolation = self._extrapolation
            z = space.extrapolated(k, z, after, extrapolation) if extrapolation else after
            squared += moved
        return z, squared
