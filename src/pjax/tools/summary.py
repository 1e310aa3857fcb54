"""What a graph is made of: a table of its nodes, their edges, memory and operations."""

import collections
import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax.graph import fan_out
from pjax.graph import read as tracing
from pjax.graph.stack.stacking import unstacked
from pjax.graph.wires import Evaluator
from pjax.optim.alternating_projections import AlternatingProjections
from pjax.optim.solver import Program, Solver, check_solver
from pjax.rules.arithmetic import usual_promotion
from pjax.tools.drawing import names
from pjax.tools.given import given
from pjax.tools.profile import before, cost, moves


@dataclasses.dataclass(frozen=True)
class NodeSummary:
    """One node, or several equal ones that project as one."""

    name: str
    op: str
    count: int
    """How many nodes it stands for."""
    shape: tuple[int, ...]
    """Of each of them."""
    set: int
    """In which set it projects, from 1."""
    edges: int
    """How many edges enter it."""
    copies: tuple[int, int] | None
    """How many edges leave one of its numbers: the least and the most. Of a target none do. None where that
    follows from the parameters, as what an order or a branch chooses does."""
    edge_bytes: int
    """The memory of the edges that enter it, if each were stored."""
    state_bytes: int
    """The memory that the method carries from step to step instead."""
    operations: float
    """In one step, by the compiler's account."""
    line: str


