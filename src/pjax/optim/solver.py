"""What all solvers share: options, the compiled update, its cache."""

import abc
import collections
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, dataclass_transform, overload

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from pjax.checks import check_finite, check_function, check_mesh, check_whole
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.graph import read as tracing
from pjax.graph import wires as layout
from pjax.graph.nodes import Graph, Node
from pjax.graph.partition import Partition, two_sets
from pjax.graph.stack.stacking import stacked
from pjax.optim.neglect import watched
from pjax.rules.arithmetic import usual_promotion

P = TypeVar("P")


class OptimizerState(NamedTuple):
    """What an optimiser carries from update to update."""

    updates: jax.Array
    """How many updates were made."""
    neglected: jax.Array
    """The largest term that a history left out so far, relative to what it kept; 0 where all is exact."""
    outer: Any = ()
    """The state of the outer optimiser, if there is one."""


class Moved(NamedTuple):
    """What one round of projections does on a batch."""

    moves: dict[int, jax.Array]
    """How far the parameters move, by node."""
    neglected: dict[int, jax.Array]
    """The largest terms that histories left out, by node."""
    loss: jax.Array
    aux: list[Any]
    """What the function returns beside, as far as the graph has it."""


class Iteration(Protocol):
    """A projection method on one problem. All methods are pure.

    The state is a pytree. It has the squared violation that the last step saw, summed over edges (`squared`),
    and for each node with a history the largest term that it left out so far, relative (`neglected`).
    """

    def start(self) -> Any:
        """The state at the forward evaluation."""

    def step(self, state: Any) -> Any:
        """One step of the method."""

    def values(self, state: Any) -> dict[int, jax.Array]:
        """How far the consensus of each node that is read has moved: the mean of the edges that leave it."""

    def parameters(self, state: Any) -> dict[int, jax.Array]:
        """How far each parameter has moved, by node."""

    def agreed(self, state: Any, mean: Callable[[jax.Array], jax.Array]) -> Any:
        """The state after an exchange between groups: its parameters are moved to their mean."""


