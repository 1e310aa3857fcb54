"""Where the first value that is not finite appears: in which step, in which node, on which line."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pjax.debug._nodes import NodeInfo, info
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.graph import read as tracing
from pjax.graph.nodes import Graph, Node
from pjax.graph.wires import Evaluator, Expr
from pjax.optim import ExtrapolatedProjections, OptimizerState, Solver
from pjax.optim.solver import Program
from pjax.rules.base import Moves


@dataclasses.dataclass(frozen=True)
class Range:
    """What an array holds, in short."""

    what: str
    """Which array it is."""
    shape: tuple[int, ...]
    low: float
    high: float
    """The smallest and the largest of the finite values; NaN where there are none."""
    nan: int
    infinite: int
    """How many values are not a number, and how many are infinite."""

    @property
    def finite(self) -> bool:
        return not (self.nan or self.infinite)

    def __str__(self) -> str:
        size = int(np.prod(self.shape))
        bad = [f"{n} {name}" for n, name in ((self.nan, "NaN"), (self.infinite, "infinite")) if n]
        among = f"{' and '.join(bad)} of {size}, " if bad else ""
        values = "no finite value" if np.isnan(self.low) else f"between {self.low:.4g} and {self.high:.4g}"
        return f"{self.what} {list(self.shape)}: {among}{values}"


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """What `locate_nan` found. Printed, it says what, where, and what to do."""

    found: bool
    method: str
    steps: int
    """How many steps were made before, or without, a value that is not finite."""
    step: int | None = None
    """In which step it appeared; 0 in the evaluation of the function, before the first."""
    where: str = ""
    """What made it, in words."""
    node: NodeInfo | None = None
    """Which node made it, or read what made it; None for a parameter or the loss."""
    line: str = ""
    """Of the user's code."""
    inputs: tuple[Range, ...] = ()
    """What went in; in a step, as it was before the step."""
    output: Range | None = None
    """What came out."""
    advice: str = ""

    def __str__(self) -> str:
        if not self.found:
            return (
                f"no NaN and no infinity: neither in the function, nor in {self.steps} steps of {self.method}"
            )
        when = "evaluating the function" if self.step == 0 else f"in step {self.step} of {self.method}"
        lines = [f"not finite, {when}: {self.where}" + (f" at {self.line}" if self.line else "")]
        lines += [f"  in   {part}" for part in self.inputs]
        lines += [f"  out  {self.output}"] if self.output is not None else []
        return "\n".join([*lines, self.advice])


def locate_nan(
    fn: Callable[[Any], Any],
    params: Any,
    solver: Solver,
    *,
    state: OptimizerState | None = None,
    steps: int | None = None,
) -> NotFinite:
    """Find the first NaN or infinity: in the parameters, in the function, or in a step of a method.

    In the function, it is the first equation that makes one from finite values: also one that does not
    depend on a parameter, such as the division that normalises a batch. In a step, it is the first node
    whose projection does.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target.
        params: any pytree of floating-point arrays, the start.
        solver: a method of `pjax.optim`. Its ``check`` is not used.
        state: of `ExtrapolatedProjections`: what the last update returned.
        steps: how many to look at; by default as many as one update makes.

    >>> import pjax
    >>> x, y = jnp.array([[1.0, 2.0], [1.0, 4.0]]), jnp.zeros((2, 1))
    >>> def loss(w):
    ...     scaled = (x - x.mean(0)) / x.std(0)  # the first column is constant
    ...     return pjax.squared_error(scaled @ w, y)
    >>> found = locate_nan(loss, jnp.ones((2, 1)), pjax.optim.AlternatingProjections())
    >>> found.step, found.where
    (0, "the equation 'div', which dot(params) reads")
    >>> print(found.inputs[1])
    operand 1 [1, 2]: between 0 and 1
    """
    count = solver.steps_per_update if steps is None else steps
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InputError(f"steps must be a whole number of at least 0, got {steps!r}")
    leaves, treedef = jax.tree.flatten(params)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise InputError(
            "locate_nan looks at values, so it must be called outside jit, with the same arguments"
        )
    traced = tracing.read(fn, params)
    program = Program(solver.one_by_one(), traced, _Watched)
    graph = program.partition.graph
    found = _in_function(solver, traced, graph, leaves, 0)
    if found is not None:
        return found
    if isinstance(solver, ExtrapolatedProjections):
        outer = (solver.init(params) if state is None else state).outer
        return _in_updates(program, traced, leaves, outer, treedef, count)
    return _in_steps(program, traced, leaves, count)


# --- In the function ---