def _total(name: str) -> Any:
    """A property: the sum of an attribute of all nodes."""
    return property(lambda self: sum(getattr(node, name) for node in self.nodes))


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a graph is made of. Printed, it is a table; a notebook shows it as one."""

    method: str
    nodes: tuple[NodeSummary, ...]
    parameters: int
    """How many numbers are to be found."""

    count, edges, edge_bytes, state_bytes, operations = map(
        _total, ("count", "edges", "edge_bytes", "state_bytes", "operations")
    )
    """What `NodeSummary` says of each node, of all together."""

    @property
    def markdown(self) -> str:
        """As a table in Markdown, as which a notebook shows it."""
        head, *rows = (" | ".join(row) for row in self._rows())
        bar = "|".join({"<": " --- ", ">": " ---: "}[side] for side in _SIDES)
        return "\n".join([f"| {head} |", f"|{bar}|", *(f"| {row} |" for row in rows)])

    def __str__(self) -> str:
        lines = names.table(list(self._rows()), _SIDES).splitlines()
        rule = "─" * max(map(len, lines))
        note = (
            f"{self.method}: {self.count} nodes as {len(self.nodes)}, {self.parameters:,} numbers to find,"
            f" {bytes_name(self.state_bytes)} from step to step; stored edges: {bytes_name(self.edge_bytes)}"
        )
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], note])

    def _repr_markdown_(self) -> str:
        return self.markdown

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield ("node", "operation", "shape", "set", "edges", "copies", "stored", "kept", "Mops", "line")
        for n in self.nodes:
            shape = names.shape_name(n.shape)
            shape = f"{n.count} × ({shape})" if n.count > 1 else shape
            copies = "?" if n.copies is None else names.range_name(*n.copies) if n.copies != (0, 0) else ""
            head = (names.short(n.name, 32), n.op, shape, str(n.set))
            yield *head, *_figures(n, copies), os.path.basename(n.line)
        yield "total", "", "", "", *_figures(self, ""), ""


_SIDES = "<<<>>>>>><"  # at which side the texts of each column stand


def _figures(of: NodeSummary | Summary, copies: str) -> tuple[str, ...]:
    memory = bytes_name(of.edge_bytes), bytes_name(of.state_bytes)
    return f"{of.edges:,}", copies, *memory, f"{of.operations / 1e6:,.3f}"


def bytes_name(number: int) -> str:
    """A number of bytes in words.

    >>> bytes_name(0), bytes_name(512), bytes_name(6_422_528)
    ('0 B', '512 B', '6.42 MB')
    """
    power = min(int(math.log10(max(number, 1)) // 3), 4)
    return f"{number / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


@usual_promotion()
def summary(fn: Any, params: Any = None, solver: Solver | None = None) -> Summary:
    """Summarise the graph of a function: nodes, edges, memory and operations, without running it.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target; or, without `params`, what
            `pjax.trace` returns, or a `Computation` built by hand.
        params: any pytree of floating-point arrays; shapes are enough.
        solver: a method; by default `AlternatingProjections`.

    >>> import pjax
    >>> x, y = jnp.ones((4, 3)), jnp.zeros((4, 2))
    >>> found = summary(lambda w: pjax.squared_error(x @ w, y), jnp.ones((3, 2)))
    >>> [(node.op, node.set, node.edges, node.copies) for node in found.nodes]
    [('parameter', 1, 0, (4, 4)), ('dot', 2, 48, (1, 1)), ('squared_error', 1, 8, (0, 0))]
    >>> found.edge_bytes, found.state_bytes
    (224, 56)
    """
    solver = AlternatingProjections() if solver is None else solver
    check_solver(solver)
    _, params, traced = given(fn, params)
    program = Program(solver, traced)  # its own: lines are those of this function, not of one like it
    graph, place = program.partition.graph, program.partition.set_of()
    leaves, constants = list(map(_shape, jax.tree.leaves(params))), tuple(map(_shape, traced.constants))
    copies = _copies(program, traced)
    kept, operations = _costs(program, leaves, constants)
    size = jnp.dtype(graph.dtype).itemsize
    original, units = unstacked(graph)
    nodes = []
    for node, members in zip(graph.nodes, units, strict=True):
        edges = sum(fan_out.entering(node, i) for i in range(len(node.wires)))
        nodes.append(
            NodeSummary(
                names.folded_name([original.nodes[m].name for m in members]),
                node.op,
                len(members),
                original.nodes[members[0]].shape,
                place[node.index] + 1,
                edges,
                copies.get(node.index, (0, 0)),
                edges * size,
                kept.get(node.index, 0),
                operations.get(node.index, 0.0),
                node.line,
            )
        )
    numbers = sum(math.prod(node.shape) for node in graph.nodes if node.is_parameter)
    return Summary(solver.name, tuple(nodes), numbers)


def _copies(program: Program, traced: tracing.Traced) -> dict[int, tuple[int, int] | None]:
    """For each node that is read, the least and the most edges that leave one of its numbers, if known."""
    graph, known = program.partition.graph, Evaluator(traced.constants, {})
    found = collections.defaultdict[int, list[Any]](list)
    for node in graph.nodes:
        for i in range(len(node.wires)):
            for v, count in fan_out.leaving(graph, node, i, known).items():
                found[v].append(count)
    return {
        v: None if any(c is None for c in counts) else fan_out.least_and_most(sum(counts))
        for v, counts in found.items()
    }


def _costs(
    program: Program, leaves: Sequence[Any], constants: Sequence[Any]
) -> tuple[dict[int, int], dict[int, float]]:
    """For each node, the bytes that a method carries from step to step; and the operations of a step."""
    kept: dict[int, int] = collections.defaultdict(int)
    operations: dict[int, float] = {}

    def step(leaves: Any, constants: Any) -> Any:
        # One problem for all; each part is read on its own, and takes what it needs of it as an argument.
        solver, problem = program.solver, program.problem(leaves, constants)
        edges, nodes = solver.stored(problem), problem.graph.nodes
        for node in nodes:
            if not node.is_parameter:
                carry = before(problem, node, edges)
                read = jax.make_jaxpr(functools.partial(moves, solver, problem, node))(*carry)
                part = jax.jit(functools.partial(jax.core.eval_jaxpr, read.jaxpr))
                shapes = jax.tree.map(_shape, (read.consts, *jax.tree.leaves(carry)))
                operations[node.index], _ = cost(part.lower(*shapes))
        if not solver.sweeps:
            return solver.iteration(problem).start()
        # What is asked of each node, while the sweep passes.
        return {n.index: jnp.zeros(n.shape, problem.dtype) for n in nodes if not n.is_target}

    state = jax.eval_shape(step, leaves, constants)
    for path, array in jax.tree_util.tree_leaves_with_path(state):
        node = next((k.key for k in path if isinstance(k, jax.tree_util.DictKey)), None)
        if node is not None:
            kept[node] += math.prod(array.shape) * array.dtype.itemsize
    return kept, operations


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