T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def method(cls: type[T]) -> type[T]:
    """A class of frozen options, given by name; another name is a TypeError that says which there are."""
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    plain, names = made.__init__, [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        unknown = [name for name in options if name not in names]
        if args or unknown:
            what = f"has no option {unknown[0]!r}" if unknown else "takes its options by name"
            raise TypeError(f"{cls.__name__} {what}; its options are {', '.join(names)}")
        plain(self, **options)

    made.__init__ = __init__  # type: ignore[method-assign]
    return made


class Solver(abc.ABC):
    """A projection method, or one with something around it. Frozen options; state is passed in and out."""

    name: ClassVar[str]
    sweeps: ClassVar[bool] = False
    """Whether it makes soft sweeps, from the targets back to the parameters, each on a new evaluation of the
    function, as `ExtrapolatedProjections` does. Then a scan is one node, as is a function whose derivative is
    stated by users. Other methods carry a state from step to step, and take both apart into nodes."""

    # Options that not all methods have, with what those without them do.
    consensus: ClassVar[str] = "paper"
    edges: ClassVar[str] = "implicit"
    constants: ClassVar[str] = "nodes"
    metric: ClassVar[str] = "unit"
    stack: ClassVar[bool | NamedSharding] = False
    state_dtype: ClassVar[Any] = None

    # What is around a method: see `pjax.optim.wrappers`.
    outer_optimizer: ClassVar[Any] = None
    """The optax transformation that makes the steps; None where parameters are simply projected."""
    parts: ClassVar[int] = 1
    """Into how many parts a batch is divided that go one after the other."""
    groups: ClassVar[int] = 1
    """Into how many groups a batch is divided that work apart."""

    steps_per_update: int
    check: bool

    # --- What a method defines ---

    @abc.abstractmethod
    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:
        """The method on a problem. With ``measure``, steps also compute the violation they see."""

    def partition(self, graph: Graph) -> Partition:
        """Which nodes project together."""
        return two_sets(graph)

    def moves(
        self, problem: Problem, mean: Callable[[jax.Array], jax.Array] | None = None, every: int = 1
    ) -> tuple[dict[int, jax.Array], dict[int, jax.Array]]:
        """How far the parameters move in one round, by node, and the largest neglected terms of histories.

        Args:
            problem: of the whole batch, or of one group.
            mean: for `Groups`, the mean over them. It is taken of the parameters after every ``every`` steps,
                but not after the last: that is for the caller.
            every: how many steps groups make apart.
        """
        iteration = self.iteration(problem)

        def steps(state: Any, number: int) -> Any:
            return jax.lax.fori_loop(0, number, lambda _, s: iteration.step(s), state)

        state, number = iteration.start(), self.steps_per_update
        if mean is not None:
            number = every
            times = self.steps_per_update // number - 1
            state = jax.lax.fori_loop(0, times, lambda _, s: iteration.agreed(steps(s, number), mean), state)
        state = steps(state, number)
        return iteration.parameters(state), state.neglected

    def moves_on(self, make: Callable[[Any], Problem], arrays: Any) -> Moved:
        """What one round does on a batch.

        Args:
            make: a problem from the arrays of a batch, or of a part of one.
            arrays: of the batch; with its parts along a first axis where the method divides it.
        """
        problem = make(arrays)
        moves, neglected = self.moves(problem)
        return Moved(moves, neglected, *problem.returned)

    def moves_in_parts(self, make: Callable[[Any], Problem], arrays: Any) -> Moved:
        """The same on a batch in parts, one after the other.

        The mean over the parts is that of the whole where what is asked of a parameter is added up.
        """

        def part(totals: Any, arrays: Any) -> tuple[Any, Any]:
            problem = make(arrays)
            moves, neglected = self.moves(problem)
            return jax.tree.map(jnp.add, totals, moves), (neglected, problem.loss)

        shapes, _ = jax.eval_shape(lambda x: self.moves(make(x)), jax.tree.map(lambda x: x[0], arrays))
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        totals, (neglected, losses) = jax.lax.scan(part, nothing, arrays)
        moves = {v: total / len(losses) for v, total in totals.items()}
        return Moved(moves, {v: jnp.max(x) for v, x in neglected.items()}, jnp.mean(losses), [])

    def stored(self, problem: Problem) -> Mapping[int, Any]:  # noqa: ARG002
        """The edges that a step starts from, by node; nothing for methods that keep none."""
        return {}

    def asks(
        self, problem: Problem, node: Node, values: Mapping[int, jax.Array], goal: jax.Array | None
    ) -> Sequence[jax.Array | None]:
        """What one node asks of its inputs in a step, given displacements and what is asked of itself."""
        return problem.project(node.index, problem.shifts(node.index, values), goal).inputs

    @property
    def may_store(self) -> bool:
        """Whether edges may be stored where histories neglect too much."""
        return True

    @property
    def rounds(self) -> int:
        """How often an update evaluates the network anew, projects, and moves the parameters."""
        return 1

    # --- What users call ---

    def init(self, params: Any) -> OptimizerState:
        """The state before the first update."""
        tracing.check_parameters(params)
        outer = () if self.outer_optimizer is None else self.outer_optimizer.init(params)
        return OptimizerState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32), outer)

    @overload
    def update(
        self, fn: Callable[..., Any], params: P, *, batch: Any = None, has_aux: bool = False
    ) -> tuple[P, Any]: ...

    @overload
    def update(
        self,
        fn: Callable[..., Any],
        params: P,
        state: OptimizerState,
        *,
        batch: Any = None,
        has_aux: bool = False,
    ) -> tuple[P, OptimizerState, Any]: ...

    def update(
        self,
        fn: Callable[..., Any],
        params: P,
        state: OptimizerState | None = None,
        *,
        batch: Any = None,
        has_aux: bool = False,
    ) -> tuple[P, Any] | tuple[P, OptimizerState, Any]:
        """Make `steps_per_update` steps on the constraints that a function states.

        Args:
            fn: an ordinary JAX function of the parameters that ends in losses: any scalar, which is
                minimised, or targets of `pjax.losses`, one by one or summed. It may be a new closure in every
                call: functions that trace to the same graph share one compiled update.
            params: any pytree of floating-point arrays. Leaves that `fn` does not use come back unchanged.
            state: what `init` or the last update returned. May be left out where there is no outer optimiser.
            batch: a pytree of arrays. If given, the function is called with it as its second argument, and
                with parts of it where the method is `Accumulated` or works in `Groups`: then the first axis
                of all arrays is that of the samples. Otherwise the same function is called once for all
                batches of the same shapes, as by `jax.jit`: what else it captures counts as it was then.
            has_aux: whether the function returns a pair, of losses and of anything else, as for `jax.grad`.

        Returns:
            The new parameters, the new state if one was given, and the mean loss of the *given*
            parameters on this batch; with ``has_aux``, a pair of it and of what else the function returned.
        """
        check_function(fn)
        _check_state(self, state)
        if state is None and self.outer_optimizer is not None:
            raise InputError(
                "an outer optimiser has a state: state = optimizer.init(params), then "
                "params, state, loss = optimizer.update(fn, params, state)"
            )
        divided = max(self.parts, self.groups)
        if batch is None and divided > 1:
            raise InputError(
                "to divide a batch, Accumulated and Groups need it as an argument: optimizer.update(fn,"
                " params, batch=(x, y)), with a function of the parameters and the batch"
            )
        if has_aux and divided > 1:
            raise InputError(
                "has_aux returns what the function returns for the whole batch; with Accumulated or Groups"
                " there is no such call. Evaluate it beside the update"
            )
        tracing.check_parameters(params)
        leaves, treedef = jax.tree.flatten(params)
        check_mesh((*leaves, *jax.tree.leaves(batch)))
        if batch is None:
            traced = tracing.read(fn, params, has_aux=has_aux)
        else:
            traced = _read_batch(fn, params, batch, divided, has_aux)
        check_mesh(traced.constants)
        if self.check:
            check_finite(traced, leaves)
            for i, look in traced.looks:
                look(traced.constants[i])
        program = compiled(self, traced)
        before = () if state is None else state.outer
        (new, outer, loss), neglected, aux = watched(
            program, lambda: program.update(leaves, traced.constants, before, treedef, divided > 1)
        )
        params = jax.tree.unflatten(treedef, new)
        found = (loss, jax.tree.unflatten(traced.aux, aux)) if has_aux else loss
        if state is None:
            return params, found
        worst = functools.reduce(jnp.maximum, neglected.values(), state.neglected)
        return params, OptimizerState(state.updates + 1, worst, outer), found


