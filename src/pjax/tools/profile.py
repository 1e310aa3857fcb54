"""Where the time of a step goes: each node alone, and the whole beside what the device could do."""

import copy
import dataclasses
import functools
import statistics
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pjax.checks import check_finite, check_function, check_whole
from pjax.engines.point import Problem
from pjax.graph import read as tracing
from pjax.graph.nodes import Node
from pjax.optim.alternating_projections import AlternatingProjections
from pjax.optim.solver import Program, Solver, check_solver, compiled
from pjax.rules.arithmetic import usual_promotion
from pjax.tools.drawing import names


@dataclasses.dataclass(frozen=True)
class NodeCost:
    """What one node costs in a step. Operations and bytes are the compiler's own account."""

    name: str
    op: str
    shape: tuple[int, ...]
    line: str
    milliseconds: float
    share: float
    """Of the time of all nodes."""
    operations: float
    bytes: float


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a step costs, node by node and as a whole. Printed, it is a table."""

    method: str
    device: str
    nodes: tuple[NodeCost, ...]
    """The most expensive first."""
    milliseconds: float
    """Of a whole step, inside a loop."""
    operations: float
    bytes: float
    peak_operations: float
    """Per second, of a large matrix product on this device."""
    peak_bytes: float
    """Per second, of reading and writing an array as large as what the step works on."""

    @property
    def roofline(self) -> float:
        """The share of the step's time that its operations, or its bytes, would take at the device's peak."""
        least = max(self.operations / self.peak_operations, self.bytes / self.peak_bytes)
        return 1000 * least / self.milliseconds

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("node", "operation", "shape", "ms", "share", "Mops", "MB", "line")]
        for n in self.nodes:
            millions = (f"{x / 1e6:.3f}" for x in (n.operations, n.bytes))
            figures = (f"{n.milliseconds:.4f}", f"{n.share:.1%}", *millions)
            rows.append((names.short(n.name, 32), n.op, names.shape_name(n.shape), *figures, n.line))
        return (
            f"{names.table(rows, '<<<>>>><')}\n"
            f"{self.method} on {self.device}: {self.milliseconds:.4f} ms a step,"
            f" {self.operations / 1e6:.1f} Mops, {self.bytes / 1e6:.1f} MB;"
            f" {self.roofline:.0%} of the roofline"
            f" ({self.peak_operations / 1e9:.0f} Gops/s, {self.peak_bytes / 1e9:.0f} GB/s)"
        )


@usual_promotion()
def profile(
    fn: Callable[[Any], Any], params: Any, solver: Solver | None = None, *, repeats: int = 5
) -> Profile:
    """Measure where the time of a step goes.

    Each node's projection is compiled and timed alone, with what it reads and writes through its wires; what
    nodes save by being compiled together shows in the difference between their sum and the whole step.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target.
        params: any pytree of floating-point arrays.
        solver: a method; by default `AlternatingProjections`.
        repeats: how often to time each; the median counts.

    >>> import pjax
    >>> x, y = jnp.ones((4, 3)), jnp.zeros((4, 2))
    >>> found = profile(lambda w: pjax.squared_error(x @ w, y), jnp.ones((3, 2)), repeats=1)
    >>> sorted(node.op for node in found.nodes)
    ['dot', 'squared_error']
    """
    solver = AlternatingProjections() if solver is None else solver
    check_solver(solver)
    check_function(fn)
    check_whole("repeats", repeats)
    traced, leaves = tracing.read(fn, params), jax.tree.leaves(params)
    check_finite(traced, leaves)
    program = compiled(solver, traced)
    constants = traced.constants
    found = []
    for node in program.partition.graph.nodes:
        if not node.is_parameter:
            found.append((node, *_measure(*_alone(program, node, leaves, constants), repeats=repeats)))
    total = sum(ms for _, ms, _ in found)
    nodes = [
        NodeCost(node.name, node.op, node.shape, node.line, ms, ms / total, *cost(step))
        for node, ms, step in found
    ]
    ms, operations, moved, size = _whole(program, leaves, constants, repeats)
    device = jax.devices()[0]
    return Profile(
        solver.name,
        device.device_kind,
        tuple(sorted(nodes, key=lambda n: -n.milliseconds)),
        ms,
        operations,
        moved,
        *_peaks(size, repeats),
    )


# --- What is measured: a function of a carry, and its arguments ---


def _alone(
    program: Program, node: Node, leaves: list[Any], constants: tuple[Any, ...]
) -> tuple[Callable[..., Callable[[Any], Any]], Any, tuple[Any, ...]]:
    """A node's part of a step, as `_measure` takes it: what prepares it, its start, and the rest."""
    solver, v = program.solver, node.index

    @jax.jit
    def start(leaves: list[Any], constants: tuple[Any, ...]) -> Any:
        problem = program.problem(leaves, constants)
        return before(problem, node, solver.stored(problem)), problem.inputs[v], problem.points.get(v)

    def prepared(inputs: Any, point: Any, leaves: list[Any], constants: tuple[Any, ...]) -> Any:
        problem = copy.copy(program.problem(leaves, constants))
        problem.inputs, problem.points = {v: inputs}, {v: point}
        return lambda carry: moves(solver, problem, node, *carry)

    carry, *rest = start(leaves, constants)
    return prepared, carry, (*rest, leaves, constants)