def _in_function(
    solver: Solver, traced: tracing.Traced, graph: Graph, leaves: Sequence[Any], step: int
) -> NotFinite | None:
    """The first value that is not finite in the evaluation of the function."""
    report = NotFinite(True, solver.name, max(step - 1, 0), step)
    for name, leaf in zip(traced.names, leaves, strict=True):
        seen = _range(f"parameter {name!r}", leaf)
        if not seen.finite:
            return dataclasses.replace(
                report,
                where=seen.what,
                output=seen,
                advice="Restart from parameters that are finite: those of the last update that were.",
            )
    values: dict[int, Any] = {v: leaf for v, leaf in zip(graph.leaves, leaves, strict=True) if v is not None}
    evaluate = Evaluator(traced.constants, values)
    for node in graph.nodes:
        if node.rule is None:
            continue
        inputs = [evaluate(wire.expr) for wire in node.inputs]
        values[node.index] = node.rule.forward(*inputs)
        output = _range("output", values[node.index])
        if not output.finite:
            return _cause(report, evaluate, graph, node, inputs, output)
    losses = [_range(f"output {i}", evaluate(out)) for i, out in enumerate(graph.outputs)]
    for out, seen in zip(graph.outputs, losses, strict=True):
        if not seen.finite:
            return dataclasses.replace(
                report,
                where=f"{seen.what} of the function, from losses that are finite",
                line=out.line,
                output=seen,
                advice="Look at what the function does to its losses.",
            )
    return None


def _cause(
    report: NotFinite, evaluate: Evaluator, graph: Graph, node: Node, inputs: list[Any], output: Range
) -> NotFinite:
    """What made a node's output not finite: an equation or an array that it reads, or the node itself."""
    named = info(graph, node)
    expr = _origin(evaluate, [wire.expr for wire in node.inputs])
    if expr is not None:
        seen = _range("result", evaluate(expr))
        if expr.constant is not None:
            return dataclasses.replace(
                report,
                where=f"a captured array, which {named.label} reads",
                node=named,
                line=node.line,
                output=dataclasses.replace(seen, what=f"captured array {expr.constant}"),
                advice="Clean the batch: look for missing values, and for what divides by zero.",
            )
        return dataclasses.replace(
            report,
            where=f"{_equation(expr)}, which {named.label} reads",
            node=named,
            line=expr.line or node.line,
            inputs=tuple(_operands(evaluate, expr)),
            output=seen,
            advice="It does not depend on a parameter: look at the batch, and at this equation.",
        )
    return dataclasses.replace(
        report,
        where=named.label,
        node=named,
        line=node.line,
        inputs=tuple(_range(f"input {i}", x) for i, x in enumerate(inputs)),
        output=output,
        advice="Finite inputs are too large for it: scale the batch and the parameters down.",
    )


def _origin(evaluate: Evaluator, exprs: Sequence[Expr]) -> Expr | None:
    """The first expression behind some that is not finite, though all that it is computed from is.

    Numbers written in the program do not count: that there is a NaN to choose, for a mean over nothing, does
    not mean that it was chosen.
    """
    found = None
    while exprs:
        bad = (e for e in exprs if e.literal is None and not _range("", evaluate(e)).finite)
        expr = next(bad, None)
        if expr is None:
            break
        found, exprs = expr, () if expr.call is None else expr.call.args
    return found


def _equation(expr: Expr) -> str:
    return "an array" if expr.call is None else f"the equation {expr.call.name!r}"


def _operands(evaluate: Evaluator, expr: Expr) -> Iterator[Range]:
    for i, arg in enumerate(() if expr.call is None else expr.call.args):
        yield _range(f"operand {i}", evaluate(arg))


# --- In the steps ---


class _Event(NamedTuple):
    """That a node's projection was made, and whether what it made is finite."""

    node: int
    finite: jax.Array


