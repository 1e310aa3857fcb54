"""Where the first value that is not finite appears: in which step, in which node, on which line."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_function, check_whole
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.graph import read as tracing
from pjax.graph.nodes import Node
from pjax.graph.wires import Evaluator, Expr
from pjax.optim.solver import OptimizerState, Program, Solver, check_solver
from pjax.rules.arithmetic import usual_promotion
from pjax.rules.base import Moves
from pjax.tools.drawing.names import NodeInfo, info


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
    """The line of the user's code."""
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


@usual_promotion()
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
    check_solver(solver)
    check_function(fn)
    count = solver.steps_per_update if steps is None else steps
    check_whole("steps", count, 0)
    leaves, treedef = jax.tree.flatten(params)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise InputError(
            "locate_nan looks at values, so it must be called outside jit, with the same arguments"
        )
    search = _Search(solver, tracing.read(fn, params))
    found = search.in_function(leaves)
    if found is not None:
        return found
    if solver.sweeps:
        looks = search.in_updates(leaves, (solver.init(params) if state is None else state).outer, treedef)
    else:
        looks = search.in_steps(leaves)
    found = next(filter(None, itertools.islice(looks, count)), None)
    return NotFinite(False, solver.name, count) if found is None else found


class _Watched(Problem):
    """A problem that notes, in order, which projections are made in it, and whether they are finite."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events: list[tuple[int, jax.Array]] = []  # of this problem and its copies

    def squared(self, v: int, moves: Moves) -> jax.Array:
        squared = super().squared(v, moves)
        # Where a node does not say how its inputs move, the sum of the squares does.
        inputs = squared if all(x is None for x in moves.inputs) else moves.inputs
        self._note(v, inputs, moves.output)
        return squared

    @property
    def nudges(self) -> dict[int, jax.Array]:
        operations = (n for n in self.graph.nodes if n.rule is not None and not n.is_target)
        return {n.index: jnp.zeros(n.shape, n.dtype) for n in operations}

    def note_asked(self, solver: Solver) -> None:
        """Note what the nodes asked of their inputs in the last sweep, from the targets on."""
        for node in reversed(self.graph.nodes):
            if node.rule is not None:
                sources = {s for wire in node.wires for s in wire.sources}
                values = {s: jnp.zeros(self.graph.nodes[s].shape, self.dtype) for s in sources}
                self._note(node.index, solver.asks(self, node, values, self.asked.get(node.index)))

    def _note(self, v: int, *arrays: Any) -> None:
        self.events.append((v, jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(arrays)]).all()))

    def noted(self) -> jax.Array:
        """For each projection, in order, its node; -1 where it is finite."""
        nodes, finite = zip(*self.events, strict=True)
        return jnp.where(jnp.stack(finite), -1, jnp.array(nodes))


class _Search:
    """Looks for what is not finite in a function, and in the steps that a method makes from there."""

    def __init__(self, solver: Solver, traced: tracing.Traced) -> None:
        self.program = Program(solver, traced, _Watched, stack=False)
        self.solver, self.graph = solver, self.program.partition.graph
        self.traced, self.constants = traced, traced.constants
        self.step = 0

    def report(self, where: str, advice: str, **more: Any) -> NotFinite:
        steps = max(self.step - 1, 0)
        return NotFinite(True, self.solver.name, steps, self.step, where, advice=advice, **more)

    # --- In the function ---

    def in_function(self, leaves: Sequence[Any]) -> NotFinite | None:
        """The first value that is not finite in the evaluation of the function."""
        for name, leaf in zip(self.traced.names, leaves, strict=True):
            seen = _range(f"parameter {name!r}", leaf)
            if not seen.finite:
                advice = "Restart from parameters that are finite: those of the last update that were."
                return self.report(seen.what, advice, output=seen)
        evaluate, values = self.graph.evaluator(self.constants, leaves)
        for node in self.graph.nodes:
            output = _range("output", values[node.index])
            if not output.finite:
                return self.cause(evaluate, node, output)
        for i, out in enumerate(self.graph.outputs):
            seen = _range(f"output {i}", evaluate(out))
            if not seen.finite:
                where = f"{seen.what} of the function, from losses that are finite"
                advice = "Look at what the function does to its losses."
                return self.report(where, advice, line=out.line, output=seen)
        return None

    def cause(self, evaluate: Evaluator, node: Node, output: Range) -> NotFinite:
        """What made a node's output not finite: an equation or an array that it reads, or the node itself."""
        named = info(self.graph, node)
        expr = _origin(evaluate, [wire.expr for wire in node.inputs])
        if expr is None:
            where, line, inside = named.label, node.line, _ranges("input", evaluate.each(node.inputs))
            advice = "Finite inputs are too large for it, or it has no value there: scale or bound them."
        elif expr.constant is not None:
            where, line, inside = f"a captured array, which {named.label} reads", node.line, ()
            output = _range(f"captured array {expr.constant}", evaluate(expr))
            advice = "Clean the batch: look for missing values, and for what divides by zero."
        else:
            what = "an array" if expr.call is None else f"the equation {expr.call.name!r}"
            where, line = f"{what}, which {named.label} reads", expr.line or node.line
            inside = _ranges("operand", [evaluate(arg) for arg in (expr.call.args if expr.call else ())])
            output = _range("result", evaluate(expr))
            advice = "It does not depend on a parameter: look at the batch, and at this equation."
        return self.report(where, advice, node=named, line=line, inputs=inside, output=output)

    # --- In the steps ---

    def in_steps(self, leaves: list[Any]) -> Iterator[NotFinite | None]:
        """The steps of a method with a state, and what is not finite in each."""

        def begin(leaves: list[Any], constants: Any) -> tuple[Any, Any]:
            problem = self.program.problem(leaves, constants)
            return problem, self.solver.iteration(problem, measure=True)

        @jax.jit
        def advance(state: Any, *given: Any) -> Any:
            problem, iteration = begin(*given)
            old = iteration.values(state)
            problem.events.clear()
            new = iteration.step(state)
            return new, problem.noted(), old, iteration.values(new)

        given = leaves, self.constants
        state = jax.jit(lambda *given: begin(*given)[1].start())(*given)
        for self.step in itertools.count(1):
            state, noted, old, new = advance(state, *given)
            bad = [(v, "the projection of {}") for v in noted.tolist() if v >= 0]
            consensus = "the consensus of {}, from moves that are finite"
            bad += [(v, consensus) for v, value in new.items() if not np.isfinite(value).all()]
            yield self.at_node(*bad[0], leaves, old, new) if bad else None

    def in_updates(self, leaves: list[Any], outer: Any, treedef: Any) -> Iterator[NotFinite | None]:
        """Sweeps, each followed by a step of the outer optimiser, and what is not finite in each."""

        @jax.jit
        def sweep(leaves: Any, constants: Any, outer: Any) -> Any:
            problem: Any = self.program.problem(leaves, constants)
            moves, _ = self.solver.moves(problem)
            problem.note_asked(self.solver)
            new = self.program.applied(leaves, moves, outer, treedef, problem.loss)
            return *new, problem.noted(), moves

        fresh = jax.tree.leaves(self.solver.init(jax.tree.unflatten(treedef, leaves)).outer)
        for self.step in itertools.count(1):
            new, outer, noted, moves = sweep(leaves, self.constants, outer)
            bad = [v for v in noted.tolist() if v >= 0]
            found = self.at_node(bad[0], "the projection of {}", leaves, {}, {}) if bad else None
            per_leaf = self.graph.per_leaf(moves)
            for name, leaf, move in zip(self.traced.names, new, per_leaf, strict=True):
                if found is None and not _range("", leaf).finite:
                    found = self.report(
                        f"the outer optimiser, for the parameter {name!r}",
                        "Lower its learning rate, or clip what it is given, with optax.clip.",
                        inputs=(_range("move", move),),
                        output=_range("parameter", leaf),
                    )
            kept, _ = jax.tree_util.tree_flatten_with_path(outer)
            for (path, x), first in zip(kept, fresh, strict=True):  # some begin with infinity
                if found is None and not _range("", x).finite and _range("", first).finite:
                    found = self.report(
                        f"the state of the outer optimiser, at {jax.tree_util.keystr(path)}",
                        "Scale the loss down, or clip what it is given, and begin with a new state.",
                        inputs=_ranges("move", [move for move in per_leaf if move is not None]),
                        output=_range("state", x),
                    )
            leaves = new
            yield found or self.in_function(leaves)

    def at_node(self, v: int, where: str, leaves: Any, old: dict[int, Any], new: dict[int, Any]) -> NotFinite:
        """What a step made of a node that is not finite, from the displacements before it and after it."""

        @jax.jit
        def seen(leaves: list[Any], constants: Any, old: dict[int, Any]) -> tuple[list[Any], list[Any]]:
            problem = self.program.problem(leaves, constants)
            shifts = problem.shifts(v, old) if old else itertools.repeat(None)
            pairs = zip(problem.inputs[v], shifts, strict=False)
            inputs = [x if shift is None else x + shift for x, shift in pairs]
            return inputs, [] if node.is_target else [problem.points[v] + old.get(v, 0)]

        node = self.graph.nodes[v]
        named = info(self.graph, node)
        inputs, output = seen(leaves, self.constants, old)
        return self.report(
            where.format(named.label),
            "Look at these ranges: numbers far from one, of the batch, a target or a parameter, are lost when"
            " they are squared. Scale them, or take smaller steps.",
            node=named,
            line=named.line,
            inputs=(*_ranges("input", inputs), *(_range("output before", x) for x in output)),
            output=_range("displacement after", new[v]) if v in new else None,
        )


def _origin(evaluate: Evaluator, exprs: Sequence[Expr]) -> Expr | None:
    """The first expression behind some that is not finite, though all that it is computed from is.

    Numbers written in the program do not count: that there is a NaN to choose, for a mean over nothing, does
    not mean that it was chosen.
    """
    found = None
    while expr := next((e for e in exprs if e.literal is None and not _range("", evaluate(e)).finite), None):
        found, exprs = expr, () if expr.call is None else expr.call.args
    return found


def _ranges(what: str, arrays: Sequence[Any]) -> tuple[Range, ...]:
    return tuple(_range(f"{what} {i}", x) for i, x in enumerate(arrays))


def _range(what: str, x: Any) -> Range:
    x = jnp.asarray(x)
    kind = np.complex128 if jnp.iscomplexobj(x) else np.float64
    values = np.asarray(x).astype(kind) if jnp.issubdtype(x.dtype, jnp.number) else np.zeros(x.shape)
    finite = values[np.isfinite(values)].view(np.float64)  # real and imaginary parts
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)
    return Range(what, values.shape, low, high, int(np.isnan(values).sum()), int(np.isinf(values).sum()))
