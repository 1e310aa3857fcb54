"""Solve a feasibility problem: step until all constraints hold, and say whether they do."""

import enum
import functools
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from pjax.checks import check_finite, check_function, check_whole
from pjax.errors import InputError, PjaxError
from pjax.graph import read as tracing
from pjax.optim.callback import call_when
from pjax.optim.neglect import watched
from pjax.optim.solver import Program, Solver, check_solver, compiled
from pjax.rules.arithmetic import usual_promotion

P = TypeVar("P")


class Status(enum.IntEnum):
    """How a solve ended."""

    CONVERGED = 0
    MAX_STEPS = 1
    NOT_FINITE = 2

    @property
    def message(self) -> str:
        """What it means and what to do."""
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "all constraints hold to the tolerance",
    Status.MAX_STEPS: (
        "the constraints do not hold to the tolerance after max_steps steps, or no step can change those that"
        " do not. If the violation was still falling, allow more steps; if it was level, the problem may have"
        " no solution, or the method be caught: try DouglasRachford or DifferenceMap, or another start."
        " pjax.debug.violations shows which constraints do not hold"
    ),
    Status.NOT_FINITE: (
        "the iteration left the finite numbers. Look at the scale of the data and of the parameters, and try"
        " AlternatingProjections, which cannot overshoot. pjax.debug.locate_nan finds where it did"
    ),
}


class NotConvergedError(PjaxError, RuntimeError):
    """Raised by ``solve(…, throw=True)`` when the constraints do not hold."""


class Solution(NamedTuple, Generic[P]):
    """What `solve` found. All fields are arrays, so it can be returned from `jit` and `vmap`."""

    params: P
    """The parameters; for Douglas-Rachford and its relatives those of the shadow sequence."""
    status: jax.Array
    """A `Status`, as a number."""
    steps: jax.Array
    """How many steps were made."""
    violations: jax.Array
    """After each step, the root mean square over all edges of what the projections moved them by (for
    Douglas-Rachford: of the gap between its two projections); NaN for steps that were not made."""
    loss: jax.Array
    """The mean loss of the parameters that were given."""
    neglected: jax.Array
    """The largest term that a history left out, relative to what it kept; 0 where all is exact."""
    path: P | None
    """With ``record=True``, the parameters after each step, stacked; else None."""

    @property
    def converged(self) -> jax.Array:
        return self.status == Status.CONVERGED

    @property
    def message(self) -> str:
        """The status in words, with advice. Needs concrete values, so not inside `jit`."""
        return Status(int(self.status)).message


class _At(NamedTuple):
    """How far a solve has come."""

    leaves: list[Any]
    steps: jax.Array
    made: jax.Array
    """How many of these were made since choices (indices, orders, branches) were last made."""
    moving: jax.Array
    """The violation of constraints that parameters can change."""
    violation: jax.Array
    violations: jax.Array
    path: list[Any]
    neglected: dict[int, jax.Array]


def solve(
    fn: Callable[[P], Any],
    params: P,
    solver: Solver,
    *,
    max_steps: int = 1000,
    tolerance: float = 1e-6,
    callback: Callable[[Any, Any], None] | None = None,
    every: int | None = None,
    record: bool = False,
    throw: bool = False,
) -> Solution[P]:
    """Find parameters for which every constraint of a function holds.

    Args:
        fn: an ordinary JAX function of the parameters whose outputs are targets, such as
            `pjax.squared_error` (equality) or `pjax.margin_loss` (inequalities), or values in sets. Choices
            that depend on parameters (an index, an order, a branch) are held until the constraints hold, then
            made anew; it has converged when they do not change any more. Constraints on values that no
            parameter moves must hold as well.
        params: any pytree of floating-point arrays, the start.
        solver: a method of `pjax.optim`. Its `steps_per_update` is ignored, and so are wrappers around it.
        max_steps: when to give up.
        tolerance: stop when the violation (see `Solution.violations`) is at most this.
        callback: called with the step's number and its violation, also inside `jit`; `pjax.debug.progress`
            makes one that shows them.
        every: after how many steps to call it; by default after each, or after as many as its attribute
            ``every`` says, which `pjax.debug.progress` has. It is also called after the last step.
        record: whether to keep the parameters of each step in `Solution.path`.
        throw: raise `NotConvergedError` unless it converged. Not inside `jit`.
    """
    check_solver(solver)
    check_function(fn)
    if not (callback is None or callable(callback)):
        raise InputError(f"callback must be a function of a step and a violation, got {callback!r:.120}")
    every = getattr(callback, "every", 1) if every is None else every
    check_whole("max_steps", max_steps, end=2**31)
    check_whole("every", every)
    if not (isinstance(tolerance, jax.core.Tracer) or _is_tolerance(tolerance)):
        raise InputError(f"tolerance must be a number of at least 0, got {tolerance!r:.120}")
    traced = tracing.read(fn, params)
    leaves, treedef = jax.tree.flatten(params)
    if solver.check:
        check_finite(traced, leaves)
    program = compiled(solver, traced)
    limit = jnp.asarray(tolerance, program.partition.graph.dtype)

    key = (max_steps, callback is None, every, record)
    listener = None
    if callback is not None:
        if not any(known is callback for known in program.listeners):
            program.listeners.append(callback)
        number = next(i for i, known in enumerate(program.listeners) if known is callback)
        listener = jnp.asarray(number, jnp.int32)

    def attempt() -> Any:
        own = functools.partial(run, program, max_steps, every, record)
        run_compiled = program.solves.setdefault(key, jax.jit(own))
        return run_compiled(leaves, traced.constants, limit, listener)

    solution: Solution[Any] = watched(program, attempt)[0]
    solution = solution._replace(
        params=jax.tree.unflatten(treedef, solution.params),
        path=None if solution.path is None else jax.tree.unflatten(treedef, solution.path),
    )
    if throw and isinstance(solution.status, jax.core.Tracer):
        raise InputError("inside jit nobody can see how it ended: leave throw out, and return the solution")
    if throw and not bool(solution.converged):
        last = solution.violations[int(solution.steps) - 1]
        raise NotConvergedError(
            f"violation {float(last):.3g} after {int(solution.steps)} steps: {solution.message}"
        )
    return solution


