"""What all solvers share: options, the compiled update, its cache."""

import abc
import collections
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp

from pjax import _trace as tracing
from pjax.check import check_finite, check_graph
from pjax.errors import InputError
from pjax.graph import Graph
from pjax.optim._iteration import Iteration
from pjax.partition import Partition, two_sets
from pjax.problem import Problem
from pjax.stacking import stacked

P = TypeVar("P")


class OptimizerState(NamedTuple):
    """What an optimiser carries from update to update."""

    updates: jax.Array
    """How many updates were made."""
    neglected: jax.Array
    """The largest term that a history left out so far, relative to what it kept; 0 where all is exact."""
    outer: Any = ()
    """The state of the outer optimiser, if there is one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solver(abc.ABC):
    """A projection method. Frozen hyperparameters; all state is passed in and out.

    Args:
        steps_per_update: how many steps `update` makes on one batch.
        consensus: ``"exact"`` weights a node's output by the number of edges that leave it, which is the
            projection onto its consensus set; ``"paper"`` weights it by one, as the paper's experiments.
        edges: ``"implicit"`` keeps node-sized arrays; ``"explicit"`` stores every edge (the definition).
        constants: ``"nodes"``, as in the paper: a product may move its copy of a constant, which is then
            set back. ``"fixed"``: it may not, so that a product with a constant is a linear constraint.
        metric: ``"unit"``, all edges count alike, as in the paper; ``"balanced"``: a product of x and y is
            projected in the variables s x and y / s in which its two factors have the same typical length
            (s² = |y| / |x|, one number for all dot products of a matmul or convolution, of the point where
            the update starts). Otherwise the longer factor makes the shorter one move, and what is asked of
            a layer goes into its weights and hardly back to the layer below.
        stack: whether equal nodes that project together, such as layers or time steps, run as one batched
            operation. The result is the same. Not done where each node has numbers of its own: with another
            metric than ``"unit"``, and with extrapolation.
        check: whether to look for values that are not finite before each update outside `jit`.
        outer: any `optax.GradientTransformation`. It takes the parameters minus the projected parameters for
            a gradient, and its updates are applied instead; its state is part of the optimiser's.
    """

    name: ClassVar[str]
    keeps_loops: ClassVar[bool] = False
    """Whether a scan is one node; otherwise its steps are nodes of their own."""

    steps_per_update: int = 50
    consensus: Literal["paper", "exact"] = "paper"
    edges: Literal["implicit", "explicit"] = "implicit"
    constants: Literal["nodes", "fixed"] = "nodes"
    metric: Literal["unit", "balanced"] = "unit"
    stack: bool = True
    check: bool = True
    outer: Any = None

    def __post_init__(self) -> None:
        steps = self.steps_per_update
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise InputError(f"steps_per_update must be a whole number of at least 1, got {steps!r}")
        check_option("consensus", self.consensus, ("paper", "exact"))
        check_option("edges", self.edges, ("implicit", "explicit"))
        check_option("constants", self.constants, ("nodes", "fixed"))
        check_option("metric", self.metric, ("unit", "balanced"))
        if self.outer is not None and not (hasattr(self.outer, "init") and hasattr(self.outer, "update")):
            raise InputError(
                "outer must be an optax.GradientTransformation, such as optax.adam(1e-3); got "
                f"{self.outer!r:.200}"
            )

    # --- What a method defines ---

    @abc.abstractmethod
    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        """The method on a problem. With ``measure``, steps also compute the violation they see."""

    def partition(self, graph: Graph) -> Partition:
        """Which nodes project together."""
        return two_sets(graph)

    def moves(self, problem: Problem) -> tuple[dict[int, jax.Array], jax.Array]:
        """How far the parameters move in one round, by node, and the largest neglected term."""
        iteration = self.iteration(problem)
        state = jax.lax.fori_loop(0, self.steps_per_update, lambda _, s: iteration.step(s), iteration.start())
        return iteration.parameters(state), iteration.neglected(state)

    @property
    def stacks(self) -> bool:
        """Whether equal nodes are stacked."""
        return self.stack and self.metric == "unit"

    @property
    def rounds(self) -> int:
        """How often an update evaluates the network anew, projects, and moves the parameters."""
        return 1

    # --- What users call ---

    def init(self, params: Any) -> OptimizerState:
        """The state before the first update."""
        outer = () if self.outer is None else self.outer.init(params)
        return OptimizerState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32), outer)

    @overload
    def update(self, fn: Callable[[P], Any], params: P) -> tuple[P, jax.Array]: ...

    @overload
    def update(
        self, fn: Callable[[P], Any], params: P, state: OptimizerState
    ) -> tuple[P, OptimizerState, jax.Array]: ...

    def update(
        self, fn: Callable[[P], Any], params: P, state: OptimizerState | None = None
    ) -> tuple[P, jax.Array] | tuple[P, OptimizerState, jax.Array]:
        """Make `steps_per_update` steps on the constraints that a function states.

        Args:
            fn: an ordinary JAX function of the parameters that ends in a target (a loss). It may be a new
                closure in every call: functions that trace to the same graph share one compiled update.
            params: any pytree of floating-point arrays. Leaves that `fn` does not use come back unchanged.
            state: what `init` or the last update returned. May be left out where there is no outer optimiser.

        Returns:
            The new parameters, the new state if one was given, and the mean loss of the *given*
            parameters on this batch.
        """
        if state is None and self.outer is not None:
            raise InputError(
                "an outer optimiser has a state: state = optimizer.init(params), then "
                "params, state, loss = optimizer.update(fn, params, state)"
            )
        traced = tracing.read(fn, params)
        leaves, treedef = jax.tree.flatten(params)
        if self.check:
            check_finite(traced, leaves)
        program = compiled(self, traced)
        outer = () if state is None else state.outer
        new, outer, loss, neglected = program.update(leaves, traced.constants, outer, treedef)
        params = jax.tree.unflatten(treedef, new)
        if state is None:
            return params, loss
        worst = jnp.maximum(state.neglected, neglected.astype(jnp.float32))
        return params, OptimizerState(state.updates + 1, worst, outer), loss


def check_option(name: str, value: Any, allowed: tuple[str | None, ...]) -> None:
    """Refuse a value that is not one of those allowed."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