@method
class EdgeSolver(Solver):
    """A method that carries edges, or what stands for them, from step to step.

    Args:
        steps_per_update: how many steps `update` makes on one batch.
        check: outside `jit`, whether to refuse NaN and infinity in parameters and batches before each update;
            inside `jit`, whether to warn if a history of edges was cut where it mattered.
        consensus: ``"exact"`` weights a node's output by the number of edges that leave it, which is the
            projection onto its consensus set; ``"paper"`` weights it by one, as the paper's experiments.
        edges: ``"implicit"`` keeps node-sized arrays; ``"explicit"`` stores every edge (the definition).
        constants: ``"nodes"``, as in the paper: a matrix product or a convolution may move its copy of a
            constant, which is then set back. ``"fixed"``: it may not, so that it is a linear constraint.
            Products number by number with a constant, such as a mask or a scale, always are.
        metric: how moves are measured. ``"unit"``: all edges count alike, as in the paper. Of a product of x
            and y the longer factor then makes the shorter one move: what is asked of a layer goes into its
            weights, and hardly back to the layer below. ``"balanced"``: products are projected in the
            variables s x and y / s, in which both factors have the same typical length: s² = |y| / |x|, one
            number for each matmul or convolution, found at the start of each update.
        stack: whether equal nodes that project together, such as layers or time steps, run as one batched
            operation; the result is the same. Or a `jax.sharding.NamedSharding` over one axis of a mesh: the
            members of each stack are divided over it, so that layers or time steps live on different devices,
            which all work at once.
        state_dtype: ``"bfloat16"`` keeps displacements in that type from step to step, in half the memory;
            sums, and displacements of parameters, stay in float32. That leaves two to three digits: enough to
            train a network, too few for an accurate solution of a feasibility problem.
    """

    steps_per_update: int = 50
    check: bool = True
    consensus: Literal["paper", "exact"] = "paper"  # type: ignore[misc]
    edges: Literal["implicit", "explicit"] = "implicit"  # type: ignore[misc]
    constants: Literal["nodes", "fixed"] = "nodes"  # type: ignore[misc]
    metric: Literal["unit", "balanced"] = "unit"  # type: ignore[misc]
    stack: bool | NamedSharding = True  # type: ignore[misc]
    state_dtype: Literal[None, "bfloat16"] = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_whole("steps_per_update", self.steps_per_update)
        if self.state_dtype in ("bfloat16", jnp.bfloat16):
            object.__setattr__(self, "state_dtype", jnp.dtype("bfloat16"))
        for field in dataclasses.fields(self):
            value, allowed = getattr(self, field.name), typing.get_args(field.type)
            if typing.get_origin(field.type) is Literal and value not in allowed:
                names = ", ".join(map(repr, allowed))
                raise InputError(f"{field.name} must be one of {names}, got {value!r}")
        if not isinstance(self.stack, bool | NamedSharding):
            raise InputError(f"stack must be True, False or a jax.sharding.NamedSharding, got {self.stack!r}")
        if isinstance(self.stack, NamedSharding) and (len(self.stack.spec) != 1 or None in self.stack.spec):
            raise InputError(
                "stack must be divided along one axis, as by NamedSharding(mesh, PartitionSpec('layers'));"
                f" got {self.stack.spec}"
            )