@usual_promotion()
def run(
    program: Program,
    max_steps: int,
    every: int,
    record: bool,
    leaves: list[Any],
    constants: tuple[Any, ...],
    limit: jax.Array,
    listener: jax.Array | None,
) -> tuple[Solution[Any], dict[int, jax.Array]]:
    """What `solve` compiles: the solution, and the largest neglected terms of histories, by node.

    ``listener`` is the number of the callback among those of the program, if there is one.
    """
    dtype = program.partition.graph.dtype
    largest = jnp.asarray(jnp.finfo(dtype).max, dtype)

    def tell(listener: Any, *values: Any) -> None:
        program.listeners[int(listener)](*values)

    def from_there(at: _At) -> tuple[_At, jax.Array]:
        """Step until the constraints hold, from the forward evaluation of some parameters; their loss."""
        problem = program.problem(at.leaves, constants)
        iteration = program.solver.iteration(problem, measure=True)
        edges, still = max(problem.edges, 1), problem.still

        def per_edge(squared: jax.Array) -> jax.Array:
            return jnp.sqrt(jnp.maximum(squared, 0) / edges)

        def now(state: Any) -> list[Any]:
            return program.moved(at.leaves, iteration.parameters(state))

        def more(carry: tuple[Any, _At]) -> jax.Array:
            _, at = carry
            return (at.steps < max_steps) & (at.moving > limit) & jnp.isfinite(at.moving)

        def step(carry: tuple[Any, _At]) -> tuple[Any, _At]:
            (state, at), k = carry, carry[1].steps
            after = iteration.step(state)
            moving, violation = per_edge(after.squared), per_edge(after.squared + still)
            # That all holds is seen of the state before: one step on, a nearest point may be another one.
            state = jax.tree.map(lambda old, new: jnp.where(moving <= limit, old, new), state, after)
            if listener is not None:
                due = every == 1 or (k + 1) % every == 0
                call_when(due, tell, listener, k + 1, violation)
            path = [p.at[k].set(x) for p, x in zip(at.path, now(state), strict=True)] if record else []
            violations = at.violations.at[k].set(violation)
            seen: dict[str, Any] = {"moving": moving, "violation": violation, "violations": violations}
            return state, at._replace(steps=k + 1, **seen, path=path)

        state, end = jax.lax.while_loop(more, step, (iteration.start(), at._replace(moving=largest)))
        found = state.neglected
        neglected = {v: jnp.maximum(x, at.neglected[v]) if at.neglected else x for v, x in found.items()}
        end = end._replace(leaves=now(state), made=end.steps - at.steps, neglected=neglected)
        return end, problem.loss

    path = [jnp.full((max_steps, *jnp.shape(x)), jnp.nan, jnp.result_type(x)) for x in leaves]
    zero, violations = jnp.zeros((), jnp.int32), jnp.full(max_steps, jnp.nan, dtype)
    start = _At(list(leaves), zero, zero, largest, largest, violations, path if record else [], {})
    at, loss = from_there(start)
    again = jnp.bool_(False)
    if program.graph.holds:  # they hold for the choices of the start: what with those of now?

        def changes(at: _At) -> jax.Array:
            return (at.moving <= limit) & (at.made > 1) & (at.steps < max_steps)

        at = jax.lax.while_loop(changes, lambda at: from_there(at)[0], at)
        again = at.made > 1
    if listener is not None and every > 1:
        call_when(at.steps % every != 0, tell, listener, at.steps, at.violation)
    converged = (at.violation <= limit) & ~again
    status = jnp.where(
        jnp.isfinite(at.violation),
        jnp.where(converged, Status.CONVERGED, Status.MAX_STEPS),
        Status.NOT_FINITE,
    ).astype(jnp.int32)
    worst = functools.reduce(jnp.maximum, at.neglected.values(), jnp.zeros((), jnp.float32))
    found = Solution(at.leaves, status, at.steps, at.violations, loss, worst, at.path if record else None)
    return found, at.neglected


def _is_tolerance(x: Any) -> bool:
    try:
        return bool(x >= 0)
    except (TypeError, ValueError):  # of words, and of several numbers
        return False