class Program:
    """A solver and a graph, compiled."""

    def __init__(self, solver: Solver, traced: tracing.Traced) -> None:
        graph = tracing.build(traced, keep_loops=solver.keeps_loops)
        check_graph(graph)
        self.solver = solver
        partition = solver.partition(graph)
        self.partition = stacked(partition) if solver.stacks else partition
        self.update = jax.jit(self._update, static_argnames="treedef")
        self.solves: dict[Any, Any] = {}  # compiled runs of `pjax.solve`, by their static arguments

    def problem(self, leaves: list[Any], constants: tuple[Any, ...]) -> Problem:
        return Problem(
            self.partition,
            constants,
            leaves,
            consensus=self.solver.consensus,
            fixed_constants=self.solver.constants == "fixed",
            balanced=self.solver.metric == "balanced",
        )

    def moved(self, leaves: list[Any], moves: dict[int, jax.Array]) -> list[Any]:
        """The parameters after the given displacements."""
        return [
            leaf if move is None else (leaf + move).astype(jnp.result_type(leaf))
            for leaf, move in zip(leaves, self.partition.graph.per_leaf(moves), strict=True)
        ]

    def _update(
        self, leaves: list[Any], constants: tuple[Any, ...], outer: Any, treedef: Any
    ) -> tuple[list[Any], Any, jax.Array, jax.Array]:
        leaves, outer, loss, neglected = self._round(leaves, constants, outer, treedef)

        def again(_: Any, carry: tuple[list[Any], Any, jax.Array]) -> tuple[list[Any], Any, jax.Array]:
            leaves, outer, worst = carry
            leaves, outer, _, neglected = self._round(leaves, constants, outer, treedef)
            return leaves, outer, jnp.maximum(worst, neglected)

        if self.solver.rounds > 1:
            leaves, outer, neglected = jax.lax.fori_loop(
                1, self.solver.rounds, again, (leaves, outer, neglected)
            )
        return leaves, outer, loss, neglected

    def _round(
        self, leaves: list[Any], constants: tuple[Any, ...], outer: Any, treedef: Any
    ) -> tuple[list[Any], Any, jax.Array, jax.Array]:
        problem = self.problem(leaves, constants)
        moves, neglected = self.solver.moves(problem)
        if self.solver.outer is None:
            return self.moved(leaves, moves), outer, problem.loss, neglected
        # The moves themselves, and not a difference of parameters, in which small moves would be lost.
        gradient = [
            jnp.zeros_like(leaf) if move is None else -move.astype(jnp.result_type(leaf))
            for leaf, move in zip(leaves, self.partition.graph.per_leaf(moves), strict=True)
        ]
        params, gradient = (jax.tree.unflatten(treedef, x) for x in (leaves, gradient))
        updates, outer = self.solver.outer.update(gradient, outer, params)
        new = [
            (leaf + update).astype(jnp.result_type(leaf))
            for leaf, update in zip(leaves, jax.tree.leaves(updates), strict=True)
        ]
        return new, outer, problem.loss, neglected


_PROGRAMS: "collections.OrderedDict[Any, Program]" = collections.OrderedDict()
_MOST_PROGRAMS = 256


def compiled(solver: Solver, traced: tracing.Traced) -> Program:
    """The program of a solver for a graph: made once for all functions that trace to the same graph."""
    key = (solver, traced.key)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = Program(solver, traced)
        while len(_PROGRAMS) > _MOST_PROGRAMS:
            _PROGRAMS.popitem(last=False)
    _PROGRAMS.move_to_end(key)
    return _PROGRAMS[key]