class _Watched(Problem):
    """A problem that notes, in order, which projections are made in it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events: list[_Event] = []  # of this problem and its copies

    def squared(self, v: int, moves: Moves) -> jax.Array:
        squared = super().squared(v, moves)
        inputs = [x for x in moves.inputs if x is not None]
        # Where a node does not say how its inputs move, the sum of the squares does.
        self._note(v, *(inputs or [squared]), *([] if moves.output is None else [moves.output]))
        return squared

    def pull(
        self, v: int, i: int, total: jax.Array | None, power: int = 1
    ) -> Iterator[tuple[int, jax.Array]]:
        if total is not None and power == 1:
            self._note(v, total)
        return super().pull(v, i, total, power)

    def _note(self, v: int, *arrays: jax.Array) -> None:
        finite = jnp.stack([jnp.isfinite(x).all() for x in arrays]).all()
        self.events.append(_Event(v, finite))


def _in_steps(program: Program, traced: tracing.Traced, leaves: Sequence[Any], count: int) -> NotFinite:
    """The first value that is not finite in the steps of a method with a state."""
    solver, graph = program.solver, program.partition.graph
    order: list[int] = []

    @jax.jit
    def start(leaves: Any, constants: Any) -> Any:
        return solver.iteration(program.problem(leaves, constants), measure=True).start()

    @jax.jit
    def advance(state: Any, leaves: Any, constants: Any) -> Any:
        problem = program.problem(leaves, constants)
        assert isinstance(problem, _Watched)
        iteration = solver.iteration(problem, measure=True)
        before = iteration.values(state)
        problem.events.clear()
        new = iteration.step(state)
        order[:], finite = zip(*problem.events, strict=True)
        after = iteration.values(new)
        seen = {
            node.index: [_seen(problem, node, i, before) for i in range(len(node.wires))]
            for node in graph.nodes
        }
        return new, jnp.stack(finite), before, after, seen, problem.points

    state = start(leaves, traced.constants)
    for step in range(1, count + 1):
        state, finite, before, after, seen, points = advance(state, leaves, traced.constants)
        report = NotFinite(True, solver.name, step - 1, step)
        if not finite.all():
            v = order[int(np.argmin(np.asarray(finite)))]
            return _projection(report, graph, v, seen[v], _sum(points.get(v), before.get(v)), after.get(v))
        for v, value in after.items():
            if not np.isfinite(value).all():
                found = _projection(report, graph, v, seen[v], points[v] + before[v], value)
                label = info(graph, graph.nodes[v]).label
                return dataclasses.replace(
                    found, where=f"the consensus of {label}, from moves that are finite"
                )
    return NotFinite(False, solver.name, count)


def _sum(point: Any, value: Any) -> Any:
    return None if value is None else point + value


def _seen(problem: Problem, node: Node, i: int, values: dict[int, jax.Array]) -> jax.Array:
    """What input i of a node is, given displacements."""
    at, shift = problem.inputs[node.index][i], problem.push(node.index, i, values)
    return at if shift is None else at + shift


def _projection(
    report: NotFinite, graph: Graph, v: int, inputs: list[Any], output: Any, after: Any
) -> NotFinite:
    node = graph.nodes[v]
    named = info(graph, node)
    ranges = [_range(f"input {i}", x) for i, x in enumerate(inputs)]
    if output is not None:
        ranges.append(_range("output before", output))
    return dataclasses.replace(
        report,
        where=f"the projection of {named.label}",
        node=named,
        line=node.line,
        inputs=tuple(ranges),
        output=None if after is None else _range("displacement after", after),
        advice=(
            "Look at these ranges: numbers far from one, of the batch, a target or a parameter, are lost when"
            " they are squared. Scale them, or take smaller steps."
        ),
    )


def _in_updates(
    program: Program, traced: tracing.Traced, leaves: list[Any], outer: Any, treedef: Any, count: int
) -> NotFinite:
    """The first value that is not finite in sweeps, each followed by a step of the outer optimiser."""
    solver, graph = program.solver, program.partition.graph
    order: list[int] = []

    @jax.jit
    def sweep(leaves: Any, constants: Any, outer: Any) -> Any:
        problem = program.problem(leaves, constants)
        assert isinstance(problem, _Watched)
        moves, _ = solver.moves(problem)
        order[:], finite = zip(*problem.events, strict=True)
        new, outer = program.applied(leaves, moves, outer, treedef, problem.loss)
        return new, outer, jnp.stack(finite), moves, problem.inputs, problem.points

    for step in range(1, count + 1):
        new, outer, finite, moves, inputs, points = sweep(leaves, traced.constants, outer)
        report = NotFinite(True, solver.name, step - 1, step)
        if not finite.all():
            v = order[int(np.argmin(np.asarray(finite)))]
            return _projection(report, graph, v, list(inputs[v]), points[v], None)
        for name, leaf, move in zip(traced.names, new, graph.per_leaf(moves), strict=True):
            if not np.isfinite(np.asarray(leaf, np.float32)).all():
                return dataclasses.replace(
                    report,
                    where=f"the outer optimiser, for the parameter {name!r}",
                    inputs=(_range("move", move),),
                    output=_range("parameter", leaf),
                    advice="Lower its learning rate, or clip what it is given, with optax.clip.",
                )
        leaves = new
        found = _in_function(solver, traced, graph, leaves, step)
        if found is not None:
            return found
    return NotFinite(False, solver.name, count)


def _range(what: str, x: Any) -> Range:
    x = jnp.asarray(x)
    values = np.asarray(x).astype(np.float64) if jnp.issubdtype(x.dtype, jnp.number) else np.zeros(x.shape)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)
    return Range(what, values.shape, low, high, int(np.isnan(values).sum()), int(np.isinf(values).sum()))