def before(problem: Problem, node: Node, edges: Mapping[int, Any]) -> tuple[Any, Any, Any]:
    """What a node's part of a step starts from: the displacements that it reads, its goal, its edges."""
    nodes = problem.graph.nodes
    values = {s: jnp.zeros(nodes[s].shape, problem.dtype) for wire in node.wires for s in wire.sources}
    goal = None if node.is_target else 1e-3 * jnp.ones(node.shape, problem.dtype)
    return values, goal, edges.get(node.index)


def moves(solver: Solver, problem: Problem, node: Node, values: Any, goal: Any, edges: Any) -> Any:
    """A node's part of a step: what it reads, its projection, and what it writes."""
    kept: tuple[Any, ...] = ()
    if edges is None:
        found = solver.asks(problem, node, values, goal)
    else:
        after, moved = edges.displaced(problem, node, goal)
        found = [None if w.constant else after.sums(problem, node, i) for i, w in enumerate(node.wires)]
        kept = (after, moved.output)
    return *kept, [list(problem.pull(node.index, i, total)) for i, total in enumerate(found)]


def _whole(
    program: Program, leaves: list[Any], constants: tuple[Any, ...], repeats: int
) -> tuple[float, float, float, int]:
    """Of one step of the method: milliseconds, operations, bytes, and the size of what it works on."""
    solver = program.solver

    def prepared(leaves: list[Any], constants: tuple[Any, ...]) -> Callable[[Any], Any]:
        if solver.sweeps:
            return lambda leaves: solver.moves(program.problem(leaves, constants))
        return solver.iteration(program.problem(leaves, constants)).step

    @jax.jit
    def begin(leaves: list[Any], constants: tuple[Any, ...]) -> Any:
        return leaves if solver.sweeps else solver.iteration(program.problem(leaves, constants)).start()

    ms, step = _measure(prepared, begin(leaves, constants), (leaves, constants), repeats)
    operations, moved = cost(step)
    if not solver.sweeps:  # so the function is evaluated before the steps
        forward = jax.jit(lambda ls, cs: program.problem(ls, cs).loss).lower(leaves, constants).compile()
        before = cost(forward)
        operations, moved = max(operations - before[0], 1.0), max(moved - before[1], 1.0)
    memory = step.memory_analysis()
    return ms, operations, moved, memory.temp_size_in_bytes + memory.argument_size_in_bytes if memory else 0


# --- Measuring ---


def cost(compiled: Any) -> tuple[float, float]:
    """Operations and bytes, by the compiler's account."""
    cost = compiled.cost_analysis() or {}
    return float(cost.get("flops", 0)), float(cost.get("bytes accessed", 0))


def _measure(
    prepared: Callable[..., Callable[[Any], Any]], first: Any, rest: tuple[Any, ...], repeats: int
) -> tuple[float, Any]:
    """The milliseconds of one call inside a loop, where what is prepared is not counted; and it, compiled."""

    @functools.partial(jax.jit, static_argnums=0)
    def loop(times: int, first: Any, *rest: Any) -> Any:
        run = prepared(*rest)

        # The result is part of what the loop carries, so it is computed; and tied to the result, what the
        # next round starts from is not known to be the same again.
        def body(_: Any, carry: Any) -> Any:
            return jax.lax.optimization_barrier((carry[0], run(carry[0])))

        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(run, first))
        return jax.lax.fori_loop(0, times, body, (first, nothing))

    def seconds(times: int) -> float:
        def run() -> Any:
            return jax.block_until_ready(loop(times, first, *rest))

        run()  # compiles it
        return statistics.median(timeit.repeat(run, number=1, repeat=repeats))

    # As many rounds as take a while, and the difference to a few: without what comes before the loop.
    few = 2
    once = seconds(few)
    many = few + int(min(max(0.02 * few / max(once, 1e-6), 4), 1000))
    compiled = jax.jit(lambda first, *rest: prepared(*rest)(first)).lower(first, *rest).compile()
    return max(1000 * (seconds(many) - once) / (many - few), 1e-6), compiled


@functools.cache
def _peaks(size: int, repeats: int) -> tuple[float, float]:
    """Operations and bytes per second that the device reaches, the bytes in arrays of a size."""
    n = 1024 if jax.default_backend() == "cpu" else 4096
    m = min(max(size // 8, 2**14), 2**27)  # read and written
    square, long = jnp.ones((n, n), jnp.float32), jnp.ones(m, jnp.float32)
    product, _ = _measure(lambda y: lambda x: x @ y, square, (square,), repeats)
    copying, _ = _measure(lambda c: lambda x: x * c, long, (jnp.float32(1.0),), repeats)
    return 2 * n**3 / (product / 1000), 2 * 4 * m / (copying / 1000)