def check_transformation(given: Any, name: str = "the outer optimiser") -> None:
    """Refuse what is no optax transformation."""
    if not (hasattr(given, "init") and hasattr(given, "update")):
        raise InputError(
            f"{name} must be an optax.GradientTransformation, such as optax.adam(1e-3); got {given!r:.200}"
        )
    try:
        hash(given)
    except TypeError:
        raise InputError(
            f"{name} must be hashable, since compiled programs are kept by it; got {given!r:.200}. Of a"
            " dataclass, make it frozen"
        ) from None


def check_solver(solver: Any) -> None:
    """Refuse what is no method, or only the class of one."""
    if not isinstance(solver, Solver):
        made = f"{solver.__name__}()" if isinstance(solver, type) else "pjax.optim.DouglasRachford()"
        raise InputError(f"expected a method of pjax.optim, such as {made}; got {solver!r:.120}")


def _check_state(solver: Solver, state: Any) -> None:
    if state is None:
        return
    if not isinstance(state, OptimizerState):
        raise InputError(
            "the state must be what optimizer.init(params) or the last update returned, got"
            f" {type(state).__name__}: params, state, loss = optimizer.update(fn, params, state)"
        )
    if solver.outer_optimizer is None and jax.tree.leaves(state.outer):
        raise InputError(
            f"the state is that of another optimiser, with an outer one that {type(solver).__name__} has not:"
            " begin with state = optimizer.init(params)"
        )


