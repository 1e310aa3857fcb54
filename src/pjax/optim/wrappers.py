"""What can be put around any method: an outer optimiser, parts of a batch, groups with rare exchanges.

A wrapper is a method itself, so wrappers go around wrappers, and wherever a method is asked for.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pjax.checks import check_whole
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.optim.solver import Iteration, Moved, Solver, check_solver, check_transformation


@dataclasses.dataclass(frozen=True)
class Wrapper(Solver):
    """Around a method, which does all that a wrapper does not say otherwise."""

    method: Solver

    def __post_init__(self) -> None:
        check_solver(self.method)

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        return self.method.iteration(problem, measure=measure)


class _OfMethod:
    """An attribute that is the method's, unless a wrapper has one of its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Wrapper | None, kind: Any = None) -> Any:
        if wrapper is None:  # so that it is no default of a field
            raise AttributeError(self._name)
        return getattr(wrapper.method, self._name)


_OWN = {"init", "update", "iteration"}
for _name in {*vars(Solver), *Solver.__annotations__} - _OWN:
    if not _name.startswith("_"):
        setattr(Wrapper, _name, _OfMethod(_name))


@dataclasses.dataclass(frozen=True)
class Outer(Wrapper):
    """An optax optimiser that makes the steps.

    It takes the parameters minus the projected parameters for a gradient, and its updates are applied
    instead; its state is part of the optimiser's. `ExtrapolatedProjections` has one of its own.

    Args:
        method: any other method.
        transformation: any `optax.GradientTransformation`. One that wants more, such as `optax.polyak_sgd`,
            is given the loss as ``value``.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> import pjax
    >>> optimizer = Outer(pjax.optim.AlternatingProjections(steps_per_update=10), optax.sgd(2.0))
    >>> params = jnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> fn = lambda p: pjax.squared_error(jnp.array([[1.0, 2.0]]) @ p, jnp.ones(1))
    >>> params, state, loss = optimizer.update(fn, params, state)
    """

    transformation: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        check_transformation(self.transformation)
        if self.method.outer_optimizer is not None:
            raise InputError(
                f"{self.method.name} has an outer optimiser already: pass the transformation as its outer="
            )

    @property
    def outer_optimizer(self) -> Any:
        return self.transformation


@dataclasses.dataclass(frozen=True)
class Accumulated(Wrapper):
    """Goes through the ``batch`` of `update` in parts, one after the other: less memory.

    The result is that of the whole batch for `ExtrapolatedProjections` and for `AlternatingProjections` with
    implicit edges and without extrapolation, which add up what the parts ask of the parameters in every step.
    With other methods each part makes all steps of an update from the same parameters, and these then are at
    the mean of where the parts have them.

    Args:
        method: any method.
        parts: into how many parts of the same size.
    """

    parts: int  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("parts", self.parts)
        _check_divided(self)

    def moves_on(self, make: Callable[[Any], Problem], arrays: Any) -> Moved:
        return self.method.moves_in_parts(make, arrays) if self.parts > 1 else super().moves_on(make, arrays)


@dataclasses.dataclass(frozen=True)
class Groups(Wrapper):
    """Divides the ``batch`` of `update` into groups that work apart, and then average their parameters.

    Each works on a device of its own where the batch is divided among so many.

    Args:
        method: any method.
        groups: how many.
        sync_every: for how many steps groups hear nothing of each other before their parameters are averaged;
            a divisor of the method's `steps_per_update`. Alternating projections that exchange in every step
            are those of the whole batch.
    """

    groups: int  # type: ignore[misc]
    sync_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("groups", self.groups)
        check_whole("sync_every", self.sync_every)
        _check_divided(self)
        steps = self.steps_per_update // self.rounds
        if steps % self.sync_every:
            raise InputError(
                f"sync_every must divide steps_per_update={steps}, got {self.sync_every}"
                if self.rounds == 1
                else f"{self.name} hands the moves of every step to its outer optimiser, so that groups"
                f" exchange them in every step: sync_every must be 1, got {self.sync_every}"
            )

    def moves_on(self, make: Callable[[Any], Problem], arrays: Any) -> Moved:
        if self.groups == 1:
            return super().moves_on(make, arrays)

        @functools.partial(jax.vmap, axis_name="groups")
        def group(arrays: Any) -> Any:
            problem = make(arrays)
            mean = functools.partial(jax.lax.pmean, axis_name="groups")
            return *self.method.moves(problem, mean, self.sync_every), problem.loss

        moves, neglected, losses = group(arrays)
        moves = {v: jnp.mean(move, 0) for v, move in moves.items()}
        return Moved(moves, {v: jnp.max(x) for v, x in neglected.items()}, jnp.mean(losses), [])


def _check_divided(wrapper: Wrapper) -> None:
    if max(wrapper.method.parts, wrapper.method.groups) > 1:
        raise InputError(
            "a batch is divided once, into groups or into parts: take one of Groups and Accumulated"
        )