def samples(batch: Any) -> int:
    """How many a batch has, along the first axis of its arrays."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(batch)]
    if len({shape[:1] for shape in shapes}) != 1 or () in shapes:
        raise InputError(
            "the arrays of a batch must agree in the length of their first axis; got "
            + ", ".join(map(str, shapes))
        )
    return shapes[0][0]


def _read_batch(fn: Callable[..., Any], params: Any, batch: Any, parts: int, has_aux: bool) -> tracing.Traced:
    """A function read on a batch, or on one of its parts, with the arrays of all parts, stacked."""
    leaves = jax.tree.leaves(batch)
    if not leaves or (0,) in {jnp.shape(leaf)[:1] for leaf in leaves}:
        raise InputError("the batch is empty: there is nothing to project. Skip it, or drop the last one")
    if parts == 1:  # it need not be divisible: a key for dropout, the edges of a graph
        return tracing.read_on(fn, params, batch, has_aux=has_aux)
    size = samples(batch)
    if size % parts:
        raise InputError(f"a batch of {size} samples cannot be divided into {parts} equal parts or groups")
    stacks = jax.tree.map(lambda x: jnp.reshape(x, (parts, size // parts, *x.shape[1:])), batch)
    traced = tracing.read_on(fn, params, jax.tree.map(lambda x: x[0], stacks))
    if not traced.batch_arrays:
        raise InputError(
            "with Accumulated and Groups, what depends on the batch must be computed by jax.numpy inside the"
            " function, whatever the values of the batch"
        )
    return traced.with_arrays(jax.tree.leaves(stacks))


class Program:
    """A solver and a graph, compiled."""

    def __init__(
        self, solver: Solver, traced: tracing.Traced, kind: type[Problem] = Problem, *, stack: bool = True
    ) -> None:
        """The graph of a function, and what a method makes of it; it is compiled when it is called.

        Args:
            solver: the method.
            traced: the function.
            kind: the class of its problems; a subclass may record what happens in them.
            stack: whether nodes may be stacked, if the solver says so; not for tools that show single nodes.
        """
        # Effects happen once, and what is returned beside is that of the first round.
        self._evaluates = traced.has_effects or not solver.sweeps or solver.rounds > 1
        graph = tracing.build(traced, sweeps=solver.sweeps, aux=not self._evaluates)
        self.solver = solver
        partition = solver.partition(graph)
        sharding = solver.stack if isinstance(solver.stack, NamedSharding) else None
        self.partition = stacked(partition, sharding) if stack and solver.stack else partition
        self.solves: dict[Any, Any] = {}  # compiled runs of `pjax.solve`, by their static arguments
        self.stored = frozenset[int]()
        self.store(self.stored)
        self.listeners: list[Callable[..., Any]] = []  # those of `pjax.solve`, by number
        self.graph = graph
        self._kind = kind
        self._traced = traced

    def store(self, nodes: frozenset[int]) -> None:
        """Store the edges of more contractions from now on."""
        self.stored |= nodes
        self.solves.clear()
        # A new function, which is compiled anew.
        self.update = jax.jit(functools.partial(self._update), static_argnames=("treedef", "divided"))

    def problem(self, leaves: list[Any], constants: tuple[Any, ...]) -> Problem:
        return self._kind(
            self.partition,
            constants,
            leaves,
            consensus=self.solver.consensus,
            fixed_constants=self.solver.constants == "fixed",
            balanced=self.solver.metric == "balanced",
            state_dtype=self.solver.state_dtype,
            stored=self.stored,
            sweeps=self.solver.sweeps,
            has_outer=self.solver.outer_optimizer is not None,
        )

    def _check_parts(self, arrays: range) -> None:
        """Refuse operations that do not depend on the batch, where its parts would each project them anew.

        Args:
            arrays: which of the constants are those of the batch.
        """
        found: set[int] = set()
        for node in self.graph.nodes:
            exprs = [wire.expr for wire in node.inputs]
            if any(e.constant in arrays or e.node in found for e in layout.walk(*exprs)):
                found.add(node.index)
            elif not (node.is_parameter or self.solver.sweeps):
                raise InputError(
                    f"{node.where()} does not depend on the batch, so its parts cannot share it: compute it"
                    " outside, or do without Accumulated"
                )

    def moved(self, leaves: list[Any], moves: dict[int, jax.Array]) -> list[Any]:
        """The parameters after the given displacements."""
        return [
            leaf if move is None else (leaf + move).astype(jnp.result_type(leaf))
            for leaf, move in zip(leaves, self.partition.graph.per_leaf(moves), strict=True)
        ]

    @usual_promotion()
    def _update(
        self, leaves: list[Any], constants: tuple[Any, ...], outer: Any, treedef: Any, divided: bool = False
    ) -> tuple[tuple[list[Any], Any, jax.Array], dict[int, jax.Array], list[Any]]:
        """One update. Where the batch is divided, its arrays have the parts along a first axis."""
        own = len(constants) - (self._traced.batch_arrays if divided else 0)
        fixed, arrays = constants[:own], constants[own:]
        if self.solver.parts > 1:
            self._check_parts(range(own, len(constants)))
        aux: list[Any] = []
        if self._evaluates and (self._traced.aux is not None or self._traced.has_effects):
            part = (*fixed, *(x[0] for x in arrays))
            aux = self._traced.evaluate(leaves, part)[self._traced.outputs :]

        def round_(leaves: list[Any], outer: Any) -> tuple[list[Any], Any, Moved]:
            found = self.solver.moves_on(lambda arrays: self.problem(leaves, (*fixed, *arrays)), arrays)
            return *self.applied(leaves, found.moves, outer, treedef, found.loss), found

        if self.solver.rounds == 1:
            leaves, outer, found = round_(leaves, outer)
            return (leaves, outer, found.loss), found.neglected, aux or found.aux

        def one(i: jax.Array, carry: Any) -> tuple[list[Any], Any, jax.Array]:
            leaves, outer, first = carry
            leaves, outer, found = round_(leaves, outer)
            return leaves, outer, jnp.where(i == 0, found.loss, first)

        zero = jnp.zeros((), self.partition.graph.dtype)
        # Methods of several rounds keep nothing from step to step, so there is nothing to neglect.
        return jax.lax.fori_loop(0, self.solver.rounds, one, (leaves, outer, zero)), {}, aux

    def applied(
        self, leaves: list[Any], moves: dict[int, jax.Array], outer: Any, treedef: Any, loss: jax.Array
    ) -> tuple[list[Any], Any]:
        """The parameters after the given displacements, or what the outer optimiser makes of these."""
        transformation = self.solver.outer_optimizer
        if transformation is None:
            return self.moved(leaves, moves), outer
        # The moves themselves, and not a difference of parameters, in which small moves would be lost.
        gradient = [
            jnp.zeros_like(leaf) if move is None else -move.astype(jnp.result_type(leaf))
            for leaf, move in zip(leaves, self.partition.graph.per_leaf(moves), strict=True)
        ]
        params, gradient = (jax.tree.unflatten(treedef, x) for x in (leaves, gradient))
        new, _, outer = stepped(transformation, gradient, outer, params, loss)
        return jax.tree.leaves(new), outer


def stepped(transformation: Any, gradient: P, state: Any, params: P, loss: jax.Array) -> tuple[P, P, Any]:
    """Parameters after a step of an optax transformation, the step, and its new state."""
    takes = inspect.signature(transformation.update).parameters.values()
    given = {"value": loss, "grad": gradient, "value_fn": _no_line_search}
    more = given if any(p.kind is p.VAR_KEYWORD for p in takes) else {}
    try:
        updates, state = transformation.update(gradient, state, params, **more)
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the outer optimiser fails, {type(error).__name__}: {error}. It is given moves in the place of"
            " gradients, its state, the parameters, and value= and grad=: no state of other parameters can be"
            " used, and no optimiser that wants more, or other parameters, as optax.lookahead does"
        ) from error
    new = jax.tree.map(lambda leaf, update: (leaf + update).astype(jnp.result_type(leaf)), params, updates)
    return new, updates, state


def _no_line_search(*_: Any) -> Any:
    raise InputError(
        "the outer optimiser evaluates the function once more (value_fn), as a line search does; it is given"
        " moves and the loss at the given parameters alone: take one without, such as"
        " optax.lbfgs(learning_rate, linesearch=None)"
    )


_PROGRAMS: "collections.OrderedDict[Any, Program]" = collections.OrderedDict()
_MOST_PROGRAMS = 256


def compiled(solver: Solver, traced: tracing.Traced) -> Program:
    """The program of a solver for a graph: made once for all functions that trace to the same graph."""
    key = (solver, traced.key)
    found = _PROGRAMS.pop(key, None) or Program(solver, traced)
    _PROGRAMS[key] = found  # the last one
    while len(_PROGRAMS) > _MOST_PROGRAMS:
        _PROGRAMS.popitem(last=False)
    return found
